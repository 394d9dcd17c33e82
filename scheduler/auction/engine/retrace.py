"""Restores a state from the log without deciding again."""

from __future__ import annotations

import numpy as np

from scheduler.auction.engine.receipts import follow_bundle, settle_receipts
from scheduler.auction.engine.replans import check_promises, release_plan
from scheduler.auction.engine.zone_state import ZoneState
from scheduler.auction.log.events import BidArrived, BidPriced, Event, TaskReplanned
from scheduler.auction.log.outcomes import Outcome, Replan, ToldPrice
from scheduler.auction.search.task_plan import TaskPlan
from scheduler.types import Decision, Task


def retrace(zone: ZoneState, event: Event, logged: Outcome) -> bool:
    """Take what the log says was decided as it stands, if it is a decision.

    Returns
    -------
    bool
        False when nothing was done: the event has to be applied.

    Raises
    ------
    ValueError
        If the outcome is not one the event can have on this zone.
    """
    if isinstance(event, BidPriced) and isinstance(logged, ToldPrice):
        settle_receipts(zone.receipts, event)
        return True
    if isinstance(event, BidArrived) and isinstance(logged, Decision):
        plan = _plan(zone, event.task, logged) if logged.admitted else None
        zone.observe(event.task)
        if plan is not None:
            zone.take(event.task, plan)
        settle_receipts(zone.receipts, event)
        zone.bundle = follow_bundle(zone.bundle, event)
        return True
    if isinstance(event, TaskReplanned) and isinstance(logged, Replan):
        task = event.task
        check_promises(zone, event)
        # Read before the release: a plan that cannot be must leave the state as it was.
        planned = logged.schedule is not None
        if planned:
            _plan(zone, task, logged)
        release_plan(zone, event)
        if planned:
            # Its prices are those after the release.
            zone.take(task, _plan(zone, task, logged), is_sold=False)
        else:
            zone.returned.drop(task.id, zone.grid)
        return True
    return False


def _plan(zone: ZoneState, task: Task, logged: Decision | Replan) -> TaskPlan:
    """Give a logged schedule as the search would have given it."""
    grid, schedule, parts = zone.grid, logged.schedule, logged.parts
    if schedule is None or parts is None:
        raise ValueError(f"the log admits {task.id} without a schedule")
    try:
        nodes = [grid.column[cell.node] for cell in schedule.cells]
        rate = [task.rates[grid.nodes[k].gpu_type] for k in nodes]
    except KeyError as error:
        raise ValueError(f"the log puts {task.id} on {error}, where it cannot run") from error
    if task.verified_only and not all(grid.nodes[k].is_verified for k in nodes):
        raise ValueError(f"the log puts {task.id} on a node that is not verified")
    if any(cell.slot not in grid.horizon for cell in schedule.cells):
        raise ValueError(f"the log puts {task.id} on slots that are not on sale")
    if schedule.ready_slot is not None and not 0 <= schedule.vendor < len(task.vendors):
        raise ValueError(f"the log gives {task.id} a vendor that made no offer")
    rows = np.array([grid.row(cell.slot) for cell in schedule.cells], np.int64)
    columns = np.array(nodes, np.int64)
    return TaskPlan(
        schedule=schedule,
        parts=parts,
        rows=rows,
        columns=columns,
        rate=np.array(rate, np.float64),
        compute_price=grid.compute_price[rows, columns],
        memory_price=grid.memory_price[rows, columns],
    )
