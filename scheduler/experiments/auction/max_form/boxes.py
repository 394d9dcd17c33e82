"""Compiled exact search of one window: branch and bound over the largest prices.

Problem (12) of the paper: pick at most one cell per slot so that the work is
covered, at the least

    vendor price + sum of e + L * sum of s + F * r * cells

where ``L`` and ``F`` are the largest compute and memory prices among the cells
picked (the *max* form). The additive form is the same problem with the whole
price of a cell folded into its own cost and ``L = F = 0``.
"""

from __future__ import annotations

import numpy as np

from scheduler.auction.search.kernels.cells import Rows, TaskNeed
from scheduler.auction.search.kernels.compiled import (
    INFINITY,
    Floats,
    Ints,
    compiled,
    extend_ints,
    extend_rows,
)
from scheduler.auction.search.kernels.covers import cover_by_labels, cover_by_pairs
from scheduler.auction.search.kernels.relaxation import cover_greedily, find_multiplier
from scheduler.auction.search.kernels.window import BestCover
from scheduler.experiments.auction.max_form.fronts import PricedCells


@compiled
def fill_rows(
    pool: Ints,
    begin: int,
    end: int,
    cells: PricedCells,
    charge: Floats,
    job: TaskNeed,
    box: Floats,
    rows: Rows,
) -> int:
    """Fill in the cheapest cells of a box of prices; give the number of rows.

    ``box`` is (low compute, low memory, cap on compute, cap on memory). Only
    cells with prices strictly below the caps count, and each is charged at least
    the low prices: a schedule whose largest prices lie in [low, cap) costs at
    least the sum of its cells here. ``charge`` is the cells' own cost, tilted.
    """
    low_lam, low_phi, cap_lam, cap_phi = box[0], box[1], box[2], box[3]
    classes = job.rate.shape[0]
    memory = job.memory
    count = 0
    slot = -1
    i = begin
    while i < end:
        # PricedCells of one slot and rate stand together, so their least stays in registers.
        j = pool[i]
        t = cells.slot[j]
        c = cells.cls[j]
        stop = cells.starts[t + 1]
        rate = job.rate[c]
        least = INFINITY
        at = -1
        while j < stop and cells.cls[j] == c:
            a = cells.lam[j]
            b = cells.phi[j]
            price = charge[j] + rate * max(low_lam, a) + memory * max(low_phi, b)
            better = (price < least) & (a < cap_lam) & (b < cap_phi)
            least = price if better else least
            at = j if better else at
            i += 1
            if i == end:
                break
            j = pool[i]
        if at < 0:
            continue
        if t != slot:
            slot = t
            for other in range(classes):
                rows.cost[count, other] = INFINITY
                rows.cell[count, other] = -1
            count += 1
        rows.cost[count - 1, c] = least
        rows.cell[count - 1, c] = at
    return count


