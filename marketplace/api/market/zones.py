"""``/api/zones``, ``/api/market``, ``/api/quotes``: what is on sale and for how much."""

from __future__ import annotations

from datetime import datetime
from io import BytesIO
from typing import Any

from django.conf import settings
from drf_spectacular.utils import extend_schema
from rest_framework import serializers as s
from rest_framework.request import Request
from rest_framework.response import Response

from marketplace.api.answers import Answer, Moment, Usd, moment, usd
from marketplace.api.callers import get_caller
from marketplace.api.market import schemas
from marketplace.api.market.fields import write_beat
from marketplace.api.market.owned import find_dataset
from marketplace.api.market.quote_serializers import QuoteSerializer
from marketplace.api.market.requests import QuoteRequest, check_body, read_asked
from marketplace.api.views import MarketView
from marketplace.auction.bidding.deadlines import find_latest_deadline, settle_deadline
from marketplace.auction.bidding.job_request import JobRequest
from marketplace.auction.bidding.quotes import make_quote
from marketplace.auction.book.transcript import write_transcript
from marketplace.auction.models import BidStatus
from marketplace.auction.selectors import (
    MarketNow,
    find_unit_fee_in_force,
    get_policy_in_force,
    load_market,
)
from marketplace.common import clock
from marketplace.common.downloads import FileDownload, LinesDownload
from marketplace.fleet.base_models import pack_bundled_model
from marketplace.fleet.models import Zone
from marketplace.fleet.policy_settings import find_beat
from marketplace.fleet.selectors import (
    get_open_zone,
    list_nodes_on_sale,
    list_open_zones,
    slot_at,
    slot_starts_at,
)


class ZoneSerializer(Answer):
    name = s.CharField()
    base_model = s.CharField(
        source="base_model_name", help_text="The base model that its nodes hold."
    )
    slot_s = s.IntegerField(help_text="Seconds of a slot.")
    horizon_slots = s.IntegerField(help_text="Slots that are on sale at a time.")
    policy = s.CharField(help_text="How its prices are made.")
    max_sequence_length = s.IntegerField(help_text="Most tokens of a row that training reads.")
    earliest_deadline = Moment(help_text="The earliest deadline that can be bid by.")
    latest_deadline = Moment(help_text="The latest deadline that can be bid by.")
    beat = s.CharField(
        help_text="What a bid without a price names, so that it is told a price of this beat or of "
        "the next, and may take or leave it."
    )
    nodes_on_sale = s.IntegerField(help_text="Nodes that are on sale now.")
    fee_per_million_units = Usd(
        help_text="The house's fee, in every price of the zone; "
        "work that is not done gives it back."
    )
    retain_days = s.IntegerField(
        allow_null=True,
        help_text="Days after which what nobody used is deleted at the latest; null: it is kept.",
    )

    def get_policy(self, zone: Zone) -> str:
        return get_policy_in_force(zone)

    def get_earliest_deadline(self, zone: Zone) -> datetime:
        return slot_starts_at(zone, slot_at(zone, clock.now()) + 2)

    def get_latest_deadline(self, zone: Zone) -> datetime:
        return find_latest_deadline(zone, now=clock.now())

    def get_beat(self, zone: Zone) -> str:
        return write_beat(find_beat(zone, clock.now()))

    def get_nodes_on_sale(self, zone: Zone) -> int:
        return list_nodes_on_sale(zone).count()

    def get_fee_per_million_units(self, zone: Zone) -> int:
        return round(find_unit_fee_in_force(zone) * 1_000_000)


class ZoneListSerializer(Answer):
    data = ZoneSerializer(source="*", many=True, help_text="The zones that take bids.")


