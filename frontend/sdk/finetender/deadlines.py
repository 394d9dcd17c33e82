"""Deadlines as people write them: a time from now, or a moment."""

from __future__ import annotations

import re
from datetime import UTC, datetime, timedelta

from finetender.errors import UsageError

_FROM_NOW = re.compile(r"(\d{1,6}(?:\.\d{1,3})?)\s*(s|sec|m|min|h|hr|d|days?)")
_SECONDS = {"s": 1, "m": 60, "h": 3600, "d": 86400}


def parse_deadline(
    given: str | datetime | timedelta, *, now: datetime, latest: datetime
) -> datetime:
    """The moment that is meant; a time from now ends with what is on sale at the latest.

    Raises
    ------
    UsageError
    """
    if isinstance(given, timedelta):
        return min(now + given, latest)
    if isinstance(given, datetime):
        at = given
    else:
        from_now = _FROM_NOW.fullmatch(given.strip())
        if from_now is not None:
            seconds = float(from_now[1]) * _SECONDS[from_now[2][0]]
            return min(now + timedelta(seconds=seconds), latest)
        try:
            at = datetime.fromisoformat(given.strip())
        except ValueError:
            raise UsageError(
                f"{given!r} is no deadline. Give a time from now such as 90m, 6h or 2d, or a "
                "moment such as 2026-11-21T06:00:00Z."
            ) from None
    # A moment without a time zone is one of this machine's.
    return at.astimezone(UTC)
