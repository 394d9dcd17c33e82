"""What admitted jobs still need, and how new plans for them are written down."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Collection, Iterable, Sequence
from dataclasses import dataclass, replace

from django.db.models import Q

from marketplace.auction.book.reservations import (
    build_reservations,
    find_next_revision,
    release_reservations,
)
from marketplace.auction.lane.lane import Lane
from marketplace.auction.models import Bid, Reservation
from marketplace.fleet.models import Zone
from marketplace.fleet.selectors import last_slot_until, load_rates
from marketplace.jobs.models import Job
from marketplace.jobs.selectors import list_jobs_with_plans
from marketplace.jobs.services import replace_job_cells
from marketplace.jobs.work import compute_work_left_share, measure_job_work
from scheduler.auction import Engine
from scheduler.auction.joint.least_laxity import JointPlan
from scheduler.auction.log import events
from scheduler.auction.log.events import PlanMove
from scheduler.auction.search.room import PromisedJob
from scheduler.types import Cell

#: So that a job that is all but done still gets a cell to finish in.
LEAST_WORK_SHARE = 1e-3
#: Jobs of one zone whose plans a joint plan may change, those with most slack first.
MOST_MOVABLE = 300


class PlanDoesNotFit(Exception):
    """The engine refused a joint plan: a promise in it cannot be kept any more."""


@dataclass(frozen=True, slots=True)
class PlannedJob:
    """A job with its bid, and what its plan has to do."""

    job: Job
    bid: Bid
    promise: PromisedJob
    #: Cells it holds from the first slot that may change on.
    held: tuple[Cell, ...] = ()

    def is_planned_as_sold(self, first_slot: int) -> bool:
        """Whether the job is to run in the cells that the auction sold it, and in no others."""
        planned = [(slot, node) for slot, node in self.job.cells if slot >= first_slot]
        return planned == [(cell.slot, cell.node) for cell in self.held]

    def avoiding(self, node_ids: Collection[str]) -> PlannedJob:
        """The same, with nodes that it is not to go to."""
        return replace(self, promise=replace(self.promise, avoided_nodes=frozenset(node_ids)))


def measure_work_left(
    *, zone: Zone, job: Job, bid: Bid, rates: dict[str, float] | None = None
) -> PromisedJob:
    """What is left of a job, at the speeds known now."""
    work = measure_job_work(job, rates=rates)
    share = max(compute_work_left_share(job), LEAST_WORK_SHARE)
    return PromisedJob(
        task_id=bid.pk,
        deadline_slot=last_slot_until(zone, bid.deadline_at),
        # Until its data are prepared, a job's work is what was sold.
        compute_demand=bid.compute_demand if job.awaits_data else work.compute_demand * share,
        memory_demand=bid.memory_demand_gb,
        rates=dict(sorted(work.rates.items())),
        verified_only=bid.verified_only,
    )


def list_movable_jobs(
    *, zone: Zone, engine: Engine, first_slot: int, beside: Sequence[PromisedJob]
) -> list[PlannedJob]:
    """Jobs that are in time; their cells may change so that others are in time too.

    Two kinds of jobs are left out: those with cells that the auction did not sell them, such as a
    stay on a machine of the market, and those with a cell on a node that has stopped selling.
    """
    last_slot = max((job.deadline_slot for job in beside), default=first_slot - 1)
    without = {job.task_id for job in beside}
    off_sale = {node.id for node in engine.nodes if node.keeps_sold}
    near = {
        task_id: cells
        for task_id, cells in find_held_cells(engine, first_slot=first_slot).items()
        if task_id not in without
        and cells[0].slot <= last_slot
        and off_sale.isdisjoint(cell.node for cell in cells)
    }
    jobs = list_jobs_with_plans(zone, bid_ids=near)
    # Those with most slack first.
    jobs.sort(key=lambda job: near[job.bid_id][-1].slot - last_slot_until(zone, job.deadline_at))
    bids = Bid.objects.in_bulk([job.bid_id for job in jobs[:MOST_MOVABLE]])
    rates = load_rates(zone) if bids else None
    types = {node.id: node.gpu_type for node in engine.nodes}
    found: list[PlannedJob] = []
    for job in jobs[:MOST_MOVABLE]:
        bid, cells = bids[job.bid_id], near[job.bid_id]
        promise = measure_work_left(zone=zone, job=job, bid=bid, rates=rates)
        # What it holds is enough, though part of the present slot's work may not be done yet.
        work = sum(promise.rates.get(types[cell.node], 0.0) for cell in cells)
        promise = replace(promise, compute_demand=min(promise.compute_demand, work))
        one = PlannedJob(job=job, bid=bid, promise=promise, held=cells)
        if cells[-1].slot <= promise.deadline_slot and one.is_planned_as_sold(first_slot):
            found.append(one)
    return found


def find_held_cells(engine: Engine, *, first_slot: int) -> dict[str, tuple[Cell, ...]]:
    """The cells that tasks hold from a slot on, in slot order, by task."""
    held: defaultdict[str, list[Cell]] = defaultdict(list)
    for one in engine.reservations():
        if one.cell.slot >= first_slot:
            held[one.task_id].append(one.cell)
    return {task_id: tuple(sorted(cells)) for task_id, cells in held.items()}


def move_plans(
    lane: Lane,
    plan: JointPlan,
    jobs: Iterable[PlannedJob],
    *,
    explain: Callable[[PlanMove], str],
) -> None:
    """Take a joint plan and write down what changes; jobs given up keep no cell.

    ``explain`` gives the sentence for a job's history.

    Raises
    ------
    PlanDoesNotFit
        The zone is another than the plan was made for. Nothing was changed.
    """
    by_task = {one.promise.task_id: one for one in jobs}
    try:
        lane.apply(events.PlansMoved(plan.moves, lane.first_free_slot, plan.given_up))
    except ValueError as error:
        raise PlanDoesNotFit(str(error)) from error
    for move in plan.moves:
        give_new_cells(lane, by_task[move.task_id], move.cells, reason=explain(move))
    for task_id in plan.given_up:
        _release_cells(lane, task_id)


def give_new_cells(lane: Lane, planned: PlannedJob, cells: Sequence[Cell], *, reason: str) -> None:
    """Write down the cells that the engine has just given a job."""
    job, bid, promise = planned.job, planned.bid, planned.promise
    _release_cells(lane, bid.pk)
    Reservation.objects.bulk_create(
        build_reservations(
            bid_id=bid.pk,
            zone_id=bid.zone_id,
            memory_gb=promise.memory_demand,
            cells=cells,
            rates=promise.rates,
            nodes=lane.book.nodes,
            posted=lane.book.engine.find_posted_rates(cells),
            revision=find_next_revision(bid_id=bid.pk),
        )
    )
    # A job is locked before its bid.
    replace_job_cells(job=job, cells=cells, reason=reason, now=lane.now)
    if bid.replanned_slot is not None:
        bid.replanned_slot = None
        bid.save(update_fields=["replanned_slot"])


def _release_cells(lane: Lane, bid_id: str) -> None:
    release_reservations(bid_id=bid_id, which=Q(slot__gte=lane.first_free_slot), now=lane.now)
