"""``/api/bundles``: several jobs that differ in some settings, as one request."""

from __future__ import annotations

from typing import Any

from drf_spectacular.utils import extend_schema
from rest_framework.request import Request
from rest_framework.response import Response

from marketplace.api.callers import Caller, get_caller
from marketplace.api.idempotency import answer_once, read_idempotency_key
from marketplace.api.market import schemas
from marketplace.api.market.bid_serializers import (
    REFUSED_BUNDLE,
    BundleSerializer,
    serialize_bundle,
)
from marketplace.api.market.owned import find_dataset
from marketplace.api.market.quote_serializers import SweepQuoteSerializer
from marketplace.api.market.requests import (
    BundleQuoteRequest,
    BundleRequest,
    check_body,
    read_asked,
)
from marketplace.api.problems import build_problem
from marketplace.api.views import MarketView
from marketplace.auction.bidding.bundle_quotes import make_bundle_quote
from marketplace.auction.bidding.bundles import NewBundle, place_bundle
from marketplace.auction.bidding.cancel import cancel_bid
from marketplace.auction.bidding.deadlines import settle_deadline
from marketplace.auction.bidding.refusals import REFUSAL_CODES, describe_bid_refusal
from marketplace.auction.bidding.terms import name_after
from marketplace.auction.bidding.wait import wait_for_bid
from marketplace.auction.models import BidStatus
from marketplace.auction.selectors import get_bundle
from marketplace.common import clock
from marketplace.fleet.selectors import get_open_zone
from scheduler.types import Refusal

#: Of the answer, by the status of the bundle; it is in the body each time.
_STATUSES: dict[str, int] = {BidStatus.PENDING: 202, BidStatus.ADMITTED: 201}


class BundlesView(MarketView):
    takes_idempotency_key = True
    scopes = {"POST": "bids:write"}

    @extend_schema(
        request=BundleRequest,
        responses={
            200: BundleSerializer,
            201: BundleSerializer,
            202: BundleSerializer,
            400: schemas.PROBLEM,
            402: REFUSED_BUNDLE,
            409: schemas.PROBLEM,
        },
    )
    def post(self, request: Request) -> Response:
        who = get_caller(request)
        return answer_once(request, who.organisation, lambda: _place(request, who), now=clock.now())


class BundleView(MarketView):
    scopes = {"GET": "bids:read", "DELETE": "bids:write"}

    @extend_schema(operation_id="bundles_read", responses={200: BundleSerializer})
    def get(self, request: Request, bundle_id: str) -> Response:
        return Response(serialize_bundle(get_bundle(get_caller(request).organisation, bundle_id)))

    @extend_schema(responses={200: BundleSerializer})
    def delete(self, request: Request, bundle_id: str) -> Response:
        """Take back the bids that are not decided."""
        bundle = get_bundle(get_caller(request).organisation, bundle_id)
        for bid in bundle.bids.filter(status=BidStatus.PENDING).order_by("arrival"):
            cancel_bid(bid=bid, now=clock.now())
        return Response(serialize_bundle(bundle))


class BundleQuotesView(MarketView):
    """What jobs cost together, in all and each; reserves nothing."""

    scopes = {"POST": "bids:read"}
    throttle_kind = "quotes"

    @extend_schema(
        request=BundleQuoteRequest, responses={200: SweepQuoteSerializer, 400: schemas.PROBLEM}
    )
    def post(self, request: Request) -> Response:
        body = check_body(BundleQuoteRequest, request.data)
        asked = _build_new_bundle(body, get_caller(request), key=None)
        return Response(SweepQuoteSerializer.show(make_bundle_quote(asked=asked, now=clock.now())))


def _place(request: Request, who: Caller) -> Response:
    body = check_body(BundleRequest, request.data)
    asked = _build_new_bundle(body, who, key=read_idempotency_key(request))
    bundle = place_bundle(asked=asked, now=clock.now())
    # All are decided at once, or one after another: the last one last.
    wait_for_bid(bid=bundle.bids.order_by("-arrival")[0])
    bundle.refresh_from_db()
    value = serialize_bundle(bundle)
    if value["status"] == BidStatus.REFUSED:
        first = bundle.bids.order_by("arrival")[0]
        return build_problem(
            code=REFUSAL_CODES[Refusal(first.refusal)],
            detail=describe_bid_refusal(first),
            status=402,
            extra={"bundle": value},
            headers={"Location": f"/api/bundles/{bundle.pk}", "x-should-retry": "false"},
        )
    location = {"Location": f"/api/bundles/{bundle.pk}"}
    return Response(value, status=_STATUSES.get(value["status"], 200), headers=location)


def _build_new_bundle(body: dict[str, Any], who: Caller, *, key: str | None) -> NewBundle:
    dataset = find_dataset(who.organisation, body["dataset_id"])
    zone = get_open_zone(body["zone"])
    deadline = settle_deadline(body["deadline"], zone=zone, now=clock.now())
    held_out_id = body["validation_dataset_id"]
    return NewBundle(
        organisation=who.organisation,
        placed_by=who.user,
        api_key_id=who.key_id,
        zone=zone,
        dataset=dataset,
        name=body.get("name") or name_after(dataset.name),
        sweep=body["sweep"],
        all_or_none=body.get("all_or_none", True),
        # A quote does not look at it.
        price_micros=body.get("price", 0),
        deadline_at=deadline.at,
        deadline_s=deadline.seconds,
        is_deadline_cut=deadline.is_cut,
        idempotency_key=key,
        validation=None
        if held_out_id is None
        else find_dataset(who.organisation, held_out_id, param="validation_dataset_id"),
        **read_asked(body),
    )
