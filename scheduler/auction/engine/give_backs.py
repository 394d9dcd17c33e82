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
from scheduler.auction.engine.returned_cells import LATE_SLOTS, Claim
from scheduler.auction.engine.zone_state import ZoneState
from scheduler.auction.log.events import CellsReleased
from scheduler.auction.log.outcomes import ReleasedCells
from scheduler.auction.search.grid import Grid
from scheduler.auction.search.holdings import HeldCell
from scheduler.types import Cell, PriceParts, Task

#: Of the value, the part that goes back, percent.
RETURNED_PERCENT = 98


def release_cells(zone: ZoneState, event: CellsReleased) -> ReleasedCells:
    """Put cells on sale again; where their owner gave them back, say what goes back for them."""
    held = zone.grid.holds.get(event.task_id)
    released = zone.release(event.task_id, event.cells)
    if event.rest is None:
        return ReleasedCells(cells=released)
    price = _find_value(zone, event, event.rest, released)
    refund = max(compute_refund(paid=event.paid, price=price), event.promised)
    gone = set(released)
    free = [hold for hold in (held.each() if held else ()) if hold.cell in gone]
    waits = _hold_back(zone, event, free, refund=refund)
    return ReleasedCells(cells=released, price=price, refund=refund - waits, waits=waits)


def _hold_back(
    zone: ZoneState, event: CellsReleased, released: Sequence[HeldCell], *, refund: int
) -> int:
    """Note the cells that begin soon, and give what of the refund waits for them to be sold again.

    It is their part of the rent in the refund, by what the cells cost above their operational cost
    now that they are free, as far as the rest of the refund is what was promised.
    """
    assert event.rest is not None
    soon = event.rest.arrival_slot + LATE_SLOTS
    weights = _weigh(zone.grid, released)
    late = {hold.cell: hold.rate for hold in released if hold.cell.slot < soon}
    whole, weight = math.fsum(weights.values()), math.fsum(weights[cell] for cell in late)
    if not weight:
        return 0
    rent = max(0, refund - compute_refund(paid=event.paid - event.rent, price=None))
    most = min(math.floor(rent * weight / whole), refund - event.promised)
    waits = 0
    for cell, room in late.items():
        part = math.floor(most * weights[cell] / weight)
        if part > 0:
            zone.returned.give_back(cell, Claim(event.task_id, room, part))
            waits += part
    return waits


def _weigh(grid: Grid, cells: Sequence[HeldCell]) -> dict[Cell, float]:
    """Give the rent of cells at their prices now; their room where none has any."""
    weights: dict[Cell, float] = {}
    for hold in cells:
        at = grid.row(hold.cell.slot), grid.column[hold.cell.node]
        prices = float(grid.compute_price[at]), float(grid.memory_price[at])
        weights[hold.cell] = hold.rate * prices[0] + hold.memory * prices[1]
    if any(weights.values()):
        return weights
    return {hold.cell: hold.rate for hold in cells}


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
