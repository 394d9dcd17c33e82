"""Deadlines as owners ask for them: a moment, or a time from now."""

from __future__ import annotations

import re
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta

from django.utils.dateparse import parse_datetime

from marketplace.common.errors import UserError
from marketplace.fleet.models import Zone
from marketplace.fleet.selectors import slot_at, slot_starts_at

#: Where a bid's ``resolved`` names a deadline that was cut.
DEADLINE = "deadline"
_FROM_NOW = re.compile(r"(\d{1,6}(?:\.\d{1,6})?)\s*(s|sec|m|min|h|hr|d|days?)")
_SECONDS = {"s": 1, "m": 60, "h": 3600, "d": 86400}


@dataclass(frozen=True, slots=True)
class Deadline:
    """The moment of a deadline, and how it was asked for."""

    at: datetime
    #: Of a time from now; ``None``: a moment.
    seconds: float | None = None
    #: The time from now lies beyond what is on sale, so this is the latest on sale.
    is_cut: bool = False


def parse_deadline(text: str, *, param: str | None = None) -> datetime | timedelta:
    """Read a moment with a time zone, or a time from now such as ``20m``.

    Raises
    ------
    UserError
        ``invalid_deadline``.
    """
    from_now = _FROM_NOW.fullmatch(text.strip())
    if from_now is not None and from_now[1].isascii():
        return timedelta(seconds=float(from_now[1]) * _SECONDS[from_now[2][0]])
    try:
        at = parse_datetime(text)
        if at is not None and at.tzinfo is not None:
            return at.astimezone(UTC)
    except (ValueError, OverflowError):
        # Also what lies in another zone before the year 1 or after the year 9999.
        pass
    raise UserError(
        "invalid_deadline",
        "The deadline must be a moment with a time zone, such as 2026-11-21T06:00:00Z, or a time "
        "from now, such as 20m or 6h.",
        param=param,
    )


def settle_deadline(asked: datetime | timedelta, *, zone: Zone, now: datetime) -> Deadline:
    """Make a moment of a deadline; a time from now ends with what is on sale at the latest."""
    if isinstance(asked, datetime):
        return Deadline(asked)
    latest_at = find_latest_deadline(zone, now=now)
    is_cut = asked > latest_at - now
    return Deadline(latest_at if is_cut else now + asked, asked.total_seconds(), is_cut)


def find_latest_deadline(zone: Zone, *, now: datetime) -> datetime:
    """The end of what is on sale."""
    return slot_starts_at(zone, slot_at(zone, now) + zone.horizon_slots)
