"""What is free in a zone, as a copy that joint plans are tried in, and the jobs to be placed."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np

from scheduler.auction.search.grid import Grid, Ints
from scheduler.auction.search.rates import Rates, find_rates
from scheduler.types import Cell


@dataclass(frozen=True, slots=True)
class PromisedJob:
    """What is left of an admitted job, and by when it is promised."""

    task_id: str
    #: Last slot that the promise allows.
    deadline_slot: int
    #: M_i of what is left, samples.
    compute_demand: float
    #: r_i, GB.
    memory_demand: float
    #: s_ik by GPU type.
    rates: Mapping[str, float]
    #: Nodes it is not to go to.
    avoided_nodes: frozenset[str] = frozenset()
    #: As in ``Task``.
    verified_only: bool = False


@dataclass(frozen=True, slots=True)
class Placement:
    """Cells of one job as array indices, one in each row, in slot order."""

    rows: Ints
    columns: Ints


class Room:
    """Free compute and memory of every cell from a slot on.

    Parameters
    ----------
    grid : Grid
        Copied from; must keep its nodes while the room is in use.
    slot : int
        First slot that plans may use.
    """

    def __init__(self, grid: Grid, *, slot: int) -> None:
        begin = max(slot - grid.first_slot, 0)
        self._grid = grid
        self.first_slot = grid.first_slot + begin
        #: Samples and GB, slots by nodes; minus infinity where a cell is not on sale.
        self.compute = grid.find_room()[begin:]
        self.memory = grid.memory_free[begin:].copy()

    def rates(self, job: PromisedJob) -> Rates:
        """Give a job's rates over the nodes."""
        return find_rates(self._grid, job.rates, verified_only=job.verified_only)

    def need(self, job: PromisedJob) -> int:
        """Give a job's work in units of its rates."""
        return self.rates(job).need(job.compute_demand, slots=self._grid.slots)

    def laxity(self, job: PromisedJob) -> int:
        """Give the slots that a job could lose at its fastest and still end in time."""
        fastest = self.rates(job).most_units
        if not fastest:
            return -1
        grid = self._grid
        first = max(grid.vendors.find_end(job.task_id) or 0, self.first_slot)
        window = min(job.deadline_slot, grid.horizon.last_slot) - first + 1
        return window + -self.need(job) // fastest

    def find_fitting(self, job: PromisedJob) -> Ints:
        """Give the units of work that a job could do in each cell up to its deadline."""
        grid, rates = self._grid, self.rates(job)
        rows = max(min(job.deadline_slot, grid.horizon.last_slot) - self.first_slot + 1, 0)
        if not len(rates.units):
            return np.zeros((rows, len(grid.nodes)), np.int64)
        prepared = max((grid.vendors.find_end(job.task_id) or 0) - self.first_slot, 0)
        usable = rates.node_class >= 0
        for node_id in job.avoided_nodes & grid.column.keys():
            usable[grid.column[node_id]] = False
        fits = (
            usable
            & (self.compute[:rows] >= rates.need_compute)
            & (self.memory[:rows] >= job.memory_demand - grid.memory_slack)
        )
        # A job whose vendor is at work does not train before that has ended.
        fits[:prepared] = False
        return np.where(fits, rates.units[rates.node_class], 0)

    def find_soonest(self, job: PromisedJob) -> Placement | None:
        """Place a job in the earliest slots, each on the fastest node, the fullest of those."""
        units = self.find_fitting(job)
        if not units.size:
            return None
        best = units.max(axis=1)
        done = np.cumsum(best)
        need = self.need(job)
        if done[-1] < need:
            return None
        rows = np.flatnonzero(best[: int(np.searchsorted(done, need)) + 1])
        fastest = units[rows] == best[rows, None]
        columns = np.where(fastest, self.compute[rows], np.inf).argmin(axis=1)
        return Placement(rows=rows.astype(np.int64), columns=columns.astype(np.int64))

    def take(self, job: PromisedJob, placement: Placement) -> None:
        """Use cells up."""
        at = placement.rows, placement.columns
        self.compute[at] -= self.rates(job).node_rate[placement.columns]
        self.memory[at] -= job.memory_demand

    def give_back(self, job: PromisedJob, placement: Placement) -> None:
        """Undo ``take``."""
        at = placement.rows, placement.columns
        self.compute[at] += self.rates(job).node_rate[placement.columns]
        self.memory[at] += job.memory_demand

    def release(self, job: PromisedJob) -> None:
        """Free the cells that a job holds, as they were reserved."""
        self._add(job, 1.0)

    def hold(self, job: PromisedJob) -> None:
        """Undo ``release``."""
        self._add(job, -1.0)

    def _add(self, job: PromisedJob, sign: float) -> None:
        holding = self._grid.holds.get(job.task_id)
        for held in () if holding is None else holding.each():
            row = held.cell.slot - self.first_slot
            if row >= 0:
                k = self._grid.column[held.cell.node]
                self.compute[row, k] += sign * held.rate
                self.memory[row, k] += sign * held.memory

    def name_cells(self, placement: Placement) -> tuple[Cell, ...]:
        """Give indices as cells."""
        return self._grid.cells_of(placement.rows + self.first_slot, placement.columns)
