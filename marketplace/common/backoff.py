"""How long to wait before something that failed is tried again."""

from __future__ import annotations

from collections.abc import Callable
from datetime import timedelta


def compute_backoff(*, failures: int, first: timedelta, most: timedelta) -> timedelta:
    """Compute the wait after failures in a row: it doubles with each, up to ``most``."""
    return min(first * 2 ** min(max(failures - 1, 0), 20), most)


def build_backoff(
    *, first: timedelta, most: timedelta, attempts: int | None
) -> Callable[[int], timedelta | None]:
    """Build the doubling wait of a kind of work; ``None`` after its last attempt."""

    def backoff(failures: int) -> timedelta | None:
        if attempts is not None and failures >= attempts:
            return None
        return compute_backoff(failures=failures, first=first, most=most)

    return backoff
