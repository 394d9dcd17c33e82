"""``/api/zones``, ``/api/market``, ``/api/quotes``: what is on sale and for how much."""

from __future__ import annotations

from django.conf import settings
from drf_spectacular.types import OpenApiTypes
from drf_spectacular.utils import OpenApiResponse, extend_schema
from rest_framework.request import Request
from rest_framework.response import Response

from marketplace.api.callers import get_caller
from marketplace.api.market import bid_schemas, schemas, zone_schemas
from marketplace.api.market.owned import get_dataset
from marketplace.api.market.requests import QuoteRequest, check_body, read_asked
from marketplace.api.market.serialize import serialize_market, serialize_quote, serialize_zone
from marketplace.api.views import MarketView
from marketplace.auction.bidding.job_request import JobRequest
from marketplace.auction.bidding.quotes import make_quote
from marketplace.auction.book.transcript import write_transcript
from marketplace.auction.selectors import load_market
from marketplace.common import clock
from marketplace.common.downloads import LinesDownload
from marketplace.fleet.selectors import get_open_zone, list_open_zones


class ZonesView(MarketView):
    """Zones that take bids."""

    @extend_schema(responses={200: zone_schemas.ZONE_LIST})
    def get(self, request: Request) -> Response:
        now = clock.now()
        return Response({"data": [serialize_zone(zone, now=now) for zone in list_open_zones()]})


class MarketNowView(MarketView):
    """Prices and sold shares of every cell on sale, and the latest decisions."""

    @extend_schema(responses={200: zone_schemas.MARKET})
    def get(self, request: Request, zone_name: str) -> Response:
        return Response(serialize_market(load_market(get_open_zone(zone_name), now=clock.now())))


class TranscriptView(MarketView):
    """The zone's whole log as JSON lines, to be replayed by ``python -m scheduler verify``.

    Bids stand in it as salted commitments, so that everything but what others bid can be checked.
    Operators get the bids too, and so do all callers where ``PUBLISH_BIDS`` is set.
    """

    scopes = {"GET": "bids:read"}
    throttle_kind_of_reads = "transcripts"

    @extend_schema(responses={(200, "application/jsonl"): OpenApiResponse(OpenApiTypes.BINARY)})
    def get(self, request: Request, zone_name: str) -> LinesDownload:
        zone = get_open_zone(zone_name)
        lines = write_transcript(zone, with_bids=settings.PUBLISH_BIDS or request.user.is_operator)
        return LinesDownload(lines, content_type="application/jsonl", name=f"{zone.name}.jsonl")


class QuotesView(MarketView):
    """The posted price of a job for a deadline, and by deadline; reserves nothing."""

    scopes = {"POST": "bids:read"}
    throttle_kind = "quotes"

    @extend_schema(request=QuoteRequest, responses={200: bid_schemas.QUOTE, 400: schemas.PROBLEM})
    def post(self, request: Request) -> Response:
        organisation = get_caller(request).organisation
        asked = check_body(QuoteRequest, request.data)
        held_out_id = asked["validation_dataset_id"]
        job = JobRequest(
            organisation=organisation,
            zone=get_open_zone(asked["zone"]),
            dataset=get_dataset(organisation, asked["dataset_id"]),
            validation=None
            if held_out_id is None
            else get_dataset(organisation, held_out_id, param="validation_dataset_id"),
            **read_asked(asked),
        )
        quote = make_quote(
            job,
            is_warm=asked["warm_start"],
            deadline_at=asked["deadline"],
            now=clock.now(),
        )
        return Response(serialize_quote(quote))
