"""Cells of jobs that ended, back on sale before anything else happens to their zone.

Only its lane changes a zone. So as its next turn begins, the prices are still those at which the
job ended, however long that turn was in coming, unless another was under way just then.
"""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Iterable
from dataclasses import replace
from fractions import Fraction
from typing import NamedTuple

from django.db import transaction
from django.db.models import Q

from marketplace.auction.book.reservations import release_reservations
from marketplace.auction.endings import describe_sale, find_undone, judge_ending
from marketplace.auction.give_backs import (
    UndoneWork,
    build_release,
    list_held,
    list_unreleased_jobs,
)
from marketplace.auction.lane.lane import Lane
from marketplace.auction.locks import lock_waiting_bids
from marketplace.auction.models import Bid, BidStatus
from marketplace.auction.models.bids import WAITING_FIELDS
from marketplace.auction.retries import put_off
from marketplace.fleet.selectors import slot_at
from marketplace.jobs.locks import lock_job
from marketplace.jobs.models import Job
from scheduler.auction.log import events
from scheduler.auction.log.outcomes import ReleasedCells, SoldAgain

#: Share of its work that a job has to have done for its bid to count in prices as one that won.
LEAST_PAID = Fraction(1, 2)
#: Seconds after which a turn, which others wait for, leaves the rest to the next. A job takes 30
#: ms, and as long as it takes to count its rows.
RELEASE_FOR_S = 1.0
BATCH_LIMIT = 200


class _Release(NamedTuple):
    event: events.CellsReleased
    undone: UndoneWork | None
    #: The same had its owner not held the job up; ``None``: nobody says so.
    undone_if_won: UndoneWork | None


def list_ended_jobs(lane: Lane) -> list[Job]:
    """Jobs whose cells are to go on sale now."""
    waiting = Bid.objects.filter(status=BidStatus.ADMITTED, retry_at__gt=lane.now)
    ended = list_unreleased_jobs().filter(zone=lane.zone).exclude(bid_id__in=waiting.values("pk"))
    return list(ended[:BATCH_LIMIT])


def release_ended_jobs(lane: Lane, ended: Iterable[Job]) -> None:
    """Put the cells of jobs that ended on sale, and note what is kept of those given back.

    Call before the slot and the fleet are brought up to date. A job for which that fails is tried
    again later, and holds up nothing.
    """
    ends_at = time.monotonic() + RELEASE_FOR_S
    for job in ended:
        if time.monotonic() >= ends_at:
            return
        try:
            with transaction.atomic():
                release = _prepare_release(lane, job)
        except Exception as error:
            put_off(job, error, now=lane.now)
            continue
        if release is not None:
            _release(lane, job, release)


def _prepare_release(lane: Lane, job: Job) -> _Release | None:
    """Build a job's entry.

    ``None`` while it ended in a slot that this turn does not know yet, and where it was settled
    since the turn began: its cells have passed.
    """
    job = lock_job(job.pk)
    assert job.finished_at is not None
    if job.settled_at is not None:
        return None
    slot = slot_at(lane.zone, job.finished_at)
    if slot > lane.slot:
        return None
    bid = Bid.objects.select_related("zone").get(pk=job.bid_id)
    first = max(slot, lane.head.slot) + 1
    rows = list_held(bid=bid, first_slot=first)
    if not rows:
        return None
    case = judge_ending(job)
    sold = describe_sale(bid, job, case, now=lane.now)
    undone = find_undone(bid, sold, case, slot=slot, first_slot=first)
    event = build_release(
        bid=bid,
        rows=rows,
        undone=undone,
        first_slot=first,
        promised_micros=bid.promised_micros,
    )
    event = replace(event, refunded=case.work.share < LEAST_PAID)
    # What the engine cannot answer fails here, before it can change the zone.
    lane.book.engine.replica().transition(event)
    won = replace(case, is_own_delay=False)
    undone_if_won = (
        find_undone(bid, sold, won, slot=slot, first_slot=first) if case.is_own_delay else None
    )
    return _Release(event, undone, undone_if_won)


def _release(lane: Lane, job: Job, release: _Release) -> None:
    assert job.finished_at is not None
    outcome = lane.apply(release.event).outcome
    assert isinstance(outcome, ReleasedCells)
    slots = [cell.slot for cell in release.event.cells]
    release_reservations(bid_id=job.bid_id, which=Q(slot__in=slots), now=job.finished_at)
    if release.undone is not None:
        undone, won = release.undone, release.undone_if_won
        Bid.objects.filter(pk=job.bid_id).update(
            kept_micros=undone.compute_kept(outcome.refund),
            kept_if_won_micros=won and undone.compute_kept_if_won(outcome.refund, won=won),
            waits_micros=outcome.waits,
        )


def note_sold_again(sold: Iterable[SoldAgain]) -> None:
    """Keep less of jobs of which cells that begin now were sold again.

    Nothing changes for those that did not wait for it and are settled: nothing of them waits.
    """
    waited: Counter[str] = Counter()
    back: Counter[str] = Counter()
    for cell in sold:
        waited[cell.task_id] += cell.waited
        back[cell.task_id] += cell.rent
    bids = lock_waiting_bids(bid_ids=waited)
    for bid in bids:
        bid.give_waiting_back(back[bid.pk], of_micros=waited[bid.pk])
    Bid.objects.bulk_update(bids, WAITING_FIELDS, batch_size=1000)
