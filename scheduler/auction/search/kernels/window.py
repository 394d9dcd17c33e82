"""Compiled exact search of one window: the min-cost cover of a task's work.

Problem (12) of the paper with additive prices: pick at most one cell per slot so
that the work is covered, at the least vendor price plus the cost of the cells.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from scheduler.auction.search.kernels.cells import Cells, Rows, TaskNeed
from scheduler.auction.search.kernels.compiled import INFINITY, Floats, Ints, compiled
from scheduler.auction.search.kernels.covers import cover_by_labels, cover_by_pairs
from scheduler.auction.search.kernels.relaxation import cover_greedily, find_multiplier


class BestCover(NamedTuple):
    """The cheapest schedule so far."""

    #: Its cost, float64[1]; what is looked for must cost less.
    value: Floats
    #: Number of cells and slot its vendor is ready at, int64[2]; no cells: none yet.
    shape: Ints
    #: Its cells in slot order, int64[slots].
    cells: Ints


@compiled
def fill_rows(pool: Ints, begin: int, end: int, cells: Cells, charge: Floats, rows: Rows) -> int:
    """Fill in the cheapest cells of a stretch of the pool; give the number of rows.

    ``charge`` is the cells' own cost, tilted.
    """
    classes = rows.cost.shape[1]
    count = 0
    slot = -1
    for i in range(begin, end):
        j = pool[i]
        t = cells.slot[j]
        c = cells.cls[j]
        if t != slot:
            slot = t
            for other in range(classes):
                rows.cost[count, other] = INFINITY
                rows.cell[count, other] = -1
            count += 1
        rows.cost[count - 1, c] = charge[j]
        rows.cell[count - 1, c] = j
    return count


@compiled
def search_window(
    cells: Cells,
    charge: Floats,
    job: TaskNeed,
    need: int,
    pool: Ints,
    mu: float,
    vendor_slot: int,
    found: BestCover,
) -> None:
    """Search the window that begins when one vendor is done.

    Parameters
    ----------
    cells, job
        As gathered.
    charge : float64[n]
        The cells' own cost, later slots higher by less than any price's precision.
    need : int
        Units of work to cover, no less than ``job.need``.
    pool : int64[cells]
        The window's cells, in slot order.
    mu : float
        A guess at the price of work.
    vendor_slot : int
        First slot of the window.
    found : BestCover
        Changed when a cheaper schedule is found.
    """
    classes = job.units.shape[0]
    units = job.units.astype(np.float64)
    slots = min(pool.shape[0], cells.starts.shape[0] - 1)
    rows = Rows(np.empty((slots, classes)), np.empty((slots, classes), np.int64))
    path = np.empty(slots, np.int64)
    enough = found.value[0] - job.entry[vendor_slot]
    m = fill_rows(pool, 0, pool.shape[0], cells, charge, rows)
    mu, bound = find_multiplier(rows.cost, units, need, 0, m - 1, mu, enough)
    if bound >= enough:
        return
    if classes == 2:
        n, _ = cover_by_pairs(rows, job.units, need, m, mu, bound, enough, path)
    else:
        n = cover_greedily(rows.cost, rows.cell, units, need, 0, m - 1, mu, path)
        # With one rate the rounded relaxation is exact.
        if classes > 2:
            if n > 0:
                offer_schedule(path, n, vendor_slot, charge, job, found)
                enough = found.value[0] - job.entry[vendor_slot]
                if bound >= enough:
                    return
            n = cover_by_labels(rows, job.units, need, m, mu, enough, path)
    if n > 0:
        offer_schedule(path, n, vendor_slot, charge, job, found)


@compiled
def keep_cells(
    pool: Ints,
    cells: Cells,
    charge: Floats,
    job: TaskNeed,
    rows: Rows,
    mu: float,
    gap: float,
    target: Ints,
) -> int:
    """Write to ``target`` the cells of a pool that a schedule below the best may use.

    With work priced at ``mu``, a schedule that uses a cell costs at least the
    bound plus what the cell is above the best choice of its slot.
    """
    classes = job.rate.shape[0]
    row = -1
    slot = -1
    least = 0.0
    kept = 0
    for i in range(pool.shape[0]):
        j = pool[i]
        if cells.slot[j] != slot:
            slot = cells.slot[j]
            row += 1
            least = 0.0
            for c in range(classes):
                least = min(least, rows.cost[row, c] - mu * job.units[c])
        if charge[j] - mu * job.units[cells.cls[j]] - least < gap:
            target[kept] = j
            kept += 1
    return kept


@compiled
def compute_schedule_cost(
    path: Ints, n: int, vendor_slot: int, charge: Floats, job: TaskNeed
) -> float:
    """Give a schedule's cost at the given costs of cells."""
    total = job.entry[vendor_slot]
    for i in range(n):
        total += charge[path[i]]
    return float(total)


@compiled
def offer_schedule(
    path: Ints, n: int, vendor_slot: int, charge: Floats, job: TaskNeed, found: BestCover
) -> None:
    """Keep a schedule if it is the cheapest so far."""
    cost = compute_schedule_cost(path, n, vendor_slot, charge, job)
    if cost < found.value[0]:
        found.value[0] = cost
        found.shape[0] = n
        found.shape[1] = vendor_slot
        found.cells[:n] = path[:n]