@compiled
def search_window(
    cells: PricedCells,
    charge: Floats,
    job: TaskNeed,
    need: int,
    pool: Ints,
    span: int,
    mu: float,
    door: int,
    floor: float,
    found: BestCover,
) -> int:
    """Search one vendor's window, box by box; give the number of boxes.

    A box holds the schedules whose largest prices lie in [low, cap). Charging
    every cell at least the low prices turns it into a min-cost cover, which
    bounds it from below; any schedule found there is worth its true cost, which
    bounds the whole from above. The box with the least bound is next. One whose
    bound is not below the best schedule is closed; another is split at one of
    the prices of the schedule found in it, and hands its halves only those cells
    that some schedule below the best may use. With all prices zero, and in the
    additive form, the first exact cover closes the first box.

    Parameters
    ----------
    cells, job
        As gathered.
    charge : float64[n]
        The cells' own cost, later slots higher by less than any price's precision.
    need : int
        Units of work to cover, no less than ``job.need``.
    pool, span : int64[span + x]
        The window's cells, in slot order; the rest is room.
    mu : float
        A guess at the price of work.
    door : int
        First slot of the window.
    floor : float
        A schedule that costs no more than this will do (minus infinity: none).
    found : BestCover
        Changed when a cheaper schedule is found.
    """
    classes = job.units.shape[0]
    units = job.units.astype(np.float64)
    slots = min(span, cells.starts.shape[0] - 1)
    class_units = job.units
    entry = job.entry[door]
    cost = np.empty((slots, classes))
    cell = np.empty((slots, classes), np.int64)
    rows = Rows(cost, cell)
    value = found.value
    path = np.empty(slots, np.int64)
    split = np.empty(2)
    # A box: low prices, caps, a guess at mu, a bound; its cells' stretch of the pool.
    open_boxes = np.empty((64, 6))
    stretch = np.empty((64, 2), np.int64)
    open_boxes[0, :2] = 0.0
    open_boxes[0, 2:4] = INFINITY
    open_boxes[0, 4] = mu
    open_boxes[0, 5] = -INFINITY
    stretch[0, 0] = 0
    stretch[0, 1] = span
    count = 1
    top = span
    boxes = 0
    box = np.empty(6)
    while count > 0 and not (found.shape[0] > 0 and found.value[0] <= floor):
        at = count - 1
        for i in range(count - 2, -1, -1):
            if open_boxes[i, 5] < open_boxes[at, 5]:
                at = i
        enough = value[0] - entry
        box[:] = open_boxes[at]
        if box[5] >= enough:
            # The least bound of all.
            break
        boxes += 1
        begin = stretch[at, 0]
        end = stretch[at, 1]
        count -= 1
        open_boxes[at] = open_boxes[count]
        stretch[at] = stretch[count]
        m = fill_rows(pool, begin, end, cells, charge, job, box, rows)
        mu, bound = find_multiplier(cost, units, need, 0, m - 1, box[4], enough)
        if bound >= enough:
            continue
        if classes == 2:
            # Called here, where the tables stand: to hand them on costs as much as to use them.
            n, least = cover_by_pairs(rows, class_units, need, m, mu, bound, enough, path)
        else:
            n, least = cheapest_cover(
                rows, m, cells, charge, job, units, need, mu, bound, enough, door, box, found, path
            )
        if n == 0:
            continue
        offer_schedule(path, n, door, cells, charge, job, found)
        enough = value[0] - entry
        if least >= enough:
            continue
        axis, _ = split_box(path, n, cells, job, box, split)
        if axis < 0:
            # The cover's cost is its true one, and it is the box's best.
            continue
        if top + (end - begin) > pool.shape[0]:
            pool = extend_ints(pool, 2 * (top + (end - begin)))
        kept = keep_cells(
            pool, begin, end, cells, charge, job, box, rows, mu, enough - bound, pool, top
        )
        if count + 2 > open_boxes.shape[0]:
            more = 2 * open_boxes.shape[0]
            open_boxes = extend_rows(open_boxes, more)
            stretch = extend_rows(stretch, more)
        box[4] = mu
        box[5] = max(box[5], least)
        for half in range(2):
            open_boxes[count] = box
            # Among equals the half with the lower prices is next.
            open_boxes[count, axis if half == 0 else 2 + axis] = split[axis]
            stretch[count, 0] = top
            stretch[count, 1] = top + kept
            count += 1
        top += kept
    return boxes


@compiled
def cheapest_cover(
    rows: Rows,
    m: int,
    cells: PricedCells,
    charge: Floats,
    job: TaskNeed,
    units: Floats,
    need: int,
    mu: float,
    bound: float,
    enough: float,
    door: int,
    box: Floats,
    found: BestCover,
    path: Ints,
) -> tuple[int, float]:
    """Find a box's cheapest cover below ``enough``, or one good enough to split by.

    For one rate, where the rounded relaxation is exact, or more than two. There exact
    covers are expensive: as long as it is prices, not whole cells, that leave the gap,
    the rounded relaxation chooses the split.

    Returns
    -------
    n : int
        PricedCells in ``path``; 0 when no cover is below ``enough``.
    least : float
        No cover of the box costs less.
    """
    classes = units.shape[0]
    n = cover_greedily(rows.cost, rows.cell, units, need, 0, m - 1, mu, path)
    if classes == 1:
        return n, bound
    if n > 0:
        offer_schedule(path, n, door, cells, charge, job, found)
        enough = found.value[0] - job.entry[door]
        if bound >= enough:
            return 0, bound
        _, gap = split_box(path, n, cells, job, box, np.empty(2))
        if gap >= enough - bound:
            return n, bound
    n = cover_by_labels(rows, job.units, need, m, mu, enough, path)
    return n, bound


