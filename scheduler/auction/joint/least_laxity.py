"""Losses shared out at once: least laxity first, with swaps.

When a node is lost, its jobs compete for what is free. Planned one by one in the order of their
deadlines, an early one takes cells that only a later one could have used. Here the job with the
least slack chooses first (A. K. Mok, *Fundamental Design Problems of Distributed Systems for the
Hard-Real-Time Environment*, MIT, 1983, section 2), and a job that finds no place may push aside
one that has another place to go.

Departures: time is slots, a job may use another node in each, and a placed job moves at most to
let a late one in. As a second and a third try all jobs that may move are placed again, by laxity
and by deadline; the plan that keeps most promises is taken.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass

from scheduler.auction.engine.engine import Engine
from scheduler.auction.log.events import PlanMove
from scheduler.auction.search.room import Placement, PromisedJob, Room

#: Times that late jobs try to push another aside, in one plan: the lane has bids to decide.
MOST_SWAPS = 500

#: Where jobs go, by id; ``None``: where they are.
_Placements = dict[str, Placement | None]


@dataclass(frozen=True, slots=True)
class JointPlan:
    """Where jobs go so that promises are kept."""

    #: Jobs whose cells change.
    moves: tuple[PlanMove, ...]
    #: How many of the jobs without a plan in time have one.
    kept: int
    #: The others, by id: they leave their cells.
    given_up: tuple[str, ...] = ()


def plan_by_laxity(
    engine: Engine, *, lost: Sequence[PromisedJob], movable: Sequence[PromisedJob], slot: int
) -> JointPlan:
    """Place jobs that lost their cells, moving others where that helps.

    Parameters
    ----------
    engine : Engine
        Not changed.
    lost : sequence of PromisedJob
        Jobs without a plan in time. Cells that they still hold are given up.
    movable : sequence of PromisedJob
        Jobs whose cells may change; each is in time afterwards.
    slot : int
        First slot whose cells may change.

    Returns
    -------
    JointPlan
        Of the plans tried, the one that keeps most promises; among equals the one with
        fewest moves.
    """
    room = engine.room(slot=slot)
    for job in lost:
        room.release(job)
    swapped = _place_with_swaps(room, lost, movable)
    plans = [build_plan(room, swapped, lost=lost, movable=movable)]
    if plans[0].kept < len(lost):
        all_jobs = [*lost, *movable]
        for order in (_by_laxity(room), _by_deadline):
            emptied = engine.room(slot=slot)
            for job in all_jobs:
                emptied.release(job)
            placed = _place_in_order(emptied, sorted(all_jobs, key=order))
            if all(job.task_id in placed for job in movable):
                plans.append(build_plan(emptied, placed, lost=lost, movable=movable))
    return max(plans, key=lambda plan: (plan.kept, -len(plan.moves)))


def build_plan(
    room: Room,
    placed: Mapping[str, Placement | None],
    *,
    lost: Sequence[PromisedJob],
    movable: Iterable[PromisedJob],
) -> JointPlan:
    """Give placements as moves; jobs that are not placed, or stay, have none."""
    moves = [
        PlanMove(
            task_id=job.task_id,
            deadline_slot=job.deadline_slot,
            compute_demand=job.compute_demand,
            memory_demand=job.memory_demand,
            rates=job.rates,
            cells=room.name_cells(placement),
            verified_only=job.verified_only,
        )
        for job in (*lost, *movable)
        if (placement := placed.get(job.task_id)) is not None
    ]
    given_up = tuple(job.task_id for job in lost if job.task_id not in placed)
    return JointPlan(tuple(moves), kept=len(lost) - len(given_up), given_up=given_up)


def _by_laxity(room: Room) -> Callable[[PromisedJob], tuple[int, float, str]]:
    # Of equal slack, the one with more work has fewer places to go.
    return lambda job: (room.laxity(job), -job.compute_demand, job.task_id)


def _by_deadline(job: PromisedJob) -> tuple[int, str]:
    return job.deadline_slot, job.task_id


def _place_in_order(room: Room, order: Iterable[PromisedJob]) -> _Placements:
    placed: _Placements = {}
    for job in order:
        found = room.find_soonest(job)
        if found is not None:
            room.take(job, found)
            placed[job.task_id] = found
    return placed


def _place_with_swaps(
    room: Room, lost: Sequence[PromisedJob], movable: Sequence[PromisedJob]
) -> _Placements:
    """Place lost jobs, the least slack first; a late one may push one other job aside."""
    order = _by_laxity(room)
    # Those with most slack are pushed aside first.
    others = sorted(movable, key=order, reverse=True)
    placed: _Placements = {job.task_id: None for job in others}
    left = MOST_SWAPS
    for job in sorted(lost, key=order):
        found = room.find_soonest(job)
        if found is not None:
            room.take(job, found)
            placed[job.task_id] = found
        else:
            left -= _swap_in(room, job, others[:left], placed)
            if job.task_id not in placed:
                continue
        others = sorted([*others, job], key=order, reverse=True)
    return placed


def _swap_in(
    room: Room, late: PromisedJob, others: Sequence[PromisedJob], placed: _Placements
) -> int:
    """Place a late job where another one is, if that one has another place to go; jobs tried."""
    for tried, other in enumerate(others, start=1):
        before = placed[other.task_id]
        _leave(room, other, before)
        own = room.find_soonest(late)
        if own is not None:
            room.take(late, own)
            theirs = room.find_soonest(other)
            if theirs is not None:
                room.take(other, theirs)
                placed[late.task_id], placed[other.task_id] = own, theirs
                return tried
            room.give_back(late, own)
        if before is None:
            room.hold(other)
        else:
            room.take(other, before)
    return len(others)


def _leave(room: Room, job: PromisedJob, placement: Placement | None) -> None:
    if placement is None:
        room.release(job)
    else:
        room.give_back(job, placement)
