"""``/api/bids``: place bids, read them, take them back."""

from __future__ import annotations

import asyncio
from collections.abc import Coroutine
from hashlib import sha256
from typing import Any

from asgiref.sync import async_to_sync
from django.http import HttpResponse
from drf_spectacular.utils import extend_schema
from rest_framework.request import Request
from rest_framework.response import Response

from marketplace.api.answers import page_of
from marketplace.api.callers import Caller, get_caller
from marketplace.api.idempotency import answer_once, read_idempotency_key
from marketplace.api.market import schemas
from marketplace.api.market.asked_bids import (
    AskedBid,
    complete_bid,
    read_files_of_all,
)
from marketplace.api.market.bid_answers import build_responses, place_and_answer
from marketplace.api.market.bid_serializers import (
    ANSWER_RESPONSES,
    BID_RESPONSES,
    BidBatchSerializer,
    BidSerializer,
    serialize_bids,
)
from marketplace.api.market.requests import BatchRequest, BidRequest, PriceAnswerRequest, check_body
from marketplace.api.pagination import build_page
from marketplace.api.problems import exception_handler
from marketplace.api.views import MarketView
from marketplace.auction import selectors
from marketplace.auction.bidding.answer import answer_price
from marketplace.auction.bidding.cancel import cancel_bid
from marketplace.auction.bidding.place import PlacedBid
from marketplace.auction.bidding.wait import wait_for_bid
from marketplace.auction.book.proofs import build_bid_proof
from marketplace.auction.models import Bid, BidStatus
from marketplace.common import clock
from marketplace.common.threads import run_in_thread


class BidsView(MarketView):
    shares_thread = True
    takes_idempotency_key = True
    scopes = {"GET": "bids:read", "POST": "bids:write"}
    queries = {"GET": schemas.build_work_page(BidStatus.values)}

    @extend_schema(
        operation_id="bids_list",
        responses={200: page_of(BidSerializer)},
    )
    def get(self, request: Request) -> Response:
        organisation = get_caller(request).organisation
        bids = selectors.list_bids(organisation, status=request.query_params.get("status"))
        return Response(build_page(request, bids, serialize_bids))

    @extend_schema(request=BidRequest, responses=BID_RESPONSES)
    def post(self, request: Request) -> Coroutine[Any, Any, Response]:
        who, key = get_caller(request), read_idempotency_key(request)
        return place_and_answer(AskedBid(check_body(BidRequest, request.data), who, key))


class BidView(MarketView):
    scopes = {"GET": "bids:read"}

    @extend_schema(operation_id="bids_read", responses={200: BidSerializer})
    def get(self, request: Request, bid_id: str) -> Response:
        bid = selectors.get_bid(get_caller(request).organisation, bid_id)
        return Response(_shape(bid))


class BidCancelView(MarketView):
    scopes = {"POST": "bids:write"}

    @extend_schema(request=None, responses={200: BidSerializer})
    def post(self, request: Request, bid_id: str) -> Response:
        bid = selectors.get_bid(get_caller(request).organisation, bid_id)
        return Response(_shape(cancel_bid(bid=bid, now=clock.now())))


class BidAnswerView(MarketView):
    """Take the price that a bid was told, or leave it."""

    scopes = {"POST": "bids:write"}

    @extend_schema(
        operation_id="bids_answer", request=PriceAnswerRequest, responses=ANSWER_RESPONSES
    )
    def post(self, request: Request, bid_id: str) -> Response:
        bid = selectors.get_bid(get_caller(request).organisation, bid_id)
        answer = check_body(PriceAnswerRequest, request.data)
        answer_price(
            bid=bid, takes=answer["take"], price_micros=answer.get("price"), now=clock.now()
        )
        found = wait_for_bid(bid=bid)
        # Who left the price is not refused.
        is_left = not answer["take"] and found.status == BidStatus.REFUSED
        return Response(_shape(found)) if is_left else build_responses([PlacedBid(found)])[0]


class BidProofView(MarketView):
    """What opens the bid's commitment, and the published entries around its decision."""

    scopes = {"GET": "bids:read"}

    @extend_schema(
        operation_id="bids_proof",
        responses={(200, "application/octet-stream"): schemas.FILE, 409: schemas.PROBLEM},
    )
    def get(self, request: Request, bid_id: str) -> HttpResponse:
        bid = selectors.get_bid(get_caller(request).organisation, bid_id)
        name = f'attachment; filename="{bid.pk}.proof.json"'
        return HttpResponse(
            build_bid_proof(bid=bid),
            content_type="application/octet-stream",
            headers={"Content-Disposition": name},
        )


class BidBatchView(MarketView):
    """Several bids in one request, decided in their order; each has an answer of its own."""

    takes_idempotency_key = True
    scopes = {"POST": "bids:write"}

    @extend_schema(
        operation_id="bids_batch_create", request=BatchRequest, responses={200: BidBatchSerializer}
    )
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

    async def complete(item: AskedBid | Exception) -> AskedBid | Exception:
        try:
            return item if isinstance(item, Exception) else await complete_bid(item)
        except Exception as error:
            return error

    # Before any is placed: one that has to wait would come after those behind it.
    ready = await asyncio.gather(*map(complete, asked))
    bids = [item for item in ready if isinstance(item, AskedBid)]
    await run_in_thread(lambda: read_files_of_all(bids))
    return await asyncio.gather(*map(answer, ready))


def _shape(bid: Bid) -> dict[str, Any]:
    return serialize_bids([bid])[0]
