"""An owner's cancellation of a job that was sold, and what it would get back."""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from datetime import datetime

from django.db import transaction

from marketplace.accounts.models import User
from marketplace.auction.book.engine_cache import LogBroken, read_book
from marketplace.auction.endings import (
    EndedJob,
    compute_excess,
    describe_sale,
    find_undone,
    judge_stopping,
    may_give_back,
)
from marketplace.auction.give_backs import (
    UndoneWork,
    build_release,
    list_earlier_releases,
    list_held,
)
from marketplace.auction.models import Bid
from marketplace.auction.pay_rule import HouseLimits, SoldJob, compute_settlement
from marketplace.common.errors import Conflict
from marketplace.common.money import format_usd_exact
from marketplace.fleet.selectors import slot_at
from marketplace.jobs.locks import lock_job
from marketplace.jobs.models import Job
from marketplace.jobs.services import cancel_job
from scheduler.auction.log.outcomes import ReleasedCells


def cancel_sold_job(
    *,
    job: Job,
    cancelled_by: User | None,
    now: datetime,
    at_least_micros: int | None = None,
    is_pause: bool = False,
) -> Job:
    """End a job at its owner's wish.

    The zone's next turn puts its cells on sale again, at the prices that the log has now. The lane
    is not entered here: nobody has to wait for it, or for it to be well, to end a job.
    ``at_least_micros`` is what the owner was shown.

    Raises
    ------
    Conflict
        ``job_ended``: as ``cancel_job``; ``refund_changed``: less would go back than was shown;
        ``refund_unknown``: as ``quote_cancelling``. Nothing has changed then.
    """
    if at_least_micros is not None and job.is_active:
        # A process that has not read the zone yet takes a while; nothing is locked meanwhile.
        quote_cancelling(
            bid=Bid.objects.select_related("zone").get(pk=job.bid_id), job=job, now=now
        )
    with transaction.atomic():
        if at_least_micros is not None:
            # Its node reports no work meanwhile.
            job = lock_job(job.pk)
            if job.is_active:
                # A turn of the lane that goes on now may move prices.
                promised = _find_promise(job, at_least_micros, now=now)
                Bid.objects.filter(pk=job.bid_id).update(promised_micros=promised)
        return cancel_job(job=job, cancelled_by=cancelled_by, now=now, is_pause=is_pause)


def _find_promise(job: Job, at_least_micros: int, *, now: datetime) -> int:
    """What the log has to give back for the job's cells at least."""
    bid = Bid.objects.select_related("zone").get(pk=job.bid_id)
    due = quote_cancelling(bid=bid, job=job, now=now)
    if due.refund_micros < at_least_micros:
        raise Conflict(
            "refund_changed",
            f"{format_usd_exact(due.refund_micros)} would go back now, not "
            f"{format_usd_exact(at_least_micros)}. The job goes on.",
            extra={"refund_micros": due.refund_micros},
        )
    return due.promised_micros


@dataclass(frozen=True, slots=True)
class CancelQuote:
    """What cancelling a job now does to its owner's money, micro-dollars."""

    refund_micros: int
    #: Of what is not returned, what is kept beyond the work that was done.
    kept_micros: int
    #: What was paid for the work that was done.
    used_micros: int
    #: What the log would say goes back for its cells; 0 where it would say nothing.
    promised_micros: int = field(default=0, compare=False)
    #: What was kept of cells that it gave back before.
    kept_before_micros: int = 0
    #: Of what is kept, what goes back if all cells that begin soon are sold again.
    waits_micros: int = 0


def quote_cancelling(*, bid: Bid, job: Job, now: datetime) -> CancelQuote:
    """What the owner would get back by cancelling now.

    Raises
    ------
    Conflict
        ``refund_unknown``: the zone's log cannot be read, and so no price of it.
    """
    case = judge_stopping(job, at=now)
    sold = describe_sale(bid, job, case, now=now)
    try:
        undone, released = _try_release(bid, sold, case, now=now)
    except LogBroken as error:
        raise Conflict(
            "refund_unknown",
            "Prices of this zone cannot be read now. Cancel without an amount to end the job at "
            "once; what goes back is found when they can.",
        ) from error
    refund = None if released is None else released.refund
    kept = 0 if undone is None else undone.compute_kept(refund)
    # A machine's start may leave less to go back than waits.
    due, if_sold = (
        compute_settlement(
            sold=replace(sold, kept_micros=less),
            work=case.work,
            ending=case.ending,
            at_fault=case.at_fault,
            limits=HouseLimits(),
        )
        for less in (kept, kept - (0 if released is None else released.waits))
    )
    back = due.refund_micros + compute_excess(bid=bid, case=case, due=due)
    return CancelQuote(
        back,
        due.kept_micros,
        used_micros=sold.payment_micros - back - due.kept_micros,
        promised_micros=refund or 0,
        kept_before_micros=sold.given_back_kept_micros,
        waits_micros=if_sold.refund_micros - due.refund_micros,
    )


def _try_release(
    bid: Bid, sold: SoldJob, case: EndedJob, *, now: datetime
) -> tuple[UndoneWork | None, ReleasedCells | None]:
    """What is left of a job, and what the log would say of its cells, if it ended now."""
    if not may_give_back(bid, case):
        return None, None
    with read_book(zone=bid.zone, now=now) as book:
        engine = book.engine.replica()
    slot = slot_at(bid.zone, now)
    first = max(slot, engine.horizon.first_slot) + 1
    undone = find_undone(bid, sold, case, slot=slot, first_slot=first)
    rows = list_held(bid=bid, first_slot=first)
    if undone is None or not rows:
        return undone, None
    for release in list_earlier_releases(bid.zone, first_slot=first):
        engine.transition(release)
    event = build_release(bid=bid, rows=rows, undone=undone, slot=slot, first_slot=first)
    outcome = engine.transition(event)
    assert isinstance(outcome, ReleasedCells)
    return undone, outcome
