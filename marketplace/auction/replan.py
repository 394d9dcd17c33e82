"""New plans for admitted jobs whose cells were lost, at no cost to their owners."""

from __future__ import annotations

from django.db.models import Q

from marketplace.auction.book import commitment_salt
from marketplace.auction.lane_state import Lane
from marketplace.auction.models import Bid
from marketplace.auction.reservations import (
    reservation_rows,
    reservations_insert,
    reservations_release,
)
from marketplace.fleet.selectors import last_slot_until
from marketplace.jobs.models import FaultOf, Job
from marketplace.jobs.selectors import (
    is_replan_wanted,
    job_work,
    jobs_to_replan,
    work_left_share,
)
from marketplace.jobs.services import job_cells_replace, job_fail, job_replan_request
from scheduler import types as scheduler
from scheduler.auction import Replan, events

#: So that a job that is all but done still gets a cell to finish in.
LEAST_WORK_SHARE = 1e-3


def lost_cells_record(lane: Lane) -> None:
    """Note the cells that jobs lost with nodes, and mark those jobs for a new plan."""
    for dropped in lane.dropped:
        slots = [cell.slot for cell in dropped.cells]
        reservations_release(bid_id=dropped.task_id, which=Q(slot__in=slots), now=lane.now)
        Bid.objects.filter(pk=dropped.task_id).update(replanned_slot=None)
        job = Job.objects.filter(bid_id=dropped.task_id).first()
        if job is not None:
            nodes = ", ".join(sorted({cell.node for cell in dropped.cells}))
            job_replan_request(
                job=job, reason=f"Cells on {nodes} were lost; looking for others.", now=lane.now
            )
    lane.dropped.clear()


def jobs_replan_in(lane: Lane) -> int:
    """Find new cells for the jobs of the zone that need them; how many were looked at.

    The jobs that must end first choose first. A job for which nothing is to be
    had is tried again each slot until its deadline.
    """
    if not is_replan_wanted(lane.zone):
        # As a rule; asking so costs a fraction of what reading them does.
        return 0
    waiting = sorted(jobs_to_replan(lane.zone), key=lambda job: (job.deadline_at, job.pk))
    bids = Bid.objects.in_bulk([job.bid_id for job in waiting])
    tried = 0
    for job in waiting:
        bid = bids[job.bid_id]
        if bid.replanned_slot is not None and bid.replanned_slot >= lane.slot:
            continue
        tried += 1
        _job_replan(lane, job, bid)
    return tried


def _job_replan(lane: Lane, job: Job, bid: Bid) -> None:
    task = _task_left(lane, job, bid)
    outcome = lane.apply(
        events.TaskReplanned(task=task, slot=lane.first_free_slot, salt=commitment_salt())
    ).outcome
    assert isinstance(outcome, Replan)
    # Only what found nothing waits for the next slot; new trouble is looked at at once.
    bid.replanned_slot = lane.slot if outcome.schedule is None else None
    bid.save(update_fields=["replanned_slot"])
    reservations_release(bid_id=bid.pk, which=Q(slot__gte=lane.first_free_slot), now=lane.now)
    if outcome.schedule is None:
        if lane.now >= job.deadline_at:
            job_fail(
                job=job,
                fault=FaultOf.SYSTEM,
                reason="No node is left that could finish this job; its payment is refunded.",
                now=lane.now,
            )
        return
    reservations_insert(
        reservation_rows(
            bid_id=bid.pk,
            zone_id=bid.zone_id,
            memory_gb=bid.memory_demand_gb,
            cells=outcome.schedule.cells,
            rates=task.rates,
            nodes=lane.book.nodes,
        )
    )
    job_cells_replace(job=job, cells=outcome.schedule.cells, reason=_words(outcome), now=lane.now)


def _task_left(lane: Lane, job: Job, bid: Bid) -> scheduler.Task:
    """What is left of a job, at the speeds known now."""
    work = job_work(job)
    share = max(work_left_share(job), LEAST_WORK_SHARE)
    return scheduler.Task(
        id=bid.pk,
        arrival_slot=lane.first_free_slot,
        deadline_slot=last_slot_until(lane.zone, bid.deadline_at),
        compute_demand=work.compute_demand * share,
        memory_demand=bid.memory_demand_gb,
        bid=float(bid.price_micros),
        rates=dict(sorted(work.rates.items())),
    )


def _words(outcome: Replan) -> str:
    assert outcome.schedule is not None
    nodes = ", ".join(sorted({cell.node for cell in outcome.schedule.cells}))
    text = f"Planned again on {nodes}, at no cost to you"
    if not outcome.complete:
        return f"{text}; not all of the work has a place yet."
    if outcome.late:
        return f"{text}; it ends after the deadline, for which you get a credit."
    return f"{text}; the deadline stands."
