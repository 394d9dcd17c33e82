"""``/api/bids``: place bids, read them, take them back."""

from __future__ import annotations

import asyncio
from collections.abc import Coroutine
from hashlib import sha256
from typing import Any

from asgiref.sync import async_to_sync, sync_to_async
from drf_spectacular.utils import extend_schema
from rest_framework.parsers import FormParser, MultiPartParser
from rest_framework.request import Request
from rest_framework.response import Response

from marketplace.api.callers import Caller, caller
from marketplace.api.idempotency import idempotency_key, once
from marketplace.api.market import schemas
from marketplace.api.market.bid_answers import place_and_answer
from marketplace.api.market.requests import (
    BatchRequest,
    BidRequest,
    BidUploadRequest,
    checked,
)
from marketplace.api.market.serialize import serialize_bids
from marketplace.api.pagination import page
from marketplace.api.problems import exception_handler
from marketplace.api.views import MarketView, StrictJSONParser
from marketplace.auction import selectors
from marketplace.auction.bidding.cancel import cancel_bid
from marketplace.auction.bidding.measure import unknown_dataset
from marketplace.auction.bidding.place import NewBid
from marketplace.auction.models import Bid
from marketplace.common import clock
from marketplace.common.errors import UserError
from marketplace.fleet.models import Zone
from marketplace.fleet.selectors import get_open_zone, get_zones_by_name
from marketplace.jobs.models import Dataset
from marketplace.jobs.selectors import get_datasets
from marketplace.jobs.services import create_dataset, ensure_dataset_tokens, is_dataset_counted


class BidsView(MarketView):
    shares_thread = True
    parser_classes = [StrictJSONParser, MultiPartParser, FormParser]
    scopes = {"GET": "bids:read", "POST": "bids:write"}

    @extend_schema(
        operation_id="bids_list", parameters=schemas.PAGE, responses={200: schemas.BID_PAGE}
    )
    def get(self, request: Request) -> Response:
        organisation = caller(request).organisation
        bids = selectors.list_bids(organisation, status=request.query_params.get("status"))
        return Response(page(request, bids, serialize_bids))

    @extend_schema(request=schemas.BID_REQUEST, responses=schemas.BID_RESPONSES)
    def post(self, request: Request) -> Response | Coroutine[Any, Any, Response]:
        if request.content_type.startswith("multipart/"):
            return _place_with_upload(request)
        new_bid = _read_bid(request, BidRequest)
        if is_dataset_counted(dataset=new_bid.dataset, zone=new_bid.zone):
            return place_and_answer(new_bid)
        return _count_and_place(new_bid)


async def _count_and_place(new_bid: NewBid) -> Response:
    """Place a bid once its data set's tokens are counted for its zone, which reads all of it."""
    await sync_to_async(ensure_dataset_tokens)(dataset=new_bid.dataset, zone=new_bid.zone)
    return await place_and_answer(new_bid)


def _place_with_upload(request: Request) -> Response:
    """A bid whose data set comes along, which is stored once as well."""
    idempotency_key(request)

    def place() -> Response:
        return async_to_sync(place_and_answer)(_read_bid(request, BidUploadRequest))

    return once(request, caller(request).organisation, place, now=clock.now())


def _read_bid(request: Request, kind: type[BidRequest]) -> NewBid:
    """The bid of a request, checked except for its terms."""
    who, key = caller(request), idempotency_key(request)
    return build_new_bid(checked(kind, request.data), who=who, key=key)


class BidView(MarketView):
    scopes = {"GET": "bids:read", "DELETE": "bids:write"}

    @extend_schema(operation_id="bids_read", responses={200: schemas.BID})
    def get(self, request: Request, bid_id: str) -> Response:
        bid = selectors.get_bid(caller(request).organisation, bid_id)
        return Response(_shape(bid))

    @extend_schema(responses={200: schemas.BID})
    def delete(self, request: Request, bid_id: str) -> Response:
        bid = selectors.get_bid(caller(request).organisation, bid_id)
        return Response(_shape(cancel_bid(bid=bid, now=clock.now())))


