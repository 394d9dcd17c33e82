"""Pausing a job: it ends as a cancelled one does, and keeps what another may go on from."""

from __future__ import annotations

from datetime import datetime

from marketplace.accounts.models import User
from marketplace.auction.cancelling import cancel_sold_job
from marketplace.auction.models import Bid
from marketplace.common.errors import Conflict
from marketplace.jobs.models import Job
from marketplace.jobs.services import check_pausable


def pause_sold_job(
    *, job: Job, paused_by: User | None, now: datetime, at_least_micros: int | None = None
) -> Job:
    """End a job for now at its owner's wish, with what comes back as ``cancel_sold_job`` has it.

    A bid for ``resume:JOB`` goes on from its last checkpoint. Steps after that are done again.

    Raises
    ------
    Conflict
        ``not_pausable``, or as ``cancel_sold_job``. Nothing has changed then.
    """
    check_can_pause(job)
    return cancel_sold_job(
        job=job, cancelled_by=paused_by, now=now, at_least_micros=at_least_micros, is_pause=True
    )


def can_pause(job: Job) -> bool:
    """Whether an active job can be paused as it stands."""
    try:
        check_can_pause(job)
    except Conflict:
        return False
    return True


def check_can_pause(job: Job) -> None:
    """Refuse what nothing could go on from; that may change until the job is locked.

    Raises
    ------
    Conflict
        ``not_pausable``.
    """
    if Bid.objects.filter(pk=job.bid_id, slo_s__isnull=False).exists():
        raise Conflict(
            "not_pausable", "An express job holds a seat for all of its work. Cancel it instead."
        )
    check_pausable(job)
