"""Cells that owners gave back, until their slots begin: how much of each was sold again.

Who gives a cell back shortly before its slot begins leaves little time to sell it again. So the
rent in its price, which is what it costs above the operational cost, goes back only as far as it
is: by the share of the room that somebody has when the slot begins, and no more than the rent that
those who bought the cell since pay for it. A buyer that the market moved to other cells, or that
needs its cells no longer, pays all the same, and counts as if it were there, by the part of its job
that it pays for. What the market itself puts there, or takes off sale, nobody could buy, nor what a
slower node has not. It goes back whole.
"""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Collection, Iterable
from dataclasses import dataclass, field, replace
from typing import NamedTuple

from scheduler.auction.log.outcomes import SoldAgain
from scheduler.auction.search.grid import Grid
from scheduler.auction.search.task_plan import TaskPlan
from scheduler.types import Cell


@dataclass(frozen=True, slots=True)
class Claim:
    """A cell that an owner gave back."""

    task_id: str
    #: In samples.
    room: float
    #: What of the rent goes back if all of the room is sold again; whole units of money.
    rent: int
    #: The slot in which the owner gave it back, however late the log says so.
    slot: int


class Purchase(NamedTuple):
    """What a task bought of a cell that an owner had given back."""

    #: What it pays above the operational cost.
    rent: float
    #: In samples.
    room: float


@dataclass(slots=True)
class ReturnedCell:
    """A cell of a slot to come that owners gave back, the latest last."""

    claims: tuple[Claim, ...] = ()
    #: Tasks that had some of it already when it was first given back.
    before: tuple[str, ...] = ()
    #: By task that bought it since and pays for it: it has it, was moved elsewhere, or needs it no
    #: longer.
    bought: dict[str, Purchase] = field(default_factory=dict[str, Purchase])
    #: It was dearer since, or off sale, if only for a while, and not by who gave it back.
    is_withdrawn: bool = False
    #: What the node did in a slot when it was first given back, and at least since; samples.
    capacity: float = 0.0
    least_capacity: float = 0.0

    def copy(self) -> ReturnedCell:
        return replace(self, bought=dict(self.bought))


class ReturnedCells:
    """Those of one zone."""

    def __init__(self, cells: dict[Cell, ReturnedCell] | None = None) -> None:
        self.cells = cells or {}

    def copy(self) -> ReturnedCells:
        return ReturnedCells({cell: known.copy() for cell, known in self.cells.items()})

    def give_back(self, claims: Iterable[tuple[Cell, Claim]], grid: Grid) -> None:
        """Note that an owner gave cells back, which the grid has on sale again."""
        new = [(cell, claim) for cell, claim in claims if claim.rent > 0]
        holders = _list_holders(grid, {cell for cell, _ in new} - self.cells.keys())
        for cell, claim in new:
            if cell not in self.cells:
                capacity = float(grid.compute_capacity[grid.column[cell.node]])
                self.cells[cell] = ReturnedCell(
                    before=tuple(holders[cell]), capacity=capacity, least_capacity=capacity
                )
            known = self.cells[cell]
            known.claims = (*known.claims, claim)

    def sell(self, task_id: str, plan: TaskPlan, *, memory: float) -> None:
        """Note what a task that was sold pays above the operational cost of each cell."""
        if not self.cells:
            return
        rents = plan.rate * plan.compute_price + memory * plan.memory_price
        sold = zip(rents.tolist(), plan.rate.tolist(), strict=True)
        for cell, (rent, room) in zip(plan.schedule.cells, sold, strict=True):
            if cell in self.cells:
                self.cells[cell].bought[task_id] = Purchase(rent, room)

    def drop(
        self, task_id: str, grid: Grid, *, released: Collection[Cell] = (), left: float = 0.0
    ) -> None:
        """Note that cells of a task went back on sale.

        Of those that it gave back (``released``) it pays for none any more. Of what it bought and
        has no longer for another reason, it pays for the part of its job that is ``left``. One
        that has no plan at all is failed by the market, which takes nothing for it.
        """
        bought = [cell for cell, known in self.cells.items() if task_id in known.bought]
        holders = _list_holders(grid, bought)
        for cell in bought:
            if task_id in holders[cell]:
                continue
            rent, room = self.cells[cell].bought.pop(task_id)
            if left > 0 and cell not in released:
                self.cells[cell].bought[task_id] = Purchase(rent * left, room * left)

    def withdraw(self, node_id: str, *, from_slot: int = 0, until_slot: float = math.inf) -> None:
        """Note that a node's cells could not be bought as they had been sold.

        Else its provider could keep a cell idle, and be paid for that what it asks.
        """
        for cell, known in self.cells.items():
            if cell.node == node_id and from_slot <= cell.slot <= until_slot:
                known.is_withdrawn = True

    def slow_down(self, node_id: str, capacity: float) -> None:
        """Note that a node does no more in a slot: what it had beyond could not be bought."""
        for cell, known in self.cells.items():
            if cell.node == node_id:
                known.least_capacity = min(known.least_capacity, capacity)

    def withdraw_unsold(self, grid: Grid) -> None:
        """Note which cells are off sale now, whatever took them."""
        for cell, known in self.cells.items():
            known.is_withdrawn = known.is_withdrawn or not _is_on_sale(cell, grid)

    def begin(self, slot: int, grid: Grid) -> tuple[SoldAgain, ...]:
        """Say how much of the rent goes back of cells whose slots begin.

        Call before the grid retires earlier slots.
        """
        due = sorted(cell for cell in self.cells if cell.slot <= slot)
        holders = _list_holders(grid, due)
        found: list[SoldAgain] = []
        for cell in due:
            known = self.cells.pop(cell)
            use = None if known.is_withdrawn else _find_use(cell, known, holders[cell], grid)
            found += [_answer(cell, claim, use, grid) for claim in known.claims]
        return tuple(found)


