"""Compiled exact search of one task in the max form: all its vendors, one deadline."""

from __future__ import annotations

import numpy as np

from scheduler.auction.search.kernels.cells import TaskNeed
from scheduler.auction.search.kernels.compiled import INFINITY, Ints, compiled
from scheduler.auction.search.kernels.relaxation import (
    cover_greedily,
    find_least_cover,
    find_multiplier,
)
from scheduler.experiments.auction.max_form.boxes import (
    BestCover,
    Rows,
    fill_rows,
    keep_cells,
    offer_schedule,
    search_window,
)
from scheduler.experiments.auction.max_form.fronts import PricedCells


@compiled
def solve_deadline(
    cells: PricedCells,
    job: TaskNeed,
    deadline: int,
    ceiling: float,
    floor: float,
    picked: Ints,
) -> tuple[float, int, int]:
    """Find the cheapest schedule that ends by a deadline.

    Parameters
    ----------
    cells, job
        As gathered.
    deadline : int
        Last slot, counted from the first one gathered.
    ceiling : float
        Only schedules cheaper than this are looked for (infinity: all).
    floor : float
        A schedule that costs no more than this will do (minus infinity: none).
    picked : int64[slots]
        Filled with the schedule's cells, in slot order.

    Returns
    -------
    value : float
        Cost, ``ceiling`` when there is no schedule below it.
    count, door : int
        Cells in the schedule (0: none) and the slot its vendor is ready at.
    """
    slots = deadline + 1
    classes = job.rate.shape[0]
    found = BestCover(np.full(1, ceiling), np.zeros(2, np.int64), picked)
    start = 0
    while start < slots and job.entry[start] == INFINITY:
        start += 1
    if start == slots:
        return ceiling, 0, 0
    need = find_least_cover(job.units, job.need)
    units = job.units.astype(np.float64)
    rows = Rows(np.empty((slots, classes)), np.empty((slots, classes), np.int64))
    path = np.empty(slots, np.int64)
    end = cells.starts[slots]
    every = np.empty(end, np.int64)
    for j in range(end):
        every[j] = j
    whole = np.array([0.0, 0.0, INFINITY, INFINITY])
    charge = cells.own[:end].copy()
    m = fill_rows(every, cells.starts[start], end, cells, charge, job, whole, rows)
    mu, bound = find_multiplier(rows.cost, units, need, 0, m - 1, 0.0, INFINITY)
    if bound == INFINITY:
        return ceiling, 0, 0
    # Later slots cost more by less than any price's precision: among equals the
    # early ones, which would otherwise go unused, are taken.
    scale = min(bound + job.entry[start], max(ceiling, 0.0))
    tilt = 2e-14 * (scale if scale > 0.0 else min(1.0, max(ceiling, 0.0)))
    for j in range(end):
        charge[j] += tilt * (cells.slot[j] + 1)
    doors = np.empty(slots, np.int64)
    promise = np.empty(slots)
    price = np.empty(slots)
    count = 0
    filled = start
    cheapest = INFINITY
    for t in range(start, slots):
        # A vendor that is done later must be cheaper to be worth a look.
        if not job.entry[t] < cheapest:
            continue
        cheapest = job.entry[t]
        m = fill_rows(every, cells.starts[t], end, cells, charge, job, whole, rows)
        filled = t
        mu, bound = find_multiplier(rows.cost, units, need, 0, m - 1, mu, INFINITY)
        if bound == INFINITY:
            break
        doors[count] = t
        promise[count] = cheapest + bound
        price[count] = mu
        count += 1
        n = cover_greedily(rows.cost, rows.cell, units, need, 0, m - 1, mu, path)
        if n > 0:
            offer_schedule(path, n, t, cells, charge, job, found)
    order = np.argsort(promise[:count], kind="mergesort")
    pool = np.empty(2 * end + 64, np.int64)
    for i in range(count):
        e = order[i]
        gap = found.value[0] - promise[e]
        if gap <= 0.0 or (found.shape[0] > 0 and found.value[0] <= floor):
            break
        t = int(doors[e])
        mu = float(price[e])
        begin = cells.starts[t]
        if filled != t:
            filled = t
            fill_rows(every, begin, end, cells, charge, job, whole, rows)
        kept = keep_cells(every, begin, end, cells, charge, job, whole, rows, mu, gap, pool, 0)
        search_window(cells, charge, job, need, pool, kept, mu, t, floor, found)
    return found.value[0], int(found.shape[0]), int(found.shape[1])
