"""Cells of jobs that ended, back on sale before anything else happens to their zone.

Only its lane changes a zone. So as its next turn begins, the prices are still those at which the
job ended, however long that turn was in coming, unless another was under way just then.
"""

from __future__ import annotations

import math
import time
from collections.abc import Iterable
from dataclasses import replace
from fractions import Fraction
from typing import NamedTuple

from django.db import transaction
from django.db.models import F, Q

from marketplace.auction.book.reservations import release_reservations
from marketplace.auction.endings import EndedJob, describe_sale, find_undone, judge_ending
from marketplace.auction.give_backs import (
    UndoneWork,
    build_release,
    list_held,
    list_unreleased_jobs,
)
from marketplace.auction.lane.lane import Lane
from marketplace.auction.models import Bid, BidStatus, Reservation
from marketplace.auction.pay_rule import Ending
from marketplace.auction.retries import put_off
from marketplace.fleet.selectors import slot_at, slot_starts_at
from marketplace.jobs.locks import lock_job
from marketplace.jobs.models import Job
from marketplace.jobs.queries import has_unsettled_jobs
from scheduler.auction.log import events
from scheduler.auction.log.outcomes import ReleasedCells, SoldAgain
from scheduler.types import Cell

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
    if not has_unsettled_jobs(zone_id=lane.zone.pk):
        return []
    waiting = Bid.objects.filter(status=BidStatus.ADMITTED, retry_at__gt=lane.now)
    ended = list_unreleased_jobs().filter(zone=lane.zone).exclude(bid_id__in=waiting.values("pk"))
    ended = ended.order_by("finished_at", "pk")
    found = list(ended[:BATCH_LIMIT])
    if len(found) == BATCH_LIMIT and _is_overdue(lane, found[-1]):
        return list(ended.filter(finished_at__lt=slot_starts_at(lane.zone, lane.slot - 1)))
    return found


def _is_overdue(lane: Lane, job: Job) -> bool:
    """Whether a whole slot has passed since the one in which a job ended.

    Its cells after the next one's were to be on sale by now, however many other jobs ended with it.
    """
    assert job.finished_at is not None
    return slot_at(lane.zone, job.finished_at) + 1 < lane.slot


def release_ended_jobs(lane: Lane, ended: Iterable[Job]) -> None:
    """Put the cells of jobs that ended on sale, and note what is kept of those given back.

    Call before the slot and the fleet are brought up to date, with the jobs that ended first first.
    A job for which that fails is tried again later, and holds up nothing.
    """
    ends_at = time.monotonic() + RELEASE_FOR_S
    for job in ended:
        if time.monotonic() >= ends_at and not _is_overdue(lane, job):
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
        slot=slot,
        first_slot=first,
        promised_micros=bid.promised_micros,
        paid_share=_find_paid_share(bid, case),
    )
    event = replace(event, refunded=case.work.share < LEAST_PAID)
    # What the engine cannot answer fails here, before it can change the zone.
    lane.book.engine.replica().transition(event)
    won = replace(case, is_own_delay=False)
    undone_if_won = (
        find_undone(bid, sold, won, slot=slot, first_slot=first) if case.is_own_delay else None
    )
    return _Release(event, undone, undone_if_won)


def _find_paid_share(bid: Bid, case: EndedJob) -> Fraction:
    """Find the part of a job's price that its owner pays, as far as the log has to know it."""
    is_failed = case.ending is Ending.FAILED_BY_HOUSE and bid.organisation_id not in case.at_fault
    return Fraction(0) if is_failed else case.work.share


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
            waits_micros=F("waits_micros") + outcome.waits,
        )


def note_sold_again(sold: Iterable[SoldAgain]) -> None:
    """Note of cells that were given back, and begin now, what the log says of their rent.

    What stays of it is for the provider, up to what it asked for the room that nobody has. A job
    may have given a cell back twice: it was planned there again between data that did not need it
    and its end.
    """
    said: dict[tuple[str, Cell], SoldAgain] = {}
    for one in sold:
        key = one.task_id, one.cell
        said[key] = _add(said[key], one) if key in said else one
    if not said:
        return
    rows = Reservation.objects.filter(
        bid_id__in={task_id for task_id, _ in said},
        slot__in={cell.slot for _, cell in said},
        released_at__isnull=False,
    )
    latest: dict[tuple[str, Cell], Reservation] = {}
    for row in rows.order_by("revision", "pk"):
        latest[row.bid_id, Cell(row.slot, row.node_id)] = row
    noted = [(latest[key], one) for key, one in said.items() if key in latest]
    for row, one in noted:
        unsold = min(one.unsold, row.samples)
        asked = math.floor(row.operational_cost_micros * unsold / row.samples)
        row.waited_micros, row.resold_micros = one.waited, one.rent
        row.idle_micros = min(one.waited - one.rent, asked)
    fields = ["waited_micros", "resold_micros", "idle_micros"]
    Reservation.objects.bulk_update([row for row, _ in noted], fields, batch_size=1000)


def _add(one: SoldAgain, other: SoldAgain) -> SoldAgain:
    return replace(
        one,
        waited=one.waited + other.waited,
        rent=one.rent + other.rent,
        unsold=one.unsold + other.unsold,
    )
