"""The only reading of the clock; entrances call it and pass ``now`` on."""

from datetime import UTC, datetime, timedelta

from django.utils import timezone


def now() -> datetime:
    """The present moment, aware, in UTC."""
    return timezone.now()


def format_moment(at: datetime, *, up: bool = False) -> str:
    """``2026-11-21 03:07:22 UTC``, as sentences name a moment; pages show it in local time.

    ``up`` rounds up: for the earliest moment that will do.
    """
    whole = at.astimezone(UTC)
    if whole.microsecond:
        whole = whole.replace(microsecond=0) + timedelta(seconds=1 if up else 0)
    return f"{whole:%Y-%m-%d %H:%M:%S} UTC"
