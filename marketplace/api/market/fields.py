"""How amounts, moments and settings look in the API."""

from __future__ import annotations

import re
from collections.abc import Mapping
from datetime import datetime, time, timedelta
from math import isclose, isfinite
from typing import Any

from django.utils.datastructures import MultiValueDict
from drf_spectacular.utils import extend_schema_field
from rest_framework import serializers

from marketplace.api.answers import moment, show_time_of_day, usd
from marketplace.api.pagination import read_moment
from marketplace.api.text_patterns import NO_NUL
from marketplace.auction.bidding.deadlines import parse_deadline
from marketplace.auction.bidding.terms import PRICE_LIMIT_MICROS, parse_price
from marketplace.common.errors import UserError
from marketplace.common.money import from_micros, to_micros
from marketplace.fleet.asks import ASK_LIMIT_MICROS
from scheduler.types import Beat

#: A slot and a beat of it.
BEAT_PATTERN = r"^[0-9]{1,12}\.[0-9]{1,4}$"

TIME_OF_DAY = re.compile(r"([01][0-9]|2[0-3]):[0-5][0-9](:[0-5][0-9])?")
METADATA_PAIRS, METADATA_KEY_CHARS, METADATA_VALUE_CHARS = 16, 64, 512


def describe_amount(*, least_micros: int, most_micros: int) -> dict[str, Any]:
    """An amount in dollars: a decimal string, or a number."""
    least, most = from_micros(least_micros), from_micros(most_micros)
    # Numbers have an end; of texts only the form is described.
    number = {"type": "number", "minimum": float(least), "maximum": float(most)}
    digits = len(str((most_micros - 1) // 10**6))
    text = {
        "type": "string",
        # A digit that is not zero, unless nothing is an amount too.
        "pattern": rf"^[0-9]{{1,{digits}}}(\.[0-9]{{1,6}})?$"
        if not least_micros
        else rf"^([1-9][0-9]{{0,{digits - 1}}}(\.[0-9]{{1,6}})?|0\.[0-9]{{0,5}}[1-9])$",
    }
    return {"anyOf": [text, number | {"multipleOf": 1e-6}], "examples": ["4.50"]}


def write_amount(data: Any) -> str:
    """An amount as ``to_micros`` reads it; a float is the millionth that it is nearest to.

    0.1 + 0.2 is 0.30000000000000004 as a float, and means 0.3; one that is not near a millionth
    stays as it is, and is refused.
    """
    if isinstance(data, float) and isfinite(data) and isclose(round(data, 6), data, rel_tol=1e-12):
        return f"{data:.6f}"
    return str(data)


@extend_schema_field(describe_amount(least_micros=1, most_micros=PRICE_LIMIT_MICROS))
class PriceField(serializers.Field):
    """A price in dollars; gives micro-dollars."""

    def to_internal_value(self, data: Any) -> int:
        if isinstance(data, bool) or not isinstance(data, (str, int, float)):
            raise UserError(
                "invalid_price",
                'The price must be a decimal string of dollars, such as "4.50".',
                param=self.field_name,
            )
        return parse_price(write_amount(data), param=self.field_name or "price")

    def to_representation(self, value: int) -> str | None:
        return usd(value)


DEADLINE_SCHEMA = {
    "anyOf": [
        {"type": "string", "format": "date-time"},
        {"type": "string", "pattern": r"^[0-9]{1,6}(\.[0-9]{1,6})?(s|m|h|d)$"},
    ],
    "examples": ["6h", "2026-11-21T06:00:00Z"],
}


@extend_schema_field(DEADLINE_SCHEMA)
class DeadlineField(serializers.Field):
    """A moment with a time zone, or a time from now."""

    def to_internal_value(self, data: Any) -> datetime | timedelta:
        return parse_deadline(data if isinstance(data, str) else "", param=self.field_name)

    def to_representation(self, value: datetime) -> str | None:
        return moment(value)


@extend_schema_field(describe_amount(least_micros=0, most_micros=ASK_LIMIT_MICROS))
class AskField(PriceField):
    """What a provider asks for a slot, in dollars; gives micro-dollars. It may ask for nothing."""

    def to_internal_value(self, data: Any) -> int:
        if isinstance(data, bool) or not isinstance(data, (str, int, float)):
            data = ""
        return to_micros(write_amount(data), param=self.field_name or "ask")


@extend_schema_field({"type": "string", "format": "date-time"})
class MomentField(serializers.Field):
    """A moment with a time zone."""

    def to_internal_value(self, data: Any) -> datetime:
        return read_moment(self.field_name or "", data if isinstance(data, str) else "")

    def to_representation(self, value: datetime) -> str | None:
        return moment(value)


@extend_schema_field(
    {"type": "string", "pattern": rf"^{TIME_OF_DAY.pattern}$", "examples": ["08:00"]}
)
class TimeOfDayField(serializers.Field):
    """Hours and minutes of a day, UTC."""

    def to_internal_value(self, data: Any) -> time:
        if not isinstance(data, str) or not TIME_OF_DAY.fullmatch(data):
            raise serializers.ValidationError("Write hours and minutes, UTC, such as 08:00.")
        return time.fromisoformat(data)

    def to_representation(self, value: time) -> str:
        return show_time_of_day(value)


@extend_schema_field(
    {
        "type": "object",
        "maxProperties": METADATA_PAIRS,
        "propertyNames": {"maxLength": METADATA_KEY_CHARS, "pattern": NO_NUL},
        "additionalProperties": {
            "type": "string",
            "maxLength": METADATA_VALUE_CHARS,
            "pattern": NO_NUL,
        },
    }
)
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


class FormedText(serializers.CharField):
    """A text of a form that the OpenAPI document says, and that a service checks in its words."""

    def __init__(self, pattern: str, **options: Any) -> None:
        super().__init__(**options)
        self.pattern = pattern


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
        if isinstance(data, MultiValueDict):
            # Of two values of a form, one would be dropped without a word.
            twice = [name for name, values in data.lists() if len(values) > 1]
            if twice:
                raise serializers.ValidationError(dict.fromkeys(twice, "Send it once."))
        return super().to_internal_value(data)


def write_beat(beat: Beat) -> str:
    """A beat as bids name it: its slot and its number in that."""
    return f"{beat.slot}.{beat.part}"


def read_beat(text: str) -> Beat:
    """Read what ``write_beat`` wrote.

    Raises
    ------
    ValueError
    """
    if not re.match(BEAT_PATTERN, text):
        raise ValueError("Give the beat of a quote as it stands.")
    return Beat(*map(int, text.split(".")))
