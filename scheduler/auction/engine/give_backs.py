"""What goes back for a job that its owner ends: a share of what the rest of it is worth now.

The value is that of the job, not of its cells: the smaller of what was paid for the work that is
left and of what the same work would cost by the same deadline, once the job's own cells are on sale
again. So to give a job back and buy it again gains nothing, whatever prices did meanwhile.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import replace

from scheduler.auction.engine.payment import make_payment_rule
from scheduler.auction.engine.zone_state import ZoneState
from scheduler.auction.log.events import CellsReleased
from scheduler.auction.log.outcomes import ReleasedCells
from scheduler.types import Cell, PriceParts, Task

#: Of the value, the part that goes back, percent.
RETURNED_PERCENT = 98


def release_cells(zone: ZoneState, event: CellsReleased) -> ReleasedCells:
    """Put cells on sale again; where their owner gave them back, say what goes back for them."""
    released = zone.release(event.task_id, event.cells)
    if event.rest is None:
        return ReleasedCells(cells=released)
    price = _find_value(zone, event, event.rest, released)
    return ReleasedCells(
        cells=released,
        price=price,
        refund=max(compute_refund(paid=event.paid, price=price), event.promised),
    )


def compute_refund(*, paid: int, price: float | None) -> int:
    """Compute what goes back for work that was not done.

    Parameters
    ----------
    paid : int
        What was paid for it, without a vendor's price; micro-dollars, as is the result.
    price : float or None
        What it costs now; ``None`` where its cells are not for sale any more.
    """
    value = paid if price is None else min(paid, math.floor(price))
    return value * RETURNED_PERCENT // 100


def _find_value(
    zone: ZoneState, event: CellsReleased, rest: Task, released: Sequence[Cell]
) -> float | None:
    """Give what the rest of a job costs now.

    Where it does not fit before the deadline any more, that is the price of the part that its cells
    are for, and the operational cost of the part whose cell has begun.
    """
    price = _find_price(zone, rest)
    if price is not None:
        return price
    later = replace(rest, compute_demand=rest.compute_demand - event.begun)
    price = _find_price(zone, later) if event.begun else None
    if price is None and released:
        price = _price_cells(zone, later, released)
    return None if price is None else price + event.begun_asks


def _find_price(zone: ZoneState, task: Task) -> float | None:
    plan = zone.search(task, task.arrival_slot).find_plan(task.deadline_slot)
    return None if plan is None else _add_up(zone, task, plan.parts)


def _price_cells(zone: ZoneState, task: Task, cells: Sequence[Cell]) -> float | None:
    """Give the price of cells; ``None`` where nothing says what one of them costs."""
    grid = zone.grid
    if any(task.rates.get(grid.nodes[grid.column[cell.node]].gpu_type, 0.0) <= 0 for cell in cells):
        # A cell that does no work would cost next to nothing.
        return None
    # They were sold to the task, whatever became of their nodes since.
    search = zone.search(replace(task, verified_only=False), task.arrival_slot)
    plan, reserves = search.plan_cells(cells), zone.find_last_reserves()
    if not len(reserves):
        return _add_up(zone, task, plan.parts)
    cost = plan.rate * reserves[plan.rows, plan.columns]
    return _add_up(zone, task, replace(plan.parts, operational=math.fsum(cost.tolist())))


def _add_up(zone: ZoneState, task: Task, parts: PriceParts) -> float | None:
    if not math.isfinite(parts.total):
        return None
    return make_payment_rule(zone.rules, task).parts(parts).total
