"""A cache in the process, for what may be a moment old."""

from __future__ import annotations

from collections.abc import Callable, Hashable, Iterable, Mapping
from datetime import datetime
from typing import Generic, TypeVar

T = TypeVar("T")
K = TypeVar("K", bound=Hashable)

#: Keys held before all are forgotten; far above what is busy at once.
KEYS_MAX = 10_000


class TtlCache(Generic[T]):
    """Reads through, and trusts what it read for ``for_s`` seconds of the callers' own time."""

    def __init__(self, *, for_s: float) -> None:
        self._for_s = for_s
        self._held: dict[Hashable, tuple[datetime, T]] = {}

    def get(self, key: Hashable, *, now: datetime, read: Callable[[], T]) -> T:
        """What ``read`` gives, now or a moment ago; what it raises is not kept."""
        return self.get_many([key], now=now, read=lambda _: {key: read()})[key]

    def get_many(
        self, keys: Iterable[K], *, now: datetime, read: Callable[[list[K]], Mapping[K, T]]
    ) -> dict[K, T]:
        """The same for several keys; those not held are read together, each of them."""
        values: dict[K, T] = {}
        missing: list[K] = []
        for key in dict.fromkeys(keys):
            held = self._held.get(key)
            if held is not None and 0 <= (now - held[0]).total_seconds() < self._for_s:
                values[key] = held[1]
            else:
                missing.append(key)
        if missing:
            found = read(missing)
            if len(self._held) + len(missing) > KEYS_MAX:
                self._held.clear()
            for key in missing:
                values[key] = found[key]
                self._held[key] = (now, found[key])
        return values

    def clear(self) -> None:
        self._held.clear()
