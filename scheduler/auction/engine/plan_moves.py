"""Plans found outside the engine: taken whole, if every promise in them can be kept."""

from __future__ import annotations

from dataclasses import dataclass
from itertools import pairwise

import numpy as np

from scheduler.auction.engine.zone_state import ZoneState
from scheduler.auction.log.events import PlanMove, PlansMoved
from scheduler.auction.log.outcomes import DroppedCells, MovedPlans
from scheduler.auction.search.grid import TOLERANCE, Floats, Grid, Ints
from scheduler.auction.search.holdings import TaskHolding
from scheduler.auction.search.rates import find_rates


@dataclass(frozen=True, slots=True)
class _PlacedMove:
    """A move whose cells exist, as array indices."""

    move: PlanMove
    rows: Ints
    columns: Ints
    #: s_ik of each cell.
    rate: Floats


def move_plans(zone: ZoneState, event: PlansMoved) -> MovedPlans:
    """Give jobs their new cells; no price moves.

    Raises
    ------
    ValueError
        If a move breaks a promise or does not fit. The zone is as it was.
    """
    grid = zone.grid
    leaving = [*(move.task_id for move in event.moves), *event.given_up]
    if len(set(leaving)) < len(leaving):
        raise ValueError("a job is moved twice")
    placed = [_place(grid, move, event.slot) for move in event.moves]
    _check_room(grid, placed, leaving, event.slot)
    released = tuple(_release(grid, task_id, event.slot) for task_id in leaving)
    for one in placed:
        count = len(one.move.cells)
        # What an admission had added to prices stays where it was added.
        holding = TaskHolding(
            cells=one.move.cells,
            rates=tuple(one.rate.tolist()),
            memories=(float(one.move.memory_demand),) * count,
            compute_rises=(0.0,) * count,
            memory_rises=(0.0,) * count,
        )
        grid.reserve(one.move.task_id, holding, rows=one.rows, columns=one.columns, rate=one.rate)
    return MovedPlans(released)


def _release(grid: Grid, task_id: str, slot: int) -> DroppedCells:
    gone = grid.release(task_id, grid.held(task_id, from_slot=slot))
    return DroppedCells(task_id, tuple(hold.cell for hold in gone))


def _place(grid: Grid, move: PlanMove, slot: int) -> _PlacedMove:
    """Find a move's cells and see that they do its work in time."""
    slots = [cell.slot for cell in move.cells]
    if not slots or any(later <= sooner for sooner, later in pairwise(slots)):
        raise ValueError(f"{move.task_id} needs cells in slot order, one in each slot")
    if slots[0] < max(slot, grid.first_slot) or slots[-1] > grid.horizon.last_slot:
        raise ValueError(f"{move.task_id} is moved to slots that are not on sale")
    if slots[0] < (grid.vendors.find_end(move.task_id) or slots[0]):
        raise ValueError(f"{move.task_id} is moved to slots before its vendor is done")
    if slots[-1] > move.deadline_slot:
        raise ValueError(f"{move.task_id} would end after its deadline")
    try:
        columns = np.array([grid.column[cell.node] for cell in move.cells], np.int64)
    except KeyError as error:
        raise ValueError(f"{move.task_id} is moved to {error}, which is not a node") from error
    if move.task_id in grid.verified_only and not move.verified_only:
        raise ValueError(f"{move.task_id} runs on verified nodes only")
    rates = find_rates(grid, move.rates, verified_only=move.verified_only)
    classes = rates.node_class[columns]
    if (classes < 0).any():
        raise ValueError(f"{move.task_id} is moved to a node that cannot run it")
    need = rates.need(move.compute_demand, slots=grid.slots)
    if int(rates.units[classes].sum()) < need:
        raise ValueError(f"{move.task_id} would not do all of its work")
    rows = np.array(slots, np.int64) - grid.first_slot
    if grid.find_withheld()[rows, columns].any():
        raise ValueError(f"{move.task_id} is moved to cells whose nodes ask more than is paid")
    return _PlacedMove(move=move, rows=rows, columns=columns, rate=rates.node_rate[columns])


def _check_room(grid: Grid, placed: list[_PlacedMove], leaving: list[str], slot: int) -> None:
    """See that all moves fit at once, in what is free when all who leave their cells have."""
    compute, memory = grid.compute_free.copy(), grid.memory_free.copy()
    for task_id in leaving:
        holding = grid.holds.get(task_id)
        for hold in () if holding is None else holding.each():
            if hold.cell.slot >= max(slot, grid.first_slot):
                k, row = grid.column[hold.cell.node], grid.row(hold.cell.slot)
                compute[row, k] += hold.rate
                memory[row, k] += hold.memory
    for one in placed:
        compute[one.rows, one.columns] -= one.rate
        memory[one.rows, one.columns] -= one.move.memory_demand
    for one in placed:
        at = one.rows, one.columns
        if (compute[at] < -TOLERANCE * grid.compute_capacity[one.columns]).any():
            raise ValueError(f"{one.move.task_id} is moved to cells without compute for it")
        if (memory[at] < -TOLERANCE * np.abs(grid.memory_capacity[one.columns])).any():
            raise ValueError(f"{one.move.task_id} is moved to cells without memory for it")
