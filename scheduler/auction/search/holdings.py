"""What tasks hold of the cells on sale."""

from __future__ import annotations

from dataclasses import dataclass
from typing import NamedTuple

from scheduler.types import Cell


class HeldCell(NamedTuple):
    """What one task holds of one cell; a tuple, since decisions make many."""

    cell: Cell
    #: Samples per slot.
    rate: float
    #: GB.
    memory: float
    #: Constant terms its admission added to the cell's prices (eqs. 7-8), kept
    #: so that a release can take them back.
    compute_rise: float = 0.0
    memory_rise: float = 0.0


class TaskHolding(NamedTuple):
    """What one task holds, in slot order: few objects, since a zone has many of them."""

    cells: tuple[Cell, ...]
    #: Of each cell, as in ``HeldCell``.
    rates: tuple[float, ...]
    memories: tuple[float, ...]
    compute_rises: tuple[float, ...]
    memory_rises: tuple[float, ...]

    def each(self) -> list[HeldCell]:
        """Give it cell by cell."""
        return list(map(HeldCell, *self))

    @staticmethod
    def of(holds: list[HeldCell]) -> TaskHolding:
        """Put holds together."""
        return TaskHolding(
            tuple(hold.cell for hold in holds),
            tuple(hold.rate for hold in holds),
            tuple(hold.memory for hold in holds),
            tuple(hold.compute_rise for hold in holds),
            tuple(hold.memory_rise for hold in holds),
        )


@dataclass(frozen=True, slots=True)
class CellReservation:
    """One cell that one task holds."""

    task_id: str
    cell: Cell
    #: Samples per slot.
    rate: float
    #: GB.
    memory: float
