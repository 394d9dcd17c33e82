"""How long to wait before something that failed is tried again."""

from __future__ import annotations

from datetime import timedelta


def compute_backoff(*, failures: int, first: timedelta, most: timedelta) -> timedelta:
    """The wait after so many failures in a row: it doubles each time, up to ``most``."""
    return min(first * 2 ** min(max(failures - 1, 0), 20), most)
