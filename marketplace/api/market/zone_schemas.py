"""Zones and their markets in the OpenAPI document."""

from __future__ import annotations

from rest_framework import serializers as s

from marketplace.api.market.schemas import list_of, shape

ZONE = shape(
    "Zone",
    {
        "name": s.CharField(),
        "base_model": s.CharField(),
        "slot_s": s.IntegerField(),
        "horizon_slots": s.IntegerField(),
        "policy": s.CharField(),
        "max_sequence_length": s.IntegerField(),
        "earliest_deadline": s.DateTimeField(),
        "latest_deadline": s.DateTimeField(),
        "nodes_on_sale": s.IntegerField(),
        "reservation_fee_percent": s.IntegerField(
            help_text="Of the price of a job that its owner ends, what is kept at least, percent."
        ),
        "fee_per_million_units": s.CharField(
            help_text="The house's fee in dollars, in every price of the zone; "
            "work that is not done gives it back."
        ),
    },
)
ZONE_LIST = shape("ZoneList", {"data": list_of(ZONE)})
MARKET = shape(
    "Market",
    {
        "zone": s.CharField(),
        "seq": s.IntegerField(),
        "position": s.IntegerField(),
        "head_hash": s.CharField(),
        "slot": s.IntegerField(),
        "slot_s": s.IntegerField(),
        "first_slot": s.IntegerField(),
        "first_slot_at": s.DateTimeField(),
        "nodes": list_of(s.DictField()),
        "decisions": list_of(s.DictField()),
    },
)
