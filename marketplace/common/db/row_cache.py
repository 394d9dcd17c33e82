"""What a process keeps, so that a crowd does not read the same rows each time.

``TtlCache`` may be a moment old; ``RowCache`` never is.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable, Iterable, Mapping
from copy import copy
from datetime import datetime
from typing import Generic, TypeVar

from django.db.models import Model

from marketplace.common.db.pipeline import Statement, ask

T = TypeVar("T")
M = TypeVar("M", bound=Model)
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


class RowCache(Generic[M]):
    """Rows of a table as they are now, read again only when they have changed.

    Asking PostgreSQL for the versions of rows, which it keeps beside each, costs a fraction of
    reading them and making objects of what is read. Each caller gets objects of its own.
    """

    def __init__(self, model: type[M], *, by: str) -> None:
        self._model, self._by = model, by
        column = model._meta.get_field(by).column  # type: ignore[union-attr]
        # A version: who wrote it and where it lies.
        self._versions = (
            f"SELECT {column}, xmin::text, ctid::text"  # noqa: S608 - names of our models
            f" FROM {model._meta.db_table} WHERE {column} = ANY(%s)"
        )
        self._held: dict[str, tuple[list[str], M]] = {}

    def get_many(self, keys: Iterable[str]) -> dict[str, M]:
        """The rows that there are, by their key."""
        wanted = [key for key in set(keys) if "\0" not in key]
        if not wanted:
            return {}
        [rows] = ask(Statement(self._versions, (wanted,)))
        versions = {key: version for key, *version in rows}
        found: dict[str, M] = {}
        for key, version in versions.items():
            held = self._held.get(key)
            if held is not None and held[0] == version:
                found[key] = copy(held[1])
        missing = versions.keys() - found.keys()
        if missing:
            if len(self._held) + len(missing) > KEYS_MAX:
                self._held.clear()
            # At least as new as the versions told before.
            for row in self._model._default_manager.filter(**{f"{self._by}__in": missing}):
                key = getattr(row, self._by)
                found[key] = row
                self._held[key] = (versions[key], copy(row))
        return found