class MarketSerializer(Answer):
    # Public: it has no amount of a bid and no name of who placed it.
    zone = s.CharField(source="zone.name")
    seq = s.IntegerField(help_text="Number of the last event of the market's stream.")
    position = s.IntegerField(help_text="Position of the last entry of the zone's log.")
    head_hash = s.CharField()
    slot = s.IntegerField(help_text="Number of the slot that it is now.")
    slot_s = s.IntegerField(source="zone.slot_s", help_text="Seconds of a slot.")
    first_slot = s.IntegerField(help_text="Slot of the first value of each list of a node.")
    first_slot_at = Moment(help_text="When that slot begins.")
    nodes = s.ListField(
        child=s.DictField(),
        help_text="Nodes with their ask, and by slot: prices, shares sold and what is on sale.",
    )
    decisions = s.ListField(
        child=s.DictField(), help_text="The latest decisions, the newest first."
    )

    def get_nodes(self, market: MarketNow) -> list[dict[str, Any]]:
        return [
            {
                "id": row.node_id,
                "name": row.name,
                "gpu_type": row.gpu_type,
                "ask": usd(row.ask_micros),
                # Dollars per work unit and per GB and slot, on top of the ask.
                "compute_price": [price / 1e6 for price in row.compute_price],
                "memory_price": [price / 1e6 for price in row.memory_price],
                "compute_sold": list(row.compute_sold),
                "memory_sold": list(row.memory_sold),
                "on_sale": list(row.on_sale),
            }
            for row in market.rows
        ]

    def get_decisions(self, market: MarketNow) -> list[dict[str, Any]]:
        return [
            {
                "bid_id": bid.pk,
                "position": bid.position,
                "hash": bid.decision_hash,
                "admitted": bid.status == BidStatus.ADMITTED,
                "payment": usd(bid.payment_micros),
                "reason": bid.refusal or None,
                "decided_at": moment(bid.decided_at),
            }
            for bid in market.decisions
        ]


class ZonesView(MarketView):
    """Zones that take bids."""

    @extend_schema(operation_id="zones_list", responses={200: ZoneListSerializer})
    def get(self, request: Request) -> Response:
        return Response(ZoneListSerializer.show(list_open_zones()))


class ZoneBaseView(MarketView):
    """The folder of a base model that no hub has, for adapters to be loaded beside it."""

    scopes = {"GET": "jobs:read"}

    @extend_schema(
        operation_id="zones_base",
        responses={(200, *schemas.build_file_types("application/x-tar")): schemas.FILE},
    )
    def get(self, request: Request, zone_name: str) -> FileDownload:
        folder = pack_bundled_model(get_open_zone(zone_name).base_model_source)
        return FileDownload(
            BytesIO(folder.content),
            size=len(folder.content),
            sha256=folder.sha256,
            range_header=request.headers.get("Range"),
            content_type="application/x-tar",
            name=f"{folder.name}.tar",
        )


class MarketNowView(MarketView):
    """Prices and sold shares of every cell on sale, and the latest decisions."""

    @extend_schema(responses={200: MarketSerializer})
    def get(self, request: Request, zone_name: str) -> Response:
        market = load_market(get_open_zone(zone_name), now=clock.now())
        return Response(MarketSerializer.show(market))


class TranscriptView(MarketView):
    """The zone's whole log as JSON lines, to be replayed by ``python -m scheduler verify``.

    Bids stand in it as salted commitments. All else can be checked, every price among it.
    Operators get the bids too, and so do all callers where ``PUBLISH_BIDS`` is set.
    """

    scopes = {"GET": "bids:read"}
    throttle_kind_of_reads = "transcripts"

    @extend_schema(responses={(200, *schemas.build_file_types("application/jsonl")): schemas.FILE})
    def get(self, request: Request, zone_name: str) -> LinesDownload:
        zone = get_open_zone(zone_name)
        lines = write_transcript(zone, with_bids=settings.PUBLISH_BIDS or request.user.is_operator)
        return LinesDownload(lines, content_type="application/jsonl", name=f"{zone.name}.jsonl")


class QuotesView(MarketView):
    """The posted price of a job for a deadline, and by deadline; reserves nothing."""

    scopes = {"POST": "bids:read"}
    throttle_kind = "quotes"

    @extend_schema(request=QuoteRequest, responses={200: QuoteSerializer, 400: schemas.PROBLEM})
    def post(self, request: Request) -> Response:
        organisation = get_caller(request).organisation
        asked = check_body(QuoteRequest, request.data)
        zone = get_open_zone(asked["zone"])
        deadline = settle_deadline(asked["deadline"], zone=zone, now=clock.now())
        held_out_id = asked["validation_dataset_id"]
        job = JobRequest(
            organisation=organisation,
            zone=zone,
            dataset=find_dataset(organisation, asked["dataset_id"]),
            validation=None
            if held_out_id is None
            else find_dataset(organisation, held_out_id, param="validation_dataset_id"),
            deadline_s=deadline.seconds,
            is_deadline_cut=deadline.is_cut,
            **read_asked(asked),
        )
        quote = make_quote(
            job,
            is_warm=asked["warm_start"],
            deadline_at=deadline.at,
            now=clock.now(),
        )
        return Response(QuoteSerializer.show(quote))
