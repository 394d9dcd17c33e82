"""``/api/bids``: place bids, read them, take them back."""

from __future__ import annotations

from hashlib import sha256
from typing import Any

from drf_spectacular.utils import extend_schema
from rest_framework.parsers import FormParser, MultiPartParser
from rest_framework.request import Request
from rest_framework.response import Response

from marketplace.api.callers import Caller, caller
from marketplace.api.idempotency import idempotency_key, once
from marketplace.api.market import schemas
from marketplace.api.market.owned import dataset_of
from marketplace.api.market.requests import (
    BatchRequest,
    BidRequest,
    BidUploadRequest,
    checked,
)
from marketplace.api.market.shapes import bids_shape
from marketplace.api.pagination import page
from marketplace.api.problems import exception_handler, problem
from marketplace.api.views import MarketView, StrictJSONParser
from marketplace.auction import selectors
from marketplace.auction.models import Bid, BidStatus
from marketplace.auction.services import bid_cancel, bid_place, bid_wait
from marketplace.auction.words import REFUSAL_CODES, bid_refusal_words
from marketplace.common import clock
from marketplace.common.errors import UserError
from marketplace.fleet.selectors import zone_by_name
from marketplace.jobs.services import dataset_create
from scheduler.types import Refusal


class BidsView(MarketView):
    parser_classes = [StrictJSONParser, MultiPartParser, FormParser]
    scopes = {"GET": "bids:read", "POST": "bids:write"}

    @extend_schema(
        operation_id="bids_list", parameters=schemas.PAGE, responses={200: schemas.BID_PAGE}
    )
    def get(self, request: Request) -> Response:
        who = caller(request)
        bids = selectors.bids_of(who.organisation, status=request.query_params.get("status"))
        return Response(page(request, bids, bids_shape))

    @extend_schema(request=schemas.BID_REQUEST, responses=schemas.BID_RESPONSES)
    def post(self, request: Request) -> Response:
        who = caller(request)
        return once(request, who.organisation, lambda: self._place(request, who), now=clock.now())

    def _place(self, request: Request, who: Caller) -> Response:
        upload = request.content_type.startswith("multipart/")
        body = checked(BidUploadRequest if upload else BidRequest, request.data)
        bid = bid_from_request(body, who=who, key=idempotency_key(request))
        return bid_response(bid_wait(bid=bid))


class BidView(MarketView):
    scopes = {"GET": "bids:read", "DELETE": "bids:write"}

    @extend_schema(operation_id="bids_read", responses={200: schemas.BID})
    def get(self, request: Request, bid_id: str) -> Response:
        bid = selectors.bid_of(caller(request).organisation, bid_id)
        return Response(_shape(bid))

    @extend_schema(responses={200: schemas.BID})
    def delete(self, request: Request, bid_id: str) -> Response:
        bid = selectors.bid_of(caller(request).organisation, bid_id)
        return Response(_shape(bid_cancel(bid=bid, now=clock.now())))


class BidCancelView(MarketView):
    scopes = {"POST": "bids:write"}

    @extend_schema(request=None, responses={200: schemas.BID})
    def post(self, request: Request, bid_id: str) -> Response:
        bid = selectors.bid_of(caller(request).organisation, bid_id)
        return Response(_shape(bid_cancel(bid=bid, now=clock.now())))


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
        placed: list[Bid | Response] = []
        for index, item in enumerate(batch["bids"]):
            try:
                body = checked(BidRequest, item)
                placed.append(bid_from_request(body, who=who, key=key and f"batch:{key}:{index}"))
            except Exception as error:
                # Each bid stands for itself: one that is wrong must not take others along.
                placed.append(exception_handler(error, {"request": request}))
        answers = [
            item if isinstance(item, Response) else bid_response(bid_wait(bid=item))
            for item in placed
        ]
        return Response(
            {"data": [{"status": answer.status_code, "body": answer.data} for answer in answers]}
        )


def bid_from_request(body: dict[str, Any], *, who: Caller, key: str | None) -> Bid:
    """Place the bid of a checked request body, with its uploaded data set if there is one."""
    zone = zone_by_name(body["zone"])
    now = clock.now()
    dataset_id, file = body.get("dataset_id"), body.get("file")
    if (dataset_id is None) == (file is None):
        raise UserError(
            "dataset_required",
            "Name a data set with dataset_id, or send one as the part 'file' of a multipart form; "
            "one of the two.",
            param="dataset_id",
        )
    if file is not None:
        dataset = dataset_create(
            organisation=who.organisation,
            name=file.name,
            content=file,
            uploaded_by=who.user,
            zone=zone,
            now=now,
        )
    else:
        dataset = dataset_of(who.organisation, str(dataset_id))
    return bid_place(
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
        now=now,
    )


def bid_response(bid: Bid) -> Response:
    """201 admitted, 402 refused, 202 not decided yet; the bid is in the body each time."""
    shape = _shape(bid)
    address = f"/api/bids/{bid.pk}"
    if bid.status == BidStatus.REFUSED:
        refusal = Refusal(bid.refusal)
        decision = shape["decision"]
        return problem(
            code=REFUSAL_CODES[refusal],
            detail=bid_refusal_words(bid),
            status=402,
            extra={
                "reason": refusal.value,
                "posted_price": decision["posted_price"],
                "earliest_deadline": decision["earliest_deadline"],
                "earliest_deadline_price": decision["earliest_deadline_price"],
                "bid": shape,
            },
            headers={"Location": address, "x-should-retry": "false"},
        )
    if bid.status == BidStatus.PENDING:
        return Response(shape, status=202, headers={"Location": address, "Retry-After": "1"})
    status = 201 if bid.status == BidStatus.ADMITTED else 200
    return Response(shape, status=status, headers={"Location": address})


def _shape(bid: Bid) -> dict[str, Any]:
    return bids_shape([bid])[0]
