"""Values a process may go by for a moment, so that a crowd does not read the same row each time."""

from __future__ import annotations

from collections.abc import Callable, Hashable
from datetime import datetime
from typing import Generic, TypeVar

T = TypeVar("T")

#: Keys held before all are forgotten; far above what is busy at once.
KEYS_MAX = 10_000


class Kept(Generic[T]):
    """Reads through, and trusts what it read for ``for_s`` seconds of the callers' own time."""

    def __init__(self, *, for_s: float) -> None:
        self._for_s = for_s
        self._held: dict[Hashable, tuple[datetime, T]] = {}

    def get(self, key: Hashable, *, now: datetime, read: Callable[[], T]) -> T:
        """What ``read`` gives, now or a moment ago; what it raises is not kept."""
        held = self._held.get(key)
        if held is not None and 0 <= (now - held[0]).total_seconds() < self._for_s:
            return held[1]
        value = read()
        if len(self._held) >= KEYS_MAX:
            self._held.clear()
        self._held[key] = (now, value)
        return value

    def clear(self) -> None:
        self._held.clear()