@dataclass(frozen=True, slots=True)
class _Use:
    """Of a cell that was on sale."""

    #: Of the rent that waits, what goes back.
    back: float
    #: Of the room that was given back, what nobody has.
    unsold: float


def _answer(cell: Cell, claim: Claim, use: _Use | None, grid: Grid) -> SoldAgain:
    """Say what goes back to one who gave a cell back.

    By the share that was sold of the cell that was the next when it was given back, also if the log
    comes to that later. Of others all goes back where the market had no turn in the whole slot
    before: it let them pass unsold.
    """
    is_skipped = cell.slot > max(grid.first_slot, claim.slot) + 1
    if use is None or is_skipped:
        return SoldAgain(claim.task_id, cell, waited=claim.rent, rent=claim.rent)
    return SoldAgain(
        claim.task_id,
        cell,
        waited=claim.rent,
        rent=math.floor(claim.rent * use.back),
        unsold=claim.room * use.unsold,
    )


def _find_use(
    cell: Cell, known: ReturnedCell, holders: dict[str, float], grid: Grid
) -> _Use | None:
    """Find what became of a cell; ``None`` where it is not for sale.

    Nobody could buy it then, and that is not the owner's doing: its node went off sale, or asks
    more than is paid.
    """
    if not _is_on_sale(cell, grid):
        return None
    at = grid.row(cell.slot), grid.column[cell.node]
    # As if the node were as fast as it was: one that became faster was sold no less.
    free = float(grid.find_room()[at]) + (known.capacity - float(grid.compute_capacity[at[1]]))
    # Who bought a cell that was given back may have given it back again.
    given = math.fsum(claim.room for claim in known.claims)
    room = min(given, known.capacity)
    fits = _find_buyable(known, holders, room)
    if fits <= 0:
        return None
    waits = sum(claim.rent for claim in known.claims)
    since = holders.keys() - set(known.before)
    paid = math.fsum(known.bought[task].rent for task in sorted(known.bought))
    elsewhere = math.fsum(
        known.bought[task].room for task in sorted(known.bought.keys() - holders.keys())
    )
    moved = math.fsum(holders[task] for task in sorted(since - known.bought.keys()))
    # Who bought it pays its rent, and instead of whom the market put there, somebody could have.
    most = paid / waits + min(1.0, moved / room)
    slowed = 1.0 - fits / room
    return _Use(
        back=min(1.0, slowed + min(_find_share(free - elsewhere, room), most)),
        unsold=max(0.0, 1.0 - slowed - _find_share(free, room)),
    )


def _find_buyable(known: ReturnedCell, holders: dict[str, float], room: float) -> float:
    """Give how much of the room could be bought all the time."""
    if known.least_capacity >= known.capacity:
        return room
    before = math.fsum(holders[task] for task in known.before if task in holders)
    return min(room, known.least_capacity - before)


def _find_share(free: float, room: float) -> float:
    """Give the part of some room that is not free."""
    return min(1.0, max(0.0, 1.0 - free / room))


def _is_on_sale(cell: Cell, grid: Grid) -> bool:
    if cell.node not in grid.column or cell.slot not in grid.horizon:
        return False
    at = grid.row(cell.slot), grid.column[cell.node]
    return math.isfinite(float(grid.find_room()[at]))


def _list_holders(grid: Grid, cells: Collection[Cell]) -> defaultdict[Cell, dict[str, float]]:
    """Give for each cell the tasks that hold some of it, with their samples."""
    holders: defaultdict[Cell, dict[str, float]] = defaultdict(dict)
    wanted = set(cells)
    if wanted:
        for held in grid.reservations():
            if held.cell in wanted:
                holders[held.cell][held.task_id] = held.rate
    return holders
