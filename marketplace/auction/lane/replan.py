"""New plans for admitted jobs that lost cells, at no cost to their owners."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace

from django.db.models import Q

from marketplace.auction.book.engine_cache import get_commitment_salt
from marketplace.auction.book.reservations import release_reservations
from marketplace.auction.lane.lane import Lane
from marketplace.auction.lane.plan_changes import (
    PlannedJob,
    give_new_cells,
    list_movable_jobs,
    measure_work_left,
    move_plans,
)
from marketplace.auction.models import Bid
from marketplace.common.queue import enqueue
from marketplace.fleet.models import Node
from marketplace.jobs.models import FaultOf, Job
from marketplace.jobs.queries import has_jobs_to_replan
from marketplace.jobs.selectors import (
    count_stalled_slices,
    list_jobs_to_replan,
    list_nodes_to_avoid,
)
from marketplace.jobs.services import fail_job, request_job_replan
from scheduler import types as scheduler
from scheduler.auction import Engine, Replan
from scheduler.auction.joint.least_laxity import plan_by_laxity
from scheduler.auction.log import events
from scheduler.auction.search.room import PromisedJob

#: How much more than the cheapest plan one that ends sooner may cost the market, as a share of the
#: cheapest price of all of the job's work.
TOLERANCE = 0.1


def record_lost_cells(lane: Lane) -> None:
    """Note the cells that jobs lost with nodes, and mark those jobs for a new plan."""
    for dropped in lane.dropped:
        slots = [cell.slot for cell in dropped.cells]
        release_reservations(bid_id=dropped.task_id, which=Q(slot__in=slots), now=lane.now)
        job = Job.objects.filter(bid_id=dropped.task_id).first()
        if job is not None:
            nodes = sorted({cell.node for cell in dropped.cells})
            barred = _list_barred(lane, job, nodes)
            lost = [node for node in nodes if node not in barred]
            reason = f"Cells on {_name_nodes(lost)} were lost; looking for others."
            if not lost:
                reason = f"{_name_nodes(barred)}: not verified any more. Looking for other nodes."
            request_job_replan(job=job, reason=reason, now=lane.now, lost_nodes=lost)
        # After its job, as whoever settles a job locks them.
        Bid.objects.filter(pk=dropped.task_id).update(replanned_slot=None)
    lane.dropped.clear()


def _list_barred(lane: Lane, job: Job, node_ids: Sequence[str]) -> list[str]:
    """Those of the nodes that are there and may not run the job; they are not at fault."""
    known = lane.book.nodes
    here = [known[node_id] for node_id in node_ids if node_id in known]
    return [node.id for node in here if job.verified_only and not node.is_verified]


def replan_jobs(lane: Lane, *, preferred: Mapping[str, str] | None = None) -> int:
    """Find new cells for the jobs of the zone that need them; how many were looked at.

    Where planning one by one would break a promise that a joint plan keeps, the joint plan is
    taken. Otherwise the jobs that must end first choose first. A job for which nothing is to be
    had is tried again each slot until its deadline.

    Parameters
    ----------
    preferred
        The node each job should go to, by job id; it gets other cells only if it does not fit.
    """
    if not has_jobs_to_replan(zone_id=lane.zone.pk):
        return 0
    jobs = sorted(list_jobs_to_replan(lane.zone), key=lambda job: (job.deadline_at, job.pk))
    bids = Bid.objects.in_bulk([job.bid_id for job in jobs])
    waiting = [
        PlannedJob(
            job=job,
            bid=bids[job.bid_id],
            promise=_measure_promise(lane, job, bids[job.bid_id]),
        )
        for job in jobs
        if not _was_tried(bids[job.bid_id], lane.slot)
    ]
    wanted = {
        one.promise.task_id: _build_event(lane, one, (preferred or {}).get(one.job.pk))
        for one in waiting
    }
    planned = _replan_together(lane, waiting, list(wanted.values()))
    late = [
        one
        for one in waiting
        if one.promise.task_id not in planned
        and not replan_job(lane, one, wanted[one.promise.task_id])
    ]
    if late:
        # More time may find what the lane did not; it has others to serve.
        enqueue("auction.plans_improve", zone_id=lane.zone.pk)
    return len(waiting)


def _measure_promise(lane: Lane, job: Job, bid: Bid) -> PromisedJob:
    """What is left of a job to plan.

    A job may make no progress in its last slices, because a slot ended before it had begun or
    before its adapter was stored. Each such slice doubles its slots, up to its deadline.
    """
    promise = measure_work_left(zone=lane.zone, job=job, bid=bid)
    stalled = count_stalled_slices(job)
    if not stalled or not promise.rates:
        return promise
    slots = min(2**stalled, max(1, promise.deadline_slot - lane.first_free_slot + 1))
    least = slots * max(promise.rates.values())
    return replace(promise, compute_demand=max(promise.compute_demand, least))


def _was_tried(bid: Bid, slot: int) -> bool:
    return bid.replanned_slot is not None and bid.replanned_slot >= slot


def _build_event(
    lane: Lane, wanted: PlannedJob, preferred_node: str | None
) -> events.TaskReplanned:
    promise = wanted.promise
    task = scheduler.Task(
        id=promise.task_id,
        arrival_slot=lane.first_free_slot,
        deadline_slot=promise.deadline_slot,
        compute_demand=promise.compute_demand,
        memory_demand=promise.memory_demand,
        bid=float(wanted.bid.price_micros),
        rates=promise.rates,
        verified_only=promise.verified_only,
    )
    return events.TaskReplanned(
        task=task,
        slot=lane.first_free_slot,
        salt=get_commitment_salt(),
        preferred_node=preferred_node,
        avoided_nodes=tuple(list_nodes_to_avoid(wanted.job)),
        tolerance=_find_tolerance(wanted),
    )


def _find_tolerance(wanted: PlannedJob) -> float:
    """What a new plan may cost beyond the cheapest, as a share of the cheapest.

    A job of which little is left does not wait for a cheaper slot: it may cost twice the little.
    """
    left = wanted.promise.compute_demand
    return TOLERANCE * (max(1.0, wanted.bid.compute_demand / left) if left else 1.0)


def _replan_together(
    lane: Lane, waiting: Sequence[PlannedJob], wanted: Sequence[events.TaskReplanned]
) -> set[str]:
    """Take a joint plan if it keeps more promises than planning one by one; the tasks planned."""
    engine = lane.book.engine
    alone = _count_kept(engine, wanted)
    if alone == len(wanted):
        return set()
    avoided = {event.task.id: frozenset(event.avoided_nodes) for event in wanted}
    lost = [one.avoiding(avoided[one.promise.task_id]) for one in waiting]
    movable = list_movable_jobs(
        zone=lane.zone,
        engine=engine,
        first_slot=lane.first_free_slot,
        beside=[one.promise for one in lost],
    )
    plan = plan_by_laxity(
        engine,
        lost=[one.promise for one in lost],
        movable=[one.promise for one in movable],
        slot=lane.first_free_slot,
    )
    if plan.kept <= alone:
        return set()
    move_plans(
        lane,
        plan,
        [*lost, *movable],
        explain=lambda move: explain_move(move, is_hit=move.task_id in avoided),
    )
    return {one.promise.task_id for one in lost} - set(plan.given_up)


def _count_kept(engine: Engine, wanted: Sequence[events.TaskReplanned]) -> int:
    """How many promises planning one by one keeps."""
    trial, kept = engine.replica(), 0
    for event in wanted:
        outcome = trial.transition(event)
        assert isinstance(outcome, Replan)
        kept += outcome.complete and not outcome.late
    return kept


def replan_job(lane: Lane, wanted: PlannedJob, event: events.TaskReplanned) -> bool:
    """Plan one job again by itself; whether its deadline stands."""
    job, bid = wanted.job, wanted.bid
    outcome = lane.apply(event).outcome
    assert isinstance(outcome, Replan)
    if outcome.schedule is not None:
        give_new_cells(lane, wanted, outcome.schedule.cells, reason=_explain(outcome))
        return not outcome.late
    release_reservations(bid_id=bid.pk, which=Q(slot__gte=lane.first_free_slot), now=lane.now)
    if lane.now >= job.deadline_at:
        fail_job(
            job=job,
            fault=FaultOf.SYSTEM,
            reason="No node is left that could finish this job; its payment is refunded.",
            now=lane.now,
        )
    # What found nothing waits for the next slot; new trouble is looked at at once.
    bid.replanned_slot = lane.slot
    bid.save(update_fields=["replanned_slot"])
    return False


def explain_move(move: events.PlanMove, *, is_hit: bool) -> str:
    """What a job's history says of its part in a joint plan."""
    nodes = _name_nodes(cell.node for cell in move.cells)
    if is_hit:
        return f"Planned again on {nodes}, at no cost to you; the deadline stands."
    return (
        f"Planned again on {nodes}, so that another job keeps its deadline too; yours stands, "
        "and your price does not change."
    )


def _name_nodes(node_ids: Iterable[str]) -> str:
    nodes = Node.objects.filter(pk__in=set(node_ids))
    return ", ".join(sorted(nodes.values_list("name", flat=True)))


def _explain(outcome: Replan) -> str:
    assert outcome.schedule is not None
    nodes = _name_nodes(cell.node for cell in outcome.schedule.cells)
    text = f"Planned again on {nodes}, at no cost to you"
    if not outcome.complete:
        return f"{text}; not all of the work has a place yet."
    if outcome.late:
        return f"{text}; it ends after the deadline, for which you get a credit."
    return f"{text}; the deadline stands."
