"""Whether what a log says was given back is a part of a job that it sold, and of its price.

The refund itself follows from the entry and the state at its place, so the replay checks it.
"""

from __future__ import annotations

import math
from collections.abc import Iterable
from dataclasses import dataclass, replace

from scheduler.auction.engine.give_backs import compute_refund
from scheduler.auction.log.events import (
    BidArrived,
    CellsReleased,
    Event,
    NodeChanged,
    NodeJoined,
    PlansMoved,
    SlotAdvanced,
    TaskReplanned,
)
from scheduler.auction.log.outcomes import GridChange, Outcome
from scheduler.types import Cell, Decision, Task

#: Sums of floats have rounding errors of no more than a billionth.
_MOST = 1 + 1e-9
#: Of a job's price, what stays of one that is said to be refunded, at most.
_MOST_REFUNDED = 0.5


@dataclass(slots=True)
class _SoldTask:
    """A job that the log sold."""

    task: Task
    #: Without the vendor's part.
    price: float
    #: The operational cost in that.
    operational: float
    #: Those of its cells that it still has, with their room in samples; none once it was planned
    #: again.
    room: dict[Cell, float]
    #: Of its work, what has been given back so far.
    given_back: float = 0.0

    def find_most_coming(self, event: CellsReleased, units: float, slot: int) -> float:
        """Of work that is left, the most that the cells are for that go back on sale.

        They are for as large a part of the job as of its room, and for more only where the cell
        that runs has no room for the rest.
        """
        if not self.room:
            return units
        coming = math.fsum(self.room.get(cell, 0.0) for cell in event.cells)
        running = math.fsum(room for cell, room in self.room.items() if cell.slot == slot)
        share = coming / math.fsum(self.room.values())
        return min(coming, max(self.task.compute_demand * share, units - running))


class GiveBackAudit:
    """Holds what is given back against what was sold; jobs sold before the log begins pass."""

    def __init__(self) -> None:
        self._sold: dict[str, _SoldTask] = {}
        #: The slot that runs; ``None`` before the log says it.
        self._slot: int | None = None
        #: The slot that has to begin next: a job ended in it.
        self._due: int | None = None
        #: By node, its type.
        self._types: dict[str, str] = {}

    def find_problem(self, event: Event, outcome: Outcome) -> str | None:
        """Look at the next entry, which the replay agrees with; say what is wrong, if anything."""
        if self._due is not None and not isinstance(event, CellsReleased):
            due, self._due = self._due, None
            if not isinstance(event, SlotAdvanced) or event.slot < due:
                return f"a job ended in slot {due}, which did not begin"
        problem = self._read(event, outcome)
        if isinstance(outcome, GridChange):
            for dropped in outcome.dropped:
                self._forget(dropped.task_id, dropped.cells)
        return problem

    def _forget(self, task_id: str, cells: Iterable[Cell]) -> None:
        """Count the work of a job by the cells that it still has."""
        if task_id in self._sold:
            for cell in cells:
                self._sold[task_id].room.pop(cell, None)

    def _read(self, event: Event, outcome: Outcome) -> str | None:
        match event:
            case SlotAdvanced(slot=slot):
                self._slot = slot
            case NodeJoined(node=node) | NodeChanged(node=node):
                self._types[node.id] = node.gpu_type
            case TaskReplanned(task=task) if task.id in self._sold:
                self._sold[task.id].room.clear()
            case PlansMoved(moves=moves):
                for task_id in {move.task_id for move in moves} & self._sold.keys():
                    self._sold[task_id].room.clear()
            case BidArrived(task=task) if isinstance(outcome, Decision) and outcome.admitted:
                parts = outcome.parts
                vendor, operational = (parts.vendor, parts.operational) if parts else (0.0, 0.0)
                cells = outcome.schedule.cells if outcome.schedule else ()
                types = {cell: self._types.get(cell.node) for cell in cells}
                room = {cell: task.rates.get(of or "", 0.0) for cell, of in types.items()}
                # Nothing is known of nodes that joined before the log begins.
                room = room if all(room.values()) else {}
                price = outcome.payment - vendor
                self._sold[task.id] = _SoldTask(task, price, operational, room)
            case CellsReleased(refunded=True, paid_share=share) if share > _MOST_REFUNDED:
                return f"{share:g} of a job's price stays paid, most of which went back"
            case CellsReleased(task_id=task_id, rest=rest) if task_id in self._sold:
                problem = None if rest is None else self._compare(self._sold[task_id], event, rest)
                self._forget(task_id, event.cells)
                if rest is None and event.paid_share < 1.0:
                    self._expect_end(self._sold[task_id])
                return problem
            case _:
                pass
        return None

    def _expect_end(self, sold: _SoldTask) -> None:
        """Note that a job has ended, as its price does not stay paid: it keeps no cell to come.

        Those of slots that the log does not know yet have to begin next.
        """
        if self._slot is None:
            return
        coming = [cell.slot for cell in sold.room if cell.slot > self._slot]
        if coming:
            self._due = max(*coming, self._due or 0)

    def _compare(self, sold: _SoldTask, event: CellsReleased, rest: Task) -> str | None:
        task, units = sold.task, rest.compute_demand
        begin = rest.arrival_slot
        since = begin - 1 if event.slot is None else event.slot
        if self._slot is not None:
            begin = max(since, self._slot) + 1
            if since > self._slot:
                # It ended in a slot that the log does not know yet: that one has to begin next.
                self._due = max(since, self._due or 0)
        # All that makes a price of it is as it was sold, from the next slot on, at today's rates.
        as_sold = replace(
            task,
            arrival_slot=begin,
            compute_demand=units,
            bid=0.0,
            vendors=(),
            owner="",
            rates=rest.rates,
        )
        sold.given_back += units
        passed = any(cell.slot < begin for cell in event.cells)
        if passed or rest != as_sold or sold.given_back > task.compute_demand * _MOST:
            return "what is given back is no part of the job that was sold"
        most = sold.find_most_coming(event, units, begin - 1)
        if (units - event.begun) > most * _MOST:
            return f"{units - event.begun:g} of the job is not what its cells are for: {most:g} is"
        whole = sold.price * units / task.compute_demand
        if event.promised > compute_refund(paid=math.ceil(whole), price=None):
            return f"{event.promised} was promised for a part of the job that cost {whole:g}"
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
