"""Seats of the express lane: cells that tasks of the log hold, so that no cell is sold twice."""

from __future__ import annotations

from collections.abc import Iterable

from scheduler.auction.engine.zone_state import ZoneState
from scheduler.types import Cell


def check_seats(zone: ZoneState, seats: Iterable[tuple[str, Cell]]) -> None:
    """Refuse seats in cells that their tasks do not hold.

    Cells of slots that are past are not known any more, and no job runs there.

    Parameters
    ----------
    zone : ZoneState
    seats : iterable of (str, Cell)
        The task that holds a cell, and the cell.

    Raises
    ------
    ValueError
        Names the first seat that is no one's, or another task's.
    """
    for task_id, cell in seats:
        if cell not in zone.grid.held(task_id, from_slot=cell.slot):
            raise ValueError(f"task {task_id} does not hold slot {cell.slot} of node {cell.node}")
