"""Whether what a log says was given back is a part of a job that it sold, and of its price.

The refund itself follows from the entry and the state at its place, so the replay checks it.
"""

from __future__ import annotations

from scheduler.auction.log.events import BidArrived, CellsReleased, Event
from scheduler.auction.log.outcomes import Outcome
from scheduler.types import Decision, Task

#: Of the work sold, how much more may be left: sums of cells have rounding errors.
_TOLERANCE = 1e-9


class GiveBackAudit:
    """Holds what is given back against what was sold; jobs sold before the log begins pass."""

    def __init__(self) -> None:
        #: By task: what was sold, and its price without the vendor's part.
        self._sold: dict[str, tuple[Task, float]] = {}

    def find_problem(self, event: Event, outcome: Outcome) -> str | None:
        """Look at the next entry, which the replay agrees with; say what is wrong, if anything."""
        match event:
            case BidArrived(task=task) if isinstance(outcome, Decision) and outcome.admitted:
                vendor = 0.0 if outcome.parts is None else outcome.parts.vendor
                self._sold[task.id] = task, outcome.payment - vendor
            case CellsReleased(task_id=task_id, rest=Task() as rest) if task_id in self._sold:
                return _compare(*self._sold[task_id], rest, event.paid)
            case _:
                pass
        return None


def _compare(task: Task, price: float, rest: Task, paid: int) -> str | None:
    is_same = (rest.id, rest.deadline_slot, rest.memory_demand, rest.verified_only) == (
        task.id,
        task.deadline_slot,
        task.memory_demand,
        task.verified_only,
    )
    if not is_same or rest.vendors or rest.compute_demand > task.compute_demand * (1 + _TOLERANCE):
        return "what is given back is no part of the job that was sold"
    if not 0 <= paid <= price:
        return f"{paid} was not paid for what is given back: the job's price is {price:g}"
    return None
