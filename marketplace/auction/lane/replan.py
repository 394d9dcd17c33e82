"""New plans for admitted jobs whose cells were lost, at no cost to their owners."""

from __future__ import annotations

from django.db.models import Q

from marketplace.auction.book.engine_cache import commitment_salt
from marketplace.auction.book.reservations import (
    build_reservation_rows,
    insert_reservations,
    release_reservations,
)
from marketplace.auction.lane.lane import Lane
from marketplace.auction.models import Bid
from marketplace.fleet.selectors import last_slot_until
from marketplace.jobs.models import FaultOf, Job
from marketplace.jobs.queries import is_replan_wanted
from marketplace.jobs.selectors import (
    compute_work_left_share,
    list_jobs_to_replan,
    measure_job_work,
)
from marketplace.jobs.services import fail_job, replace_job_cells, request_job_replan
from scheduler import types as scheduler
from scheduler.auction import Replan
from scheduler.auction.log import events

#: So that a job that is all but done still gets a cell to finish in.
LEAST_WORK_SHARE = 1e-3


def record_lost_cells(lane: Lane) -> None:
    """Note the cells that jobs lost with nodes, and mark those jobs for a new plan."""
    for dropped in lane.dropped:
        slots = [cell.slot for cell in dropped.cells]
        release_reservations(bid_id=dropped.task_id, which=Q(slot__in=slots), now=lane.now)
        Bid.objects.filter(pk=dropped.task_id).update(replanned_slot=None)
        job = Job.objects.filter(bid_id=dropped.task_id).first()
        if job is not None:
            nodes = ", ".join(sorted({cell.node for cell in dropped.cells}))
            request_job_replan(
                job=job, reason=f"Cells on {nodes} were lost; looking for others.", now=lane.now
            )
    lane.dropped.clear()


def replan_jobs(lane: Lane) -> int:
    """Find new cells for the jobs of the zone that need them; how many were looked at.

    The jobs that must end first choose first. A job for which nothing is to be
    had is tried again each slot until its deadline.
    """
    if not is_replan_wanted(zone_id=lane.zone.pk):
        # As a rule; asking so costs a fraction of what reading them does.
        return 0
    waiting = sorted(list_jobs_to_replan(lane.zone), key=lambda job: (job.deadline_at, job.pk))
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
    release_reservations(bid_id=bid.pk, which=Q(slot__gte=lane.first_free_slot), now=lane.now)
    if outcome.schedule is None:
        if lane.now >= job.deadline_at:
            fail_job(
                job=job,
                fault=FaultOf.SYSTEM,
                reason="No node is left that could finish this job; its payment is refunded.",
                now=lane.now,
            )
        return
    insert_reservations(
        build_reservation_rows(
            bid_id=bid.pk,
            zone_id=bid.zone_id,
            memory_gb=bid.memory_demand_gb,
            cells=outcome.schedule.cells,
            rates=task.rates,
            nodes=lane.book.nodes,
        )
    )
    replace_job_cells(job=job, cells=outcome.schedule.cells, reason=_words(outcome), now=lane.now)


def _task_left(lane: Lane, job: Job, bid: Bid) -> scheduler.Task:
    """What is left of a job, at the speeds known now."""
    work = measure_job_work(job)
    share = max(compute_work_left_share(job), LEAST_WORK_SHARE)
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
