"""How amounts, moments and settings look in the API."""

from __future__ import annotations

import re
from collections.abc import Mapping
from datetime import datetime, time, timedelta
from typing import Any

from drf_spectacular.utils import extend_schema_field
from rest_framework import serializers

from marketplace.api.answers import moment, show_time_of_day, usd
from marketplace.api.pagination import read_moment
from marketplace.auction.bidding.deadlines import parse_deadline
from marketplace.auction.bidding.terms import parse_price
from marketplace.common.errors import UserError
from marketplace.common.money import to_micros

TIME_OF_DAY = re.compile(r"([01][0-9]|2[0-3]):[0-5][0-9](:[0-5][0-9])?")
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


class AskField(PriceField):
    """What a provider asks for a slot, in dollars; gives micro-dollars. It may ask for nothing."""

    def to_internal_value(self, data: Any) -> int:
        if isinstance(data, bool) or not isinstance(data, (str, int, float)):
            data = ""
        return to_micros(str(data), param=self.field_name or "ask")


@extend_schema_field({"type": ["string", "null"], "format": "date-time"})
class MomentField(serializers.Field):
    """A moment with a time zone; ``null``: none."""

    def to_internal_value(self, data: Any) -> datetime:
        return read_moment(self.field_name or "", data if isinstance(data, str) else "")

    def to_representation(self, value: datetime) -> str | None:
        return moment(value)


@extend_schema_field(
    {
        "type": ["string", "null"],
        "pattern": rf"^{TIME_OF_DAY.pattern}$",
        "examples": ["08:00"],
    }
)
class TimeOfDayField(serializers.Field):
    """Hours and minutes of a day, UTC; ``null``: none."""

    def to_internal_value(self, data: Any) -> time:
        if not isinstance(data, str) or not TIME_OF_DAY.fullmatch(data):
            raise serializers.ValidationError("Write hours and minutes, UTC, such as 08:00.")
        return time.fromisoformat(data)

    def to_representation(self, value: time) -> str:
        return show_time_of_day(value)


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
