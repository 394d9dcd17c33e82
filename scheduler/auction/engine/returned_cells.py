"""Cells that owners gave back, until their slots begin: how much of each was sold again.

Who gives a cell back shortly before its slot begins leaves little time to sell it again. So the
rent in its price, which is what it costs above the operational cost, goes back only as far as it
is: by the share of the room that somebody has when the slot begins, and no more than the rent that
those who bought the cell since pay for it.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, field

from scheduler.auction.log.outcomes import SoldAgain
from scheduler.auction.search.grid import Grid
from scheduler.auction.search.task_plan import TaskPlan
from scheduler.types import Cell

#: Of cells that begin so many slots after the one that runs, or earlier, the rent waits.
LATE_SLOTS = 4


@dataclass(frozen=True, slots=True)
class Claim:
    """A cell that an owner gave back."""

    task_id: str
    #: In samples.
    room: float
    #: What of the rent goes back if all of the room is sold again; whole units of money.
    rent: int


@dataclass(slots=True)
class ReturnedCell:
    """A cell of a slot to come that owners gave back, the latest last."""

    claims: tuple[Claim, ...] = ()
    #: By task that bought it since and has it still, the rent that it pays.
    bought: dict[str, float] = field(default_factory=dict[str, float])

    def copy(self) -> ReturnedCell:
        return ReturnedCell(self.claims, dict(self.bought))


class ReturnedCells:
    """Those of one zone."""

    def __init__(self, cells: dict[Cell, ReturnedCell] | None = None) -> None:
        self.cells = cells or {}

    def copy(self) -> ReturnedCells:
        return ReturnedCells({cell: known.copy() for cell, known in self.cells.items()})

    def give_back(self, cell: Cell, claim: Claim) -> None:
        """Note that an owner gave a cell back."""
        known = self.cells.setdefault(cell, ReturnedCell())
        known.claims = (*known.claims, claim)

    def sell(self, task_id: str, plan: TaskPlan, *, memory: float) -> None:
        """Note what a task that was sold pays above the operational cost of each cell."""
        if not self.cells:
            return
        rents = plan.rate * plan.compute_price + memory * plan.memory_price
        for cell, rent in zip(plan.schedule.cells, rents.tolist(), strict=True):
            if cell in self.cells:
                self.cells[cell].bought[task_id] = rent

    def release(self, task_id: str, cell: Cell) -> None:
        """Note that a task has a cell no longer."""
        if cell in self.cells:
            self.cells[cell].bought.pop(task_id, None)

    def begin(self, slot: int, grid: Grid) -> tuple[SoldAgain, ...]:
        """Say how much of the rent goes back of cells whose slots begin.

        Where the log skips a slot, the market let them pass unsold, and all of their rent goes
        back. Call before the grid retires earlier slots.
        """
        is_skipped = slot > grid.first_slot + 1
        found: list[SoldAgain] = []
        for cell in sorted(cell for cell in self.cells if cell.slot <= slot):
            known = self.cells.pop(cell)
            share = None if is_skipped else _find_share(cell, known, grid)
            found += _share_out(cell, known, share)
        return tuple(found)


def _share_out(cell: Cell, known: ReturnedCell, share: float | None) -> list[SoldAgain]:
    """Give each owner its part of what the new buyers pay; all that waits if ``share`` is None."""
    waits = sum(claim.rent for claim in known.claims)
    paid = math.fsum(known.bought.values())
    return [
        SoldAgain(
            claim.task_id,
            cell,
            waited=claim.rent,
            rent=claim.rent
            if share is None
            else math.floor(min(claim.rent * share, paid * claim.rent / waits)),
        )
        for claim in known.claims
    ]


def _find_share(cell: Cell, known: ReturnedCell, grid: Grid) -> float | None:
    """Give how much somebody has of the room that was given back; None where it is not for sale.

    A node that went off sale since is not the owner's doing: nobody could buy the cell.
    """
    if cell.node not in grid.column or cell.slot not in grid.horizon:
        return None
    row, k = grid.row(cell.slot), grid.column[cell.node]
    free = float(grid.compute_free[row, k])
    # Who bought a cell that was given back may have given it back again.
    room = min(math.fsum(claim.room for claim in known.claims), float(grid.compute_capacity[k]))
    if not math.isfinite(free) or room <= 0:
        return None
    return min(1.0, max(0.0, 1.0 - free / room))
