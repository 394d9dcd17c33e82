"""What goes back for a job that its owner ends: a share of what the rest of it is worth now.

The value is that of the job, not of its cells: the smaller of what was paid for the work that is
left and of what the same work would cost by the same deadline, once the job's own cells are on sale
again. So to give a job back and buy it again gains nothing, whatever prices did meanwhile. Of cells
that begin soon the rent waits for them to be sold again (``returned_cells``).
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import replace
from typing import NamedTuple

from scheduler.auction.engine.payment import make_payment_rule
from scheduler.auction.engine.returned_cells import Claim
from scheduler.auction.engine.zone_state import ZoneState
from scheduler.auction.log.events import CellsReleased
from scheduler.auction.log.outcomes import ReleasedCells
from scheduler.auction.search.grid import Grid
from scheduler.auction.search.holdings import HeldCell, TaskHolding
from scheduler.types import Cell, PriceParts, Task

#: Of the value, the part that goes back, percent.
RETURNED_PERCENT = 98


def release_cells(zone: ZoneState, event: CellsReleased) -> ReleasedCells:
    """Put cells on sale again; where their owner gave them back, say what goes back for them."""
    held = zone.grid.holds.get(event.task_id)
    released = zone.release(event.task_id, event.cells)
    _drop_purchases(zone, event, held, released)
    if event.rest is None:
        return ReleasedCells(cells=released)
    value = _find_value(zone, event, event.rest, released)
    price = None if value is None else value.price
    refund = max(compute_refund(paid=event.paid, price=price), event.promised)
    waits = 0
    if value is not None and held is not None and zone.rules.late_slots:
        gone = set(released)
        free = [hold for hold in held.each() if hold.cell in gone]
        # No less than was promised, and than the value without the rent in it, goes back at once.
        rent = refund - compute_refund(paid=event.paid, price=value.price - value.rent)
        waits = _hold_back(zone, event, free, rent=rent, most=refund - event.promised)
    return ReleasedCells(cells=released, price=price, refund=refund - waits, waits=waits)


def _drop_purchases(
    zone: ZoneState, event: CellsReleased, held: TaskHolding | None, released: Sequence[Cell]
) -> None:
    """Note what a task that gives cells back still pays for others that had been given back."""
    if event.rest is None:
        # Nothing goes back for these cells: the task still pays for them what it pays for the job.
        zone.returned.drop(event.task_id, zone.grid, left=event.paid_share)
        return
    first_slot = event.rest.arrival_slot
    coming = [hold for hold in held.each() if hold.cell.slot >= first_slot] if held else []
    gone = set(released)
    whole = math.fsum(hold.rate for hold in coming)
    left = math.fsum(hold.rate for hold in coming if hold.cell not in gone)
    zone.returned.drop(event.task_id, zone.grid, released=gone, left=left / whole if whole else 0.0)


def _hold_back(
    zone: ZoneState, event: CellsReleased, released: Sequence[HeldCell], *, rent: int, most: int
) -> int:
    """Note the cells that begin soon, and give what waits for them to be sold again.

    It is their part of ``rent``, by what the cells cost above their operational cost now that they
    are free, and ``most`` at most. By room alone, a dear cell could hide among many cheap ones that
    begin later.
    """
    assert event.rest is not None
    slot = event.rest.arrival_slot - 1 if event.slot is None else event.slot
    weights = _weigh(zone.grid, released)
    whole = math.fsum(weights.values())
    late = [hold for hold in released if hold.cell.slot <= slot + zone.rules.late_slots]
    rents = [max(0, math.floor(rent * (weights[hold.cell] / whole))) for hold in late]
    due = sum(rents)
    if due > most:
        rents = [part * most // due for part in rents]
    claims = [
        (hold.cell, Claim(event.task_id, hold.rate, part, slot))
        for hold, part in zip(late, rents, strict=True)
    ]
    zone.returned.give_back(claims, zone.grid)
    return sum(rents)


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


class _Value(NamedTuple):
    """What the rest of a job costs now."""

    price: float
    #: In that, what its cells cost above their operational cost.
    rent: float


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
) -> _Value | None:
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
    return None if price is None else price._replace(price=price.price + event.begun_asks)


def _find_price(zone: ZoneState, task: Task) -> _Value | None:
    plan = zone.search(task, task.arrival_slot).find_plan(task.deadline_slot)
    return None if plan is None else _add_up(zone, task, plan.parts)


def _price_cells(zone: ZoneState, task: Task, cells: Sequence[Cell]) -> _Value | None:
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


def _add_up(zone: ZoneState, task: Task, parts: PriceParts) -> _Value | None:
    if not math.isfinite(parts.total):
        return None
    price = make_payment_rule(zone.rules, task).parts(parts).total
    return _Value(price, parts.compute + parts.memory)
