"""How amounts, moments and settings look in the API."""

from __future__ import annotations

from collections.abc import Mapping
from datetime import datetime, timedelta
from typing import Any

from drf_spectacular.utils import extend_schema_field
from rest_framework import serializers

from marketplace.api.answers import moment, usd
from marketplace.auction.bidding.deadlines import parse_deadline
from marketplace.auction.bidding.terms import parse_price
from marketplace.common.errors import UserError

METADATA_PAIRS, METADATA_KEY_CHARS, METADATA_VALUE_CHARS = 16, 64, 512


@extend_schema_field({"type": ["string", "number"], "examples": ["4.50"]})
class PriceField(serializers.Field):
    """A price in dollars; gives micro-dollars."""

    def to_internal_value(self, data: Any) -> int:
        if isinstance(data, bool) or not isinstance(data, (str, int, float)):
            raise UserError(
                "invalid_price",
                'The price must be a decimal string of dollars, such as "4.50".',
                param=self.field_name,
            )
        return parse_price(str(data), param=self.field_name or "price")

    def to_representation(self, value: int) -> str | None:
        return usd(value)


@extend_schema_field(
    {
        "anyOf": [
            {"type": "string", "format": "date-time"},
            {"type": "string", "pattern": r"^\d{1,6}(\.\d{1,6})?(s|m|h|d)$"},
        ],
        "examples": ["6h", "2026-11-21T06:00:00Z"],
    }
)
class DeadlineField(serializers.Field):
    """A moment with a time zone, or a time from now."""

    def to_internal_value(self, data: Any) -> datetime | timedelta:
        return parse_deadline(data if isinstance(data, str) else "", param=self.field_name)

    def to_representation(self, value: datetime) -> str | None:
        return moment(value)


class MetadataField(serializers.DictField):
    """Pairs of texts."""

    child = serializers.CharField(
        max_length=METADATA_VALUE_CHARS, allow_blank=True, trim_whitespace=False
    )

    def to_internal_value(self, data: Any) -> Any:
        if isinstance(data, Mapping):
            if len(data) > METADATA_PAIRS:
                raise serializers.ValidationError(f"At most {METADATA_PAIRS} pairs.")
            for key in data:
                if len(key) > METADATA_KEY_CHARS or "\0" in key:
                    raise serializers.ValidationError(
                        f"A key has at most {METADATA_KEY_CHARS} characters, none of them NUL."
                    )
        return super().to_internal_value(data)


class StrictSerializer(serializers.Serializer[Any]):
    """Refuses members it does not know: a misspelt setting must not be ignored."""

    def to_internal_value(self, data: Any) -> Any:
        if isinstance(data, Mapping):
            unknown = sorted(set(data) - set(self.fields))
            if unknown:
                raise serializers.ValidationError(
                    {
                        name: f"There is no such member; there are {', '.join(self.fields)}."
                        for name in unknown
                    }
                )
        return super().to_internal_value(data)
