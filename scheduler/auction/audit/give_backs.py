"""Whether what a log says was given back is a part of a job that it sold, and of its price.

The refund itself follows from the entry and the state at its place, so the replay checks it.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, replace

from scheduler.auction.log.events import BidArrived, CellsReleased, Event, SlotAdvanced
from scheduler.auction.log.outcomes import Outcome
from scheduler.types import Decision, Task

#: Sums of floats have rounding errors of no more than a billionth.
_MOST = 1 + 1e-9


@dataclass(slots=True)
class _SoldTask:
    """A job that the log sold."""

    task: Task
    #: Without the vendor's part.
    price: float
    #: The operational cost in that.
    operational: float
    #: Of its work, what has been given back so far.
    given_back: float = 0.0


class GiveBackAudit:
    """Holds what is given back against what was sold; jobs sold before the log begins pass."""

    def __init__(self) -> None:
        self._sold: dict[str, _SoldTask] = {}
        #: The slot that runs; ``None`` before the log says it.
        self._slot: int | None = None

    def find_problem(self, event: Event, outcome: Outcome) -> str | None:
        """Look at the next entry, which the replay agrees with; say what is wrong, if anything."""
        match event:
            case SlotAdvanced(slot=slot):
                self._slot = slot
            case BidArrived(task=task) if isinstance(outcome, Decision) and outcome.admitted:
                parts = outcome.parts
                vendor, operational = (parts.vendor, parts.operational) if parts else (0.0, 0.0)
                self._sold[task.id] = _SoldTask(task, outcome.payment - vendor, operational)
            case CellsReleased(task_id=task_id, rest=Task() as rest) if task_id in self._sold:
                return self._compare(self._sold[task_id], event, rest)
            case _:
                pass
        return None

    def _compare(self, sold: _SoldTask, event: CellsReleased, rest: Task) -> str | None:
        task, units = sold.task, rest.compute_demand
        begin = rest.arrival_slot if self._slot is None else self._slot + 1
        # All that makes a price of it is as it was sold, from the next slot on.
        as_sold = replace(
            task, arrival_slot=begin, compute_demand=units, bid=0.0, vendors=(), owner=""
        )
        sold.given_back += units
        if rest != as_sold or sold.given_back > task.compute_demand * _MOST:
            return "what is given back is no part of the job that was sold"
        # By their part of the work, what the cells cost that had not begun, and those that had.
        coming = sold.price * (units - event.begun) / task.compute_demand
        begun = math.ceil(sold.operational) * event.begun / task.compute_demand
        # Money is counted in whole units.
        if event.paid - event.begun_asks >= coming + 1 or event.begun_asks >= begun + 1:
            return (
                f"{event.paid} was not paid for what is given back: that part of the job cost "
                f"{coming + begun:g}"
            )
        return None
