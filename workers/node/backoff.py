"""Waits before something that failed is tried again."""

from __future__ import annotations

import random


class Backoff:
    """Waits that double with each failure, at random around that so that nodes spread."""

    def __init__(self, *, first_s: float, longest_s: float) -> None:
        self._first_s = first_s
        self._longest_s = longest_s
        self._pause_s = first_s

    def next_wait_s(self) -> float:
        """Draw the wait before the next attempt; the one after it is about twice as long."""
        wait_s = self._pause_s * random.uniform(0.5, 1.5)  # noqa: S311
        self._pause_s = min(2 * self._pause_s, self._longest_s)
        return wait_s

    def reset(self) -> None:
        """An attempt went well: the next wait is a first one."""
        self._pause_s = self._first_s
