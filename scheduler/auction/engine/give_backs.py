"""What goes back for a job that its owner ends: a share of what the rest of it is worth now.

The value is that of the job, not of its cells: the smaller of what was paid for the work that is
left and of what the same work would cost by the same deadline, once the job's own cells are on sale
again. So to give a job back and buy it again gains nothing, whatever prices did meanwhile.
"""

from __future__ import annotations

import math

from scheduler.auction.engine.payment import make_payment_rule
from scheduler.auction.engine.zone_state import ZoneState
from scheduler.auction.log.events import CellsReleased
from scheduler.auction.log.outcomes import ReleasedCells
from scheduler.types import Task

#: Of the value, the part that goes back, percent.
RETURNED_PERCENT = 98


def release_cells(zone: ZoneState, event: CellsReleased) -> ReleasedCells:
    """Put cells on sale again; where their owner gave them back, say what goes back for them."""
    released = zone.release(event.task_id, event.cells)
    if event.rest is None:
        return ReleasedCells(cells=released)
    price = _find_price(zone, event.rest)
    return ReleasedCells(
        cells=released,
        price=price,
        refund=compute_refund(paid=event.paid, price=price),
    )


def compute_refund(*, paid: int, price: float | None) -> int:
    """Compute what goes back for work that was not done.

    Parameters
    ----------
    paid : int
        What was paid for it, without a vendor's price; micro-dollars, as is the result.
    price : float or None
        What it costs now; ``None`` where no plan for it ends by the deadline.
    """
    value = paid if price is None else min(paid, math.floor(price))
    return value * RETURNED_PERCENT // 100


def _find_price(zone: ZoneState, rest: Task) -> float | None:
    plan = zone.search(rest, rest.arrival_slot).find_plan(rest.deadline_slot)
    return None if plan is None else make_payment_rule(zone.rules, rest).parts(plan.parts).total
