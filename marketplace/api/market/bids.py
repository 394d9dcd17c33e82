"""``/api/bids``: place bids, read them, take them back."""

from __future__ import annotations

import asyncio
from collections.abc import Coroutine
from datetime import date
from hashlib import sha256
from typing import Any

from asgiref.sync import async_to_sync
from drf_spectacular.utils import extend_schema
from rest_framework.parsers import FormParser, MultiPartParser
from rest_framework.request import Request
from rest_framework.response import Response

from marketplace.api.answers import page_of
from marketplace.api.callers import Caller, get_caller
from marketplace.api.idempotency import answer_once, read_idempotency_key
from marketplace.api.market import schemas
from marketplace.api.market.asked_bids import (
    AskedBid,
    ask_vendors,
    check_one_dataset,
    count_tokens_of_all,
)
from marketplace.api.market.bid_answers import place_and_answer
from marketplace.api.market.bid_serializers import (
    BID_RESPONSES,
    BidBatchSerializer,
    BidSerializer,
    serialize_bids,
)
from marketplace.api.market.requests import BatchRequest, BidRequest, BidUploadRequest, check_body
from marketplace.api.pagination import build_page
from marketplace.api.problems import exception_handler
from marketplace.api.versions import Deprecation
from marketplace.api.views import MarketView, StrictJSONParser
from marketplace.auction import selectors
from marketplace.auction.bidding.cancel import cancel_bid
from marketplace.auction.models import Bid
from marketplace.common import clock
from marketplace.common.errors import Conflict
from marketplace.fleet.selectors import get_open_zone
from marketplace.jobs.models import Dataset, UploadStatus
from marketplace.jobs.selectors import build_upload_error
from marketplace.jobs.services import receive_upload, wait_for_upload
from marketplace.jobs.upload_choices import UploadChoices

#: How long a bid waits for its file to be read.
UPLOAD_WAIT_S = 20.0


class BidsView(MarketView):
    shares_thread = True
    parser_classes = [StrictJSONParser, MultiPartParser, FormParser]
    scopes = {"GET": "bids:read", "POST": "bids:write"}

    @extend_schema(
        operation_id="bids_list",
        parameters=schemas.PAGE,
        responses={200: page_of(BidSerializer)},
    )
    def get(self, request: Request) -> Response:
        organisation = get_caller(request).organisation
        bids = selectors.list_bids(organisation, status=request.query_params.get("status"))
        return Response(build_page(request, bids, serialize_bids))

    @extend_schema(
        request={"application/json": BidRequest, "multipart/form-data": BidUploadRequest},
        responses=BID_RESPONSES,
    )
    def post(self, request: Request) -> Response | Coroutine[Any, Any, Response]:
        who, key = get_caller(request), read_idempotency_key(request)
        if request.content_type.startswith("multipart/"):
            return answer_once(
                *(request, who.organisation, lambda: _place_with_upload(request, who, key)),
                now=clock.now(),
            )
        return place_and_answer(AskedBid(check_body(BidRequest, request.data), who, key))


def _place_with_upload(request: Request, who: Caller, key: str | None) -> Response:
    """A bid that may bring its data set; the data set is stored once as well."""
    body = check_body(BidUploadRequest, request.data)
    if body.get("file") is not None:
        body |= {"file": None, "dataset_id": _store_upload(body, who, key).pk}
    return async_to_sync(place_and_answer)(AskedBid(body, who, key))


def _store_upload(body: dict[str, Any], who: Caller, key: str | None) -> Dataset:
    # An open zone only: nothing is stored for one that takes no bids.
    zone = get_open_zone(body["zone"])
    check_one_dataset(body)
    upload = receive_upload(
        organisation=who.organisation,
        name=body["file"].name,
        content=body["file"],
        uploaded_by=who.user,
        zone=zone,
        choices=UploadChoices(faulty_lines=body["faulty_lines"], long_rows=body["long_rows"]),
        key=key and f"bids:{key}",
        now=clock.now(),
    )
    upload = wait_for_upload(upload, within_s=UPLOAD_WAIT_S)
    if upload.status == UploadStatus.REFUSED:
        raise build_upload_error(upload)
    if upload.dataset is None:
        raise Conflict(
            "upload_not_read",
            f"The file is still being read. Bid with its dataset_id once /api/uploads/{upload.pk} "
            "says stored, or send this request again under the same Idempotency-Key.",
            param="file",
            extra={"upload_id": upload.pk, "retry": True},
        )
    return upload.dataset


