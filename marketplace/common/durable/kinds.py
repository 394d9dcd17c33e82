"""The kinds of durable work, each registered by its app's module ``durable``."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from datetime import datetime, timedelta
from functools import cache
from typing import Any

from django.utils.module_loading import autodiscover_modules


@dataclass(frozen=True, slots=True)
class HeldWork:
    """A piece of work as the worker sees it that has its lease."""

    id: int
    kind: str
    key: str
    payload: Mapping[str, Any]
    #: Since it last succeeded, this one counted.
    attempt: int
    #: Whether the worker before let its lease run out, so it is probably dead.
    follows_lost: bool
    token: str
    lease: timedelta
    begun_at: datetime


class WorkFailed(Exception):
    """An attempt failed for a reason that the owner may read.

    ``is_final``: another attempt would fail as well.
    """

    def __init__(self, reason: str, *, is_final: bool = False) -> None:
        super().__init__(reason)
        self.reason, self.is_final = reason, is_final


@dataclass(frozen=True, slots=True)
class Failure:
    """What a kind's ``fail`` learns about an attempt that failed."""

    #: Sentence for the owner.
    reason: str
    error: Exception
    #: ``None``: nothing more is tried.
    retry_at: datetime | None


def _ignore_failure(work: HeldWork, failure: Failure, *, now: datetime) -> None:
    """The row of the work itself says enough."""


def _discard_nothing(result: Any) -> None:
    """All that ``do`` made is the result itself."""


@dataclass(frozen=True, slots=True)
class WorkKind:
    """How one kind of work is done: ``load``, ``do``, then ``apply`` or ``fail``."""

    #: Also the name of the Celery task that does it; the settings route it to a queue.
    name: str
    #: ``load(work)`` reads, in a transaction of its own, what ``do`` needs. ``None``: there is
    #: nothing to do any more, and the work is forgotten.
    load: Callable[[HeldWork], Any]
    #: ``do(work, loaded)`` acts on the outside world. No transaction is open. It may run twice.
    #: It raises ``WorkFailed`` for what the owner may read.
    do: Callable[[HeldWork, Any], Any]
    #: ``apply(work, loaded, result, now=)`` stores the result in a transaction that holds the
    #: lease, and returns when the work is due again, or ``None`` once it is done.
    apply: Callable[..., datetime | None]
    #: The wait by the number of failures in a row; ``None``: nothing more is tried.
    backoff: Callable[[int], timedelta | None]
    #: Longer than an attempt may take, or than the time between two calls of ``extend_lease``.
    lease: timedelta
    #: ``fail(work, failure, now=)`` stores a failed attempt in a transaction that holds the lease.
    fail: Callable[..., None] = _ignore_failure
    #: ``discard(result)`` deletes files that ``do`` stored, where nothing takes the result.
    discard: Callable[[Any], None] = _discard_nothing
    #: Pieces that one task takes. Where it is above 1, ``do`` runs in threads and must not use the
    #: database.
    batch: int = 1
    #: Pieces that all workers do at the same time, of everybody and of one owner.
    at_once: int | None = None
    at_once_per_owner: int | None = None


_KINDS: dict[str, WorkKind] = {}


def register_kind(kind: WorkKind) -> None:
    """Make a kind known. Call in the module ``durable`` of an app."""
    if kind.name in _KINDS:
        raise ValueError(f"There is a kind of work named {kind.name!r} already.")
    _KINDS[kind.name] = kind


@cache
def get_kinds() -> Mapping[str, WorkKind]:
    """All kinds by name."""
    autodiscover_modules("durable")
    return _KINDS
