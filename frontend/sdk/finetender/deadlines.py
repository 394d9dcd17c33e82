"""Deadlines as people write them: a time from now, or a moment."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta


def write_deadline(given: str | datetime | timedelta) -> str:
    """The deadline as the market takes it; times from now count on the market's clock."""
    if isinstance(given, timedelta):
        return f"{given.total_seconds():.3f}s"
    if isinstance(given, str):
        try:
            given = datetime.fromisoformat(given.strip())
        except ValueError:
            # A time from now such as 90m, or what the market refuses with an example.
            return given
    # A moment without a time zone is one of this machine's.
    return given.astimezone(UTC).isoformat()
