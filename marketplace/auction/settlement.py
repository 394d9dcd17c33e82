"""The money of jobs that ended. Every effect is named by the bid's hold and may be asked for twice.

Stated policy:

- **Succeeded**: the payment was fixed at admission and stays, also when the job
  was done early. Late: the house pays a credit, ``SLA_CREDIT_PERCENT`` of the payment.
- **Failed by the house**: the whole payment is refunded.
- **Failed by its owner's input, or cancelled**: cells that ran are paid for; the
  payment's share of the others is refunded.
- **Providers** are paid their ask for every cell that ran, whatever became of
  the job; a cell in which the node fell silent or failed did not run.
"""

from __future__ import annotations

import logging
import math
from collections import defaultdict
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from datetime import datetime
from fractions import Fraction

from django.conf import settings
from django.db import transaction
from django.db.models import Max, Q

from marketplace.auction.book.reservations import release_reservations
from marketplace.auction.lane.enter import enter_lane
from marketplace.auction.models import Bid, Reservation
from marketplace.common.money import format_usd
from marketplace.fleet.models import Node, Zone
from marketplace.fleet.selectors import slot_at
from marketplace.jobs.locks import lock_job
from marketplace.jobs.models import EventKind, FaultOf, Job, JobStatus, Slice, SliceStatus
from marketplace.jobs.selectors import list_unsettled_jobs
from marketplace.jobs.services import (
    SliceOutcome,
    add_job_event,
    finish_slice,
    mark_job_settled,
)
from marketplace.payments.earnings import Share, distribute_charge
from marketplace.payments.services import pay_sla_credit, refund_charge
from scheduler.auction.log import events
from scheduler.types import Cell
from workers.protocol.messages import Fault, SliceResult

log = logging.getLogger(__name__)

#: What delays a job, as its history tells it, and how many of these its owner is told.
_HELD_UP = (EventKind.NODE_LOST, EventKind.FAULT, EventKind.REPLAN_WANTED)
CAUSES_TOLD = 3
#: Jobs of one run; the next sweep takes the rest.
BATCH_LIMIT = 200


@dataclass(frozen=True, slots=True)
class UsedCells:
    """What a job used of what was bought for it."""

    #: Cells that ran, of the job's present and former plans.
    cells: tuple[Reservation, ...]
    #: Share of the bought work they make up, at most 1.
    share: Fraction


@dataclass(frozen=True, slots=True)
class Settlement:
    """What is due when a job ends as it did."""

    #: Given back to the owner out of the payment.
    refund_micros: int
    #: Paid to the owner by the house.
    credit_micros: int
    shares: tuple[Share, ...]
    #: Why money goes back; empty when none does.
    reason: str


def slice_result_apply(*, node: Node, result: SliceResult, now: datetime) -> SliceOutcome:
    """Take in how a slice ended; an ended job is settled by the task its end wakes."""
    return finish_slice(node=node, result=result, now=now)


def settle_finished(*, now: datetime) -> int:
    """Put the unused cells of ended jobs back on sale and settle their money; how many jobs."""
    jobs = list(list_unsettled_jobs()[:BATCH_LIMIT])
    by_zone: defaultdict[Zone, list[Job]] = defaultdict(list)
    for job in jobs:
        by_zone[job.zone].append(job)
    settled = 0
    for zone, ended in by_zone.items():
        release_unused_cells(zone=zone, jobs=ended, now=now)
        for job in ended:
            try:
                settle_job(job=job, now=now)
                settled += 1
            except Exception:
                # One job that cannot be settled must not keep the others waiting.
                log.exception("job %s could not be settled; it is tried again", job.pk)
    return settled


def release_unused_cells(*, zone: Zone, jobs: Sequence[Job], now: datetime) -> None:
    """Give the cells that ended jobs still hold back to the market."""
    bid_ids = [job.bid_id for job in jobs]
    held = Reservation.objects.filter(
        bid_id__in=bid_ids, released_at__isnull=True, slot__gt=slot_at(zone, now)
    )
    if not held.exists():
        return
    with enter_lane(zone=zone, now=now) as lane:
        cells: defaultdict[str, list[Cell]] = defaultdict(list)
        for row in held.filter(slot__gte=lane.first_free_slot).order_by("bid_id", "slot"):
            cells[row.bid_id].append(Cell(slot=row.slot, node=row.node_id))
        for bid_id, own in cells.items():
            lane.apply(events.CellsReleased(task_id=bid_id, cells=tuple(own)))
            release_reservations(bid_id=bid_id, which=Q(slot__gte=lane.first_free_slot), now=now)


def settle_job(*, job: Job, now: datetime) -> Settlement | None:
    """Move the money of one ended job, once; ``None`` when it was done before."""
    with transaction.atomic():
        job = lock_job(job.pk)
        if job.settled_at is not None or job.finished_at is None:
            return None
        bid = Bid.objects.select_for_update(of=("self",)).get(pk=job.bid_id)
        due = compute_settlement(bid=bid, job=job)
        if due.refund_micros:
            refund_charge(
                hold_reference=bid.hold_reference,
                amount_micros=due.refund_micros,
                reason=due.reason,
                now=now,
            )
        if due.credit_micros:
            pay_sla_credit(
                organisation=job.organisation,
                amount_micros=due.credit_micros,
                reference=bid.hold_reference,
                reason=due.reason,
                now=now,
            )
        distribute_charge(hold_reference=bid.hold_reference, shares=due.shares, now=now)
        bid.refund_micros, bid.credit_micros = due.refund_micros, due.credit_micros
        bid.save(update_fields=["refund_micros", "credit_micros"])
        _events_add(job, due, now)
        mark_job_settled(job=job, now=now, message=_summary(bid, due))
    return due