class BidView(MarketView):
    scopes = {"GET": "bids:read", "DELETE": "bids:write"}
    deprecations = {
        "DELETE": Deprecation(
            since=date(2026, 11, 22),
            sunset=date(2027, 11, 22),
            successor="/api/bids/{bid_id}/cancel",
        )
    }

    @extend_schema(operation_id="bids_read", responses={200: BidSerializer})
    def get(self, request: Request, bid_id: str) -> Response:
        bid = selectors.get_bid(get_caller(request).organisation, bid_id)
        return Response(_shape(bid))

    @extend_schema(responses={200: BidSerializer}, deprecated=True)
    def delete(self, request: Request, bid_id: str) -> Response:
        bid = selectors.get_bid(get_caller(request).organisation, bid_id)
        return Response(_shape(cancel_bid(bid=bid, now=clock.now())))


class BidCancelView(MarketView):
    scopes = {"POST": "bids:write"}

    @extend_schema(request=None, responses={200: BidSerializer})
    def post(self, request: Request, bid_id: str) -> Response:
        bid = selectors.get_bid(get_caller(request).organisation, bid_id)
        return Response(_shape(cancel_bid(bid=bid, now=clock.now())))


class BidBatchView(MarketView):
    """Several bids in one request, decided in their order; each has an answer of its own."""

    scopes = {"POST": "bids:write"}

    @extend_schema(request=BatchRequest, responses={200: BidBatchSerializer})
    def post(self, request: Request) -> Response:
        who = get_caller(request)
        return answer_once(
            request, who.organisation, lambda: _place_all(request, who), now=clock.now()
        )


def _place_all(request: Request, who: Caller) -> Response:
    batch = check_body(BatchRequest, request.data)
    key = read_idempotency_key(request)
    # Of one length, and never the key of a bid that was placed by itself.
    key = key and sha256(key.encode()).hexdigest()
    asked: list[AskedBid | Exception] = []
    for index, item in enumerate(batch["bids"]):
        try:
            body = check_body(BidRequest, item)
            asked.append(AskedBid(body, who, key and f"batch:{key}:{index}"))
        except Exception as error:
            # Each bid stands for itself: one that is wrong must not take others along.
            asked.append(error)
    # Before any is placed: one that has to wait for it would come after those behind it.
    count_tokens_of_all([item for item in asked if isinstance(item, AskedBid)])
    outcomes = async_to_sync(_place_each)(asked)
    answers = [
        exception_handler(outcome, {"request": request})
        if isinstance(outcome, Exception)
        else outcome
        for outcome in outcomes
    ]
    return Response(
        {"data": [{"status": answer.status_code, "body": answer.data} for answer in answers]}
    )


async def _place_each(asked: list[AskedBid | Exception]) -> list[Response | Exception]:
    """The answers to the bids of one request, which are placed in their order."""

    async def answer(item: AskedBid | Exception) -> Response | Exception:
        try:
            return item if isinstance(item, Exception) else await place_and_answer(item)
        except Exception as error:
            return error

    async def ask(item: AskedBid | Exception) -> AskedBid | Exception:
        try:
            return item if isinstance(item, Exception) else await ask_vendors(item)
        except Exception as error:
            return error

    # Before any is placed, for the same reason as the tokens.
    with_quotes = await asyncio.gather(*map(ask, asked))
    return await asyncio.gather(*map(answer, with_quotes))


def _shape(bid: Bid) -> dict[str, Any]:
    return serialize_bids([bid])[0]
