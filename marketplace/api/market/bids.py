"""``/api/bids``: place bids, read them, take them back."""

from __future__ import annotations

from dataclasses import replace
from hashlib import sha256
from typing import Any

from drf_spectacular.utils import extend_schema
from rest_framework.parsers import FormParser, MultiPartParser
from rest_framework.request import Request
from rest_framework.response import Response

from marketplace.api.callers import Caller, caller
from marketplace.api.idempotency import idempotency_key, once
from marketplace.api.market import schemas
from marketplace.api.market.answers import placed_response, placed_responses
from marketplace.api.market.asking import asked_of, dataset_choice_check, zone_of
from marketplace.api.market.owned import get_dataset
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
from marketplace.auction.bidding.place import NewBid, PlacedBid, place_bids
from marketplace.auction.bidding.wait import cancel_bid, wait_for_bid, wait_for_bids
from marketplace.auction.models import Bid
from marketplace.common import clock
from marketplace.fleet.selectors import get_open_zone, get_zones_by_name
from marketplace.jobs.services import create_dataset


class BidsView(MarketView):
    parser_classes = [StrictJSONParser, MultiPartParser, FormParser]
    scopes = {"GET": "bids:read", "POST": "bids:write"}

    @extend_schema(
        operation_id="bids_list", parameters=schemas.PAGE, responses={200: schemas.BID_PAGE}
    )
    def get(self, request: Request) -> Response:
        who = caller(request)
        bids = selectors.list_bids(who.organisation, status=request.query_params.get("status"))
        return Response(page(request, bids, serialize_bids))

    @extend_schema(request=schemas.BID_REQUEST, responses=schemas.BID_RESPONSES)
    def post(self, request: Request) -> Response:
        who = caller(request)
        key = idempotency_key(request)
        if not request.content_type.startswith("multipart/"):
            return self._place(request, who, key, BidRequest)
        # The data set that comes along is to be stored once as well.
        return once(
            request,
            who.organisation,
            lambda: self._place(request, who, key, BidUploadRequest),
            now=clock.now(),
        )

    def _place(
        self, request: Request, who: Caller, key: str | None, kind: type[BidRequest]
    ) -> Response:
        asked = asked_from_request(checked(kind, request.data), who=who, key=key)
        [outcome] = place_bids(asked=[asked], now=clock.now())
        if isinstance(outcome, Exception):
            raise outcome
        return placed_response(replace(outcome, bid=wait_for_bid(bid=outcome.bid)))


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
        return once(
            request, who.organisation, lambda: self._place_all(request, who), now=clock.now()
        )

    def _place_all(self, request: Request, who: Caller) -> Response:
        batch = checked(BatchRequest, request.data)
        key = idempotency_key(request)
        # Of one length, and never the key of a bid that was placed by itself.
        key = key and sha256(key.encode()).hexdigest()
        asked: list[NewBid | Exception] = []
        for index, item in enumerate(batch["bids"]):
            try:
                body = checked(BidRequest, item)
                asked.append(asked_from_request(body, who=who, key=key and f"batch:{key}:{index}"))
            except Exception as error:
                # Each bid stands for itself: one that is wrong must not take others along.
                asked.append(error)
        good = [item for item in asked if isinstance(item, NewBid)]
        outcomes = iter(place_bids(asked=good, now=clock.now()))
        answers = [item if isinstance(item, Exception) else next(outcomes) for item in asked]
        placed = [answer for answer in answers if isinstance(answer, PlacedBid)]
        waited = wait_for_bids(bids=[item.bid for item in placed])
        responses = iter(
            placed_responses(
                [replace(item, bid=bid) for item, bid in zip(placed, waited, strict=True)]
            )
        )
        told = [
            exception_handler(answer, {"request": request})
            if isinstance(answer, Exception)
            else next(responses)
            for answer in answers
        ]
        return Response(
            {"data": [{"status": answer.status_code, "body": answer.data} for answer in told]}
        )


def asked_from_request(body: dict[str, Any], *, who: Caller, key: str | None) -> NewBid:
    """The bid of a checked request body, with its uploaded data set if there is one."""
    file = body.get("file")
    if file is None:
        zone = zone_of(body, get_zones_by_name([body["zone"]]))
        dataset_choice_check(body)
        dataset = get_dataset(who.organisation, str(body["dataset_id"]))
    else:
        # Of an open zone only: nothing is stored for one that takes no bids.
        zone = get_open_zone(body["zone"])
        dataset_choice_check(body)
        dataset = create_dataset(
            organisation=who.organisation,
            name=file.name,
            content=file,
            uploaded_by=who.user,
            zone=zone,
            now=clock.now(),
        )
    return asked_of(body, who=who, key=key, zone=zone, dataset=dataset)


def _shape(bid: Bid) -> dict[str, Any]:
    return serialize_bids([bid])[0]