@compiled
def keep_cells(
    pool: Ints,
    begin: int,
    end: int,
    cells: PricedCells,
    charge: Floats,
    job: TaskNeed,
    box: Floats,
    rows: Rows,
    mu: float,
    gap: float,
    target: Ints,
    start: int,
) -> int:
    """Write to ``target`` the cells of a box that a schedule below the best may use.

    With work priced at ``mu``, a schedule that uses a cell costs at least the
    bound plus what the cell is above the best choice of its slot.
    """
    low_lam, low_phi, cap_lam, cap_phi = box[0], box[1], box[2], box[3]
    classes = job.rate.shape[0]
    row = -1
    slot = -1
    least = 0.0
    kept = start
    for i in range(begin, end):
        j = pool[i]
        a = cells.lam[j]
        b = cells.phi[j]
        if a < cap_lam and b < cap_phi:
            if cells.slot[j] != slot:
                slot = cells.slot[j]
                row += 1
                least = 0.0
                for c in range(classes):
                    least = min(least, rows.cost[row, c] - mu * job.units[c])
            c = cells.cls[j]
            price = charge[j] + job.rate[c] * max(low_lam, a) + job.memory * max(low_phi, b)
            if price - mu * job.units[c] - least < gap:
                target[kept] = j
                kept += 1
    return kept - start


@compiled
def split_box(
    path: Ints,
    n: int,
    cells: PricedCells,
    job: TaskNeed,
    box: Floats,
    split: Floats,
) -> tuple[int, float]:
    """Choose where to split a box, by the schedule found in it.

    Returns
    -------
    axis : int
        0 compute, 1 memory price; -1 when the schedule leaves nothing open.
    gap : float
        What the schedule's true price is above the one it was found at.
    """
    low_lam = box[0]
    low_phi = box[1]
    samples = 0.0
    extra_lam = 0.0
    extra_phi = 0.0
    high_lam = low_lam
    high_phi = low_phi
    for i in range(n):
        j = path[i]
        s = job.rate[cells.cls[j]]
        samples += s
        high_lam = max(high_lam, cells.lam[j])
        high_phi = max(high_phi, cells.phi[j])
        extra_lam += s * max(low_lam, cells.lam[j])
        extra_phi += max(low_phi, cells.phi[j])
    gap_lam = high_lam * samples - extra_lam
    gap_phi = job.memory * (high_phi * n - extra_phi)
    # Halve the range of prices the schedule leaves open, at a price of its own,
    # so that both halves are smaller.
    half_lam = 0.5 * (low_lam + high_lam)
    half_phi = 0.5 * (low_phi + high_phi)
    split[0] = high_lam
    split[1] = high_phi
    for i in range(n):
        j = path[i]
        if half_lam <= cells.lam[j] < split[0]:
            split[0] = cells.lam[j]
        if half_phi <= cells.phi[j] < split[1]:
            split[1] = cells.phi[j]
    axis = -1
    if gap_lam >= gap_phi and split[0] > low_lam:
        axis = 0
    elif split[1] > low_phi:
        axis = 1
    elif split[0] > low_lam:
        axis = 0
    return axis, float(gap_lam + gap_phi)


@compiled
def schedule_cost(
    path: Ints, n: int, door: int, cells: PricedCells, charge: Floats, job: TaskNeed
) -> float:
    """Give a schedule's true cost at the given own costs of cells."""
    total = job.entry[door]
    samples = 0.0
    high_lam = 0.0
    high_phi = 0.0
    for i in range(n):
        j = path[i]
        total += charge[j]
        samples += job.rate[cells.cls[j]]
        high_lam = max(high_lam, cells.lam[j])
        high_phi = max(high_phi, cells.phi[j])
    return float(total + high_lam * samples + high_phi * (job.memory * n))


@compiled
def offer_schedule(
    path: Ints,
    n: int,
    door: int,
    cells: PricedCells,
    charge: Floats,
    job: TaskNeed,
    found: BestCover,
) -> None:
    """Keep a schedule if, at its true cost, it is the cheapest so far."""
    cost = schedule_cost(path, n, door, cells, charge, job)
    if cost < found.value[0]:
        found.value[0] = cost
        found.shape[0] = n
        found.shape[1] = door
        found.cells[:n] = path[:n]