def compute_settlement(*, bid: Bid, job: Job) -> Settlement:
    """What the stated policy makes of a job as it ended; changes nothing."""
    assert bid.payment_micros is not None
    assert job.finished_at is not None
    ran = find_used_cells(bid=bid, job=job)
    refund, credit, reason = 0, 0, ""
    if job.status == JobStatus.SUCCEEDED:
        if job.finished_at > job.deadline_at:
            credit = bid.payment_micros * settings.SLA_CREDIT_PERCENT // 100
            reason = "Credit for the missed deadline"
    elif job.status == JobStatus.FAILED and job.fault == FaultOf.SYSTEM:
        refund, reason = bid.payment_micros, "The house failed the job"
    else:
        refund, reason = compute_unused_refund(bid, ran), "Cells that were not used"
    return Settlement(
        refund_micros=refund, credit_micros=credit, shares=tuple(_shares(ran.cells)), reason=reason
    )


def compute_cancel_refund(*, bid: Bid, job: Job) -> int:
    """What the owner would get back by cancelling now, for the page that asks."""
    return compute_unused_refund(bid, find_used_cells(bid=bid, job=job))


def compute_unused_refund(bid: Bid, ran: UsedCells) -> int:
    """The payment less its share for the cells that ran, rounded in the house's favour."""
    assert bid.payment_micros is not None
    return bid.payment_micros - math.ceil(bid.payment_micros * ran.share)


def find_used_cells(*, bid: Bid, job: Job) -> UsedCells:
    """Which cells of a job ran, judged by the leases its nodes held."""
    rows = list(Reservation.objects.filter(bid=bid).select_related("node__provider").order_by("pk"))
    slices = list(
        Slice.objects.filter(job=job).select_related("node").annotate(heard_at=Max("metrics__at"))
    )
    ran = {row.slot: row for row in rows if any(_covers(held, row, bid.zone) for held in slices)}
    # The rows of the decision were written first; later plans came on top.
    bought = sum((Fraction(row.samples) for row in rows[: len(bid.cells or ())]), Fraction(0))
    used = sum((Fraction(row.samples) for row in ran.values()), Fraction(0))
    share = min(Fraction(1), used / bought) if bought else Fraction(1)
    return UsedCells(cells=tuple(ran.values()), share=share)


def _covers(held: Slice, row: Reservation, zone: Zone) -> bool:
    """Whether a lease shows that the cell ran."""
    if held.node_id != row.node_id or not held.first_slot <= row.slot <= held.last_slot:
        return False
    if held.closed_at is None:
        return True
    if held.status == SliceStatus.LOST:
        heard_at = held.heard_at or held.acknowledged_at or held.opened_at  # type: ignore[attr-defined]
        return row.slot < slot_at(zone, heard_at)
    closed = slot_at(zone, held.closed_at)
    if held.status == SliceStatus.FAILED and (held.result or {}).get("fault") != Fault.USER:
        return row.slot < closed
    return row.slot <= closed


def _shares(cells: Iterable[Reservation]) -> list[Share]:
    owed: defaultdict[str, int] = defaultdict(int)
    for cell in cells:
        owed[cell.node.provider.organisation_id] += cell.operational_cost_micros
    return [
        Share(organisation_id=organisation_id, amount_micros=amount)
        for organisation_id, amount in sorted(owed.items())
        if amount
    ]


def _events_add(job: Job, due: Settlement, now: datetime) -> None:
    for amount in (due.refund_micros, due.credit_micros):
        if amount:
            add_job_event(
                job=job,
                kind=EventKind.REFUNDED,
                message=f"{due.reason}: {format_usd(amount)} went back to your wallet.",
                data={"amount_micros": amount},
                now=now,
            )
    if due.credit_micros:
        _lateness_explain(job, now)


def _lateness_explain(job: Job, now: datetime) -> None:
    """Tell the owner of a late job by how much it missed its deadline, and what held it up."""
    assert job.finished_at is not None
    late_s = (job.finished_at - job.deadline_at).total_seconds()
    held_up = job.events.filter(kind__in=_HELD_UP, at__lte=job.finished_at).order_by("seq")
    causes = [event.message for event in held_up if event.data.get("is_trouble", True)]
    words = " ".join(causes[:CAUSES_TOLD]) or "It ran slower than its plan."
    more = len(causes) - CAUSES_TOLD
    add_job_event(
        job=job,
        kind=EventKind.SETTLED,
        message=f"Ended {late_s:.0f} s after its deadline. What held it up: {words}"
        + (f" And {more} more." if more > 0 else ""),
        data={"late_s": late_s, "causes": causes},
        now=now,
    )


def _summary(bid: Bid, due: Settlement) -> str:
    assert bid.payment_micros is not None
    kept = bid.payment_micros - due.refund_micros
    return f"Settled: {format_usd(kept)} of {format_usd(bid.payment_micros)} was used."
