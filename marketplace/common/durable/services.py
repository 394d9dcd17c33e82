"""Asking for work, and changing when it is done."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field
from datetime import datetime, timedelta
from typing import Any

from django.db import transaction
from django.db.models import Q

from marketplace.common.durable.kinds import HeldWork, WorkKind, get_kinds
from marketplace.common.models import DurableWork, WorkState
from marketplace.common.queue import enqueue

#: The operator sees failed work for this time.
FAILED_FOR = timedelta(days=30)
#: A wake-up that waited for longer is dropped; the next sweep sends another.
_WAKE_EXPIRES_S = 30.0
#: Columns of a piece that begins again.
_FRESH = {"state": WorkState.WAITING, "attempts": 0, "lease_token": "", "lease_until": None}


@dataclass(frozen=True, slots=True)
class NewWork:
    """Something to do once: ``key`` names it within its kind."""

    kind: str
    key: str
    due_at: datetime
    payload: dict[str, Any] = field(default_factory=dict)
    #: Whose it is: where work waits, owners take turns.
    owner: str = ""
    #: Until when it is wanted; where work waits, the earliest goes first. None: it counts as due.
    deadline: datetime | None = None


def enqueue_work(*works: NewWork) -> None:
    """Have work done after the commit; what waits already under its key stays as it is."""
    schedule_work(*works)
    _wake({work.kind for work in works})


def schedule_work(*works: NewWork) -> None:
    """Have work done that is not due yet: the sweep finds it then."""
    DurableWork.objects.bulk_create(map(_build_row, works), ignore_conflicts=True)


def restart_work(work: NewWork) -> None:
    """Have work done as if it were new; what a worker that has it finds is not stored."""
    DurableWork.objects.bulk_create(
        [_build_row(work)],
        update_conflicts=True,
        unique_fields=["kind", "key"],
        update_fields=["due_at", "deadline", "payload", "owner", "last_error", *_FRESH],
    )
    _wake({work.kind})


def _build_row(work: NewWork) -> DurableWork:
    return DurableWork(
        kind=work.kind,
        key=work.key,
        due_at=work.due_at,
        payload=work.payload,
        owner=work.owner,
        deadline=work.deadline,
    )


def try_again(*, work_id: int, now: datetime) -> bool:
    """Do work that failed now; whether there is such, and no worker has it."""
    with transaction.atomic():
        troubled = DurableWork.objects.filter(pk=work_id).exclude(last_error="")
        free = troubled.filter(Q(lease_until=None) | Q(lease_until__lte=now))
        kind = free.values_list("kind", flat=True).first()
        is_found = kind is not None and free.update(due_at=now, **_FRESH) == 1
        if kind is not None and is_found:
            _wake({kind})
    return is_found


def extend_lease(work: HeldWork, *, now: datetime) -> bool:
    """Keep the lease during a long ``do``; false once another worker has the work."""
    held = DurableWork.objects.filter(pk=work.id, lease_token=work.token)
    return held.update(lease_until=now + work.lease) == 1


def sweep_work(*, now: datetime) -> None:
    """Wake a worker for each kind of which something is due, and forget old failures."""
    waiting = DurableWork.objects.filter(state=WorkState.WAITING, due_at__lte=now)
    free = waiting.filter(Q(lease_until=None) | Q(lease_until__lte=now))
    with transaction.atomic():
        _wake(set(free.values_list("kind", flat=True).distinct()) & set(get_kinds()))
    old = DurableWork.objects.filter(state=WorkState.FAILED, due_at__lte=now - FAILED_FOR)
    old.delete()


def wake(kind: WorkKind) -> None:
    """Send one more task for a kind of which more may be due."""
    _wake({kind.name})


def _wake(kinds: Iterable[str]) -> None:
    for kind in sorted(kinds):
        enqueue(kind, expires_s=_WAKE_EXPIRES_S)
