"""What the operator reads of durable work."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import datetime, timedelta

from django.db.models import Count, Q

from marketplace.common.durable.kinds import get_kinds
from marketplace.common.models import DurableWork, WorkState

#: Work that is due for longer waits for a worker.
LATE_AFTER = timedelta(minutes=1)


@dataclass(frozen=True, slots=True)
class KindSummary:
    """How much of a kind there is."""

    kind: str
    waiting: int = 0
    running: int = 0
    late: int = 0
    failed: int = 0


def summarize_kinds(*, now: datetime, late_after: timedelta = LATE_AFTER) -> list[KindSummary]:
    """Count the work of each kind, and of kinds that this version does not know any more."""
    is_waiting = Q(state=WorkState.WAITING)
    is_held = Q(lease_until__gt=now)
    counted = DurableWork.objects.values("kind").annotate(
        waiting=Count("pk", is_waiting & ~is_held),
        running=Count("pk", is_held),
        late=Count("pk", is_waiting & ~is_held & Q(due_at__lte=now - late_after)),
        failed=Count("pk", Q(state=WorkState.FAILED)),
    )
    known = {name: KindSummary(name) for name in get_kinds()}
    known |= {row["kind"]: KindSummary(**row) for row in counted}
    return [known[name] for name in sorted(known)]


def is_begun(kind: str, key: str) -> bool:
    """Whether a worker has taken a piece of work that is neither done yet nor given up."""
    begun = DurableWork.objects.filter(kind=kind, key=key, attempts__gt=0)
    return begun.exclude(state=WorkState.FAILED).exists()


def list_troubled_work(*, limit: int) -> list[DurableWork]:
    """Work whose last attempt failed, what is given up first."""
    troubled = DurableWork.objects.exclude(last_error="")
    return list(troubled.order_by("state", "due_at", "pk")[:limit])
