"""Waiting for what another process or thread does."""

from __future__ import annotations

import time
from collections.abc import Callable


def until(
    true: Callable[[], object], *, what: str, within_s: float = 180.0, every_s: float = 0.02
) -> None:
    """Look until something is true; says what it was when it never is."""
    ends_at = time.monotonic() + within_s
    while not true():
        if time.monotonic() > ends_at:
            raise AssertionError(f"not within {within_s:g} s: {what}")
        time.sleep(every_s)
