"""New plans for admitted jobs, at no cost to their owners."""

from __future__ import annotations

import sys
from dataclasses import dataclass, replace

from scheduler.auction.engine.zone_state import ZoneState
from scheduler.auction.log.events import TaskReplanned
from scheduler.auction.log.outcomes import Replan
from scheduler.auction.search.task_plan import TaskPlan
from scheduler.auction.search.task_search import MARGIN, Search
from scheduler.types import Cell


@dataclass(frozen=True, slots=True)
class _FoundPlan:
    plan: TaskPlan
    #: It ends after the deadline.
    late: bool = False
    #: It covers all the work that is left.
    complete: bool = True


def replan_task(zone: ZoneState, event: TaskReplanned) -> Replan:
    """Give a job a new plan for the work that is left, at any cost.

    A job is never lost: if its deadline cannot be met, it ends as early as possible; if the horizon
    is too short for it, it gets as much of the work as fits.
    """
    task = event.task
    check_promises(zone, event)
    released = release_plan(zone, event)
    # A vendor that is at work goes on, and the job trains after it.
    ready = zone.grid.vendors.find_end(task.id)
    found = _find_plan(zone, event if ready is None else _begin_at(event, ready))
    if found is None:
        zone.returned.drop(task.id, zone.grid)
    return Replan(
        task_id=task.id,
        schedule=None if found is None else found.plan.schedule,
        parts=None if found is None else found.plan.parts,
        released=released,
        complete=found is not None and found.complete,
        late=found is None or found.late,
        raised=() if found is None else zone.take(task, found.plan, is_sold=False),
    )


def check_promises(zone: ZoneState, event: TaskReplanned) -> None:
    """Refuse a re-plan that forgets what the job was sold with.

    Raises
    ------
    ValueError
        If the job runs on verified nodes only and the event does not say so.
    """
    if event.task.id in zone.grid.verified_only and not event.task.verified_only:
        raise ValueError(f"{event.task.id} runs on verified nodes only")


def release_plan(zone: ZoneState, event: TaskReplanned) -> tuple[Cell, ...]:
    """Give up what a job holds; its vendor too, if the event offers others."""
    if event.task.vendors:
        zone.grid.vendors.end(event.task.id, slot=event.slot)
    return zone.release(event.task.id, zone.grid.held(event.task.id, from_slot=event.slot))


def _begin_at(event: TaskReplanned, slot: int) -> TaskReplanned:
    begin = max(event.task.arrival_slot, slot)
    return replace(event, task=replace(event.task, arrival_slot=begin))


def _find_plan(zone: ZoneState, event: TaskReplanned) -> _FoundPlan | None:
    """Look on the preferred node alone, then without the avoided ones, then everywhere."""
    grid = zone.grid
    if event.preferred_node in grid.column:
        with grid.withheld(node.id for node in grid.nodes if node.id != event.preferred_node):
            plan = _find_in_time(zone.search(event.task, event.slot), event)
        if plan is not None:
            return _FoundPlan(plan)
    if event.avoided_nodes:
        with grid.withheld(event.avoided_nodes):
            found = _find_complete(zone.search(event.task, event.slot), zone, event)
        if found is not None:
            return found
    search = zone.search(event.task, event.slot)
    found = _find_complete(search, zone, event)
    if found is None:
        most = search.find_most_work()
        found = None if most is None else _FoundPlan(most, late=True, complete=False)
    return found


def _find_complete(search: Search, zone: ZoneState, event: TaskReplanned) -> _FoundPlan | None:
    """Give a plan for all the work that is left: in time, else the soonest."""
    plan = _find_in_time(search, event)
    if plan is not None:
        return _FoundPlan(plan)
    first, last = event.task.deadline_slot + 1, zone.grid.horizon.last_slot
    plan = search.find_soonest(first=first, last=last)
    return None if plan is None else _FoundPlan(plan, late=True)


def _find_in_time(search: Search, event: TaskReplanned) -> TaskPlan | None:
    """Give the plan that ends first among those in time that cost little more than the least."""
    deadline = event.task.deadline_slot
    cheapest = search.find_plan(deadline)
    if cheapest is None or event.tolerance is None:
        return cheapest
    most = cheapest.price * (1.0 + event.tolerance) * (1.0 + MARGIN)
    sooner = search.find_earliest_below(
        first=event.slot, last=deadline, ceiling=max(most, sys.float_info.min)
    )
    return cheapest if sooner is None else search.find_plan(sooner)