class BidCancelView(MarketView):
    scopes = {"POST": "bids:write"}

    @extend_schema(request=None, responses={200: schemas.BID})
    def post(self, request: Request, bid_id: str) -> Response:
        bid = selectors.get_bid(caller(request).organisation, bid_id)
        return Response(_shape(cancel_bid(bid=bid, now=clock.now())))


class BidBatchView(MarketView):
    """Several bids in one request, decided in their order; each has an answer of its own."""

    scopes = {"POST": "bids:write"}

    @extend_schema(request=schemas.BATCH_REQUEST, responses={200: schemas.BATCH})
    def post(self, request: Request) -> Response:
        who = caller(request)
        return once(request, who.organisation, lambda: _place_all(request, who), now=clock.now())


def _place_all(request: Request, who: Caller) -> Response:
    batch = checked(BatchRequest, request.data)
    key = idempotency_key(request)
    # Of one length, and never the key of a bid that was placed by itself.
    key = key and sha256(key.encode()).hexdigest()
    items: list[NewBid | Exception] = []
    for index, item in enumerate(batch["bids"]):
        try:
            body = checked(BidRequest, item)
            new_bid = build_new_bid(body, who=who, key=key and f"batch:{key}:{index}")
            ensure_dataset_tokens(dataset=new_bid.dataset, zone=new_bid.zone)
            items.append(new_bid)
        except Exception as error:
            # Each bid stands for itself: one that is wrong must not take others along.
            items.append(error)
    outcomes = async_to_sync(_place_each)(items)
    answers = [
        exception_handler(outcome, {"request": request})
        if isinstance(outcome, Exception)
        else outcome
        for outcome in outcomes
    ]
    return Response(
        {"data": [{"status": answer.status_code, "body": answer.data} for answer in answers]}
    )


async def _place_each(items: list[NewBid | Exception]) -> list[Response | Exception]:
    """The answers to the bids of one request, which are placed in their order."""

    async def answer(item: NewBid | Exception) -> Response | Exception:
        try:
            return item if isinstance(item, Exception) else await place_and_answer(item)
        except Exception as error:
            return error

    return await asyncio.gather(*map(answer, items))


def build_new_bid(body: dict[str, Any], *, who: Caller, key: str | None) -> NewBid:
    """The bid of a checked request body, with its uploaded data set if there is one."""
    find = _find_dataset if body.get("file") is None else _read_upload
    zone, dataset = find(body, who)
    return NewBid(
        organisation=who.organisation,
        placed_by=who.user,
        zone=zone,
        dataset=dataset,
        name=body["name"] or dataset.name,
        adapter=body["adapter"],
        training=body["training"],
        price_micros=body["price"],
        deadline_at=body["deadline"],
        idempotency_key=key,
    )


def _find_dataset(body: dict[str, Any], who: Caller) -> tuple[Zone, Dataset]:
    # A closed zone too, for a request that is sent again after its zone has closed.
    zone = get_zones_by_name([body["zone"]]).get(body["zone"]) or get_open_zone(body["zone"])
    _check_one_dataset(body)
    dataset = get_datasets([body["dataset_id"]]).get(body["dataset_id"])
    if dataset is None or dataset.organisation_id != who.organisation.pk:
        raise unknown_dataset()
    if dataset.zone_id == zone.pk:
        dataset.zone = zone  # type: ignore[assignment]
    return zone, dataset


def _read_upload(body: dict[str, Any], who: Caller) -> tuple[Zone, Dataset]:
    # An open zone only: nothing is stored for one that takes no bids.
    zone = get_open_zone(body["zone"])
    _check_one_dataset(body)
    dataset = create_dataset(
        organisation=who.organisation,
        name=body["file"].name,
        content=body["file"],
        uploaded_by=who.user,
        zone=zone,
        now=clock.now(),
    )
    return zone, dataset


def _check_one_dataset(body: dict[str, Any]) -> None:
    """Refuse a bid without a data set, or with two.

    Raises
    ------
    UserError
        ``dataset_required``.
    """
    if (body.get("dataset_id") is None) == (body.get("file") is None):
        raise UserError(
            "dataset_required",
            "Name a data set with dataset_id, or send one as the part 'file' of a multipart form; "
            "one of the two.",
            param="dataset_id",
        )


def _shape(bid: Bid) -> dict[str, Any]:
    return serialize_bids([bid])[0]
