"""The only row locks of durable work: a piece is locked before the rows that it is about."""

from __future__ import annotations

from contextlib import nullcontext
from datetime import datetime

from django.db import transaction

from marketplace.common.durable.kinds import HeldWork, WorkKind
from marketplace.common.ids import new_id
from marketplace.common.locks import advisory_lock
from marketplace.common.models import DurableWork, WorkState

#: The owners take turns; what a worker has counts among the pieces of its owner.
_DUE = """
SELECT id FROM (
  SELECT id, wanted_at, is_held, row_number() OVER (
           PARTITION BY owner ORDER BY is_held DESC, wanted_at, id) AS turn
  FROM (
    SELECT id, owner, coalesce(deadline, due_at) AS wanted_at,
           coalesce(lease_until > %(now)s, false) AS is_held
    FROM common_durablework
    WHERE kind = %(kind)s AND state = 'waiting' AND due_at <= %(now)s
    AND (%(key)s::text IS NULL OR key = %(key)s)
  ) AS due
) AS in_turn
WHERE NOT is_held AND (%(per_owner)s::int IS NULL OR turn <= %(per_owner)s)
ORDER BY turn, wanted_at, id LIMIT %(most)s
"""
_TAKEN = f"""
SELECT * FROM common_durablework
WHERE id IN ({_DUE}) AND state = 'waiting' AND (lease_until IS NULL OR lease_until <= %(now)s)
ORDER BY coalesce(deadline, due_at), id FOR UPDATE SKIP LOCKED
"""  # noqa: S608 (the names of columns are ours)


def take_due_work(kind: WorkKind, *, key: str | None, now: datetime) -> list[HeldWork]:
    """Take pieces of a kind that are due and that no worker has, under a new lease each.

    ``key``: this piece only.
    """
    is_limited = kind.at_once is not None
    # Two workers that count at the same time would take more than both may have.
    one_by_one = advisory_lock("durable", kind.name, wait=True) if is_limited else nullcontext()
    with transaction.atomic(durable=True), one_by_one:
        most = kind.batch
        if kind.at_once is not None:
            held = DurableWork.objects.filter(kind=kind.name, lease_until__gt=now)
            most = min(most, kind.at_once - held.count())
        values = {
            "kind": kind.name,
            "key": key,
            "now": now,
            "per_owner": kind.at_once_per_owner,
            "most": max(most, 0),
        }
        return [_lease(row, kind, now) for row in DurableWork.objects.raw(_TAKEN, values)]


def _lease(row: DurableWork, kind: WorkKind, now: datetime) -> HeldWork:
    follows_lost = row.lease_token != ""
    row.lease_token, row.lease_until = new_id("lease"), now + kind.lease
    row.attempts += 1
    row.save(update_fields=["lease_token", "lease_until", "attempts"])
    return HeldWork(
        id=row.pk,
        kind=row.kind,
        key=row.key,
        payload=row.payload,
        attempt=row.attempts,
        follows_lost=follows_lost,
        token=row.lease_token,
        lease=kind.lease,
        begun_at=now,
    )


def lock_held_work(work: HeldWork) -> DurableWork | None:
    """Lock a piece; ``None`` where another worker has it by now, or it is done."""
    held = DurableWork.objects.select_for_update().filter(pk=work.id, lease_token=work.token)
    return held.first()


def put_off_work(kind: str, *, until: datetime, now: datetime) -> None:
    """Let all pieces of a kind wait that are due and that no worker has."""
    due = DurableWork.objects.filter(
        kind=kind, state=WorkState.WAITING, due_at__lte=now, lease_until=None
    )
    free = due.select_for_update(skip_locked=True).values_list("pk", flat=True)
    DurableWork.objects.filter(pk__in=list(free)).update(due_at=until)
