"""Compiled exact search of one task: all its vendors, one deadline or all of them."""

from __future__ import annotations

import numpy as np

from scheduler.auction.search.kernels.cells import (
    Cells,
    OfferedCells,
    Rows,
    TaskNeed,
    gather_cells,
)
from scheduler.auction.search.kernels.compiled import INFINITY, Floats, Ints, compiled
from scheduler.auction.search.kernels.relaxation import (
    cover_greedily,
    find_least_cover,
    find_multiplier,
)
from scheduler.auction.search.kernels.window import (
    BestCover,
    compute_schedule_cost,
    fill_rows,
    keep_cells,
    offer_schedule,
    search_window,
)

#: Costs this close differ by the tilt of later slots alone.
_EQUAL = 1 + 2e-10


@compiled
def solve_deadline(
    cells: Cells,
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
    count, vendor_slot : int
        Cells in the schedule (0: none) and the slot its vendor is ready at.
    """
    slots = deadline + 1
    classes = job.rate.shape[0]
    found = BestCover(np.full(1, ceiling), np.zeros(2, np.int64), picked)
    start = _find_first_vendor(job, slots)
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
    charge = cells.own[:end].copy()
    m = fill_rows(every, cells.starts[start], end, cells, charge, rows)
    mu, bound = find_multiplier(rows.cost, units, need, 0, m - 1, 0.0, INFINITY)
    if bound == INFINITY:
        return ceiling, 0, 0
    _tilt_later(charge, cells, bound + job.entry[start], ceiling)
    vendor_slots = np.empty(slots, np.int64)
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
        m = fill_rows(every, cells.starts[t], end, cells, charge, rows)
        filled = t
        mu, bound = find_multiplier(rows.cost, units, need, 0, m - 1, mu, INFINITY)
        if bound == INFINITY:
            break
        vendor_slots[count] = t
        promise[count] = cheapest + bound
        price[count] = mu
        count += 1
        n = cover_greedily(rows.cost, rows.cell, units, need, 0, m - 1, mu, path)
        if n > 0:
            offer_schedule(path, n, t, charge, job, found)
    order = np.argsort(promise[:count], kind="mergesort")
    pool = np.empty(end, np.int64)
    for i in range(count):
        e = order[i]
        gap = found.value[0] - promise[e]
        if gap <= 0.0 or (found.shape[0] > 0 and found.value[0] <= floor):
            break
        t = int(vendor_slots[e])
        mu = float(price[e])
        begin = cells.starts[t]
        if filled != t:
            filled = t
            fill_rows(every, begin, end, cells, charge, rows)
        kept = keep_cells(every[begin:end], cells, charge, job, rows, mu, gap, pool)
        search_window(cells, charge, job, need, pool[:kept], mu, t, found)
    return found.value[0], int(found.shape[0]), int(found.shape[1])


@compiled
def _tilt_later(charge: Floats, cells: Cells, bound: float, ceiling: float) -> None:
    """Make later slots cost more, by less than any price's precision.

    Among equal schedules the early ones, which would otherwise go unused, are taken.
    """
    scale = min(bound, max(ceiling, 0.0))
    tilt = 2e-14 * (scale if scale > 0.0 else min(1.0, max(ceiling, 0.0)))
    for j in range(charge.shape[0]):
        charge[j] += tilt * (cells.slot[j] + 1)


@compiled
def _find_first_vendor(job: TaskNeed, slots: int) -> int:
    """Give the first slot that some vendor is ready at; ``slots`` if there is none."""
    start = 0
    while start < slots and job.entry[start] == INFINITY:
        start += 1
    return start


@compiled
def solve_offer(offer: OfferedCells, job: TaskNeed, deadline: int) -> tuple[int, int, Ints, Ints]:
    """Find the cheapest schedule that ends by a deadline, from the grid itself.

    Returns
    -------
    count, vendor_slot : int
        As ``solve_deadline`` gives them.
    slot, node : int64[count]
        The schedule's cells, in slot order.
    """
    cells = gather_cells(offer, job)
    # As in ``_solved``, but where the tables stand: to hand them on takes time.
    picked = np.empty(deadline + 1, np.int64)
    _, count, vendor_slot = solve_deadline(cells, job, deadline, INFINITY, -INFINITY, picked)
    slot = np.empty(count, np.int64)
    node = np.empty(count, np.int64)
    for i in range(count):
        slot[i] = cells.slot[picked[i]]
        node[i] = cells.node[picked[i]]
    return count, vendor_slot, slot, node


@compiled
def solve_with_hint(
    offer: OfferedCells, job: TaskNeed, deadline: int, before: int, claimed: int, above: float
) -> tuple[tuple[int, int, Ints, Ints], bool, tuple[int, int, Ints, Ints]]:
    """Solve a deadline, and check a claim about later ones, from the grid itself.

    Parameters
    ----------
    offer, job
        The offer up to the last of the deadlines.
    deadline : int
        As for ``solve_offer``; -1: none.
    before : int
        Deadline by which no schedule may be cheaper than ``above``; -1: none.
    claimed : int
        Deadline to be solved besides; -1: none.
    above : float

    Returns
    -------
    find_plan : tuple
        As ``solve_offer`` gives it, for ``deadline``.
    none : bool
        No schedule by ``before`` is cheaper than ``above``.
    at_claimed : tuple
        As ``find_plan``, for ``claimed``.
    """
    cells = gather_cells(offer, job)
    none = True
    if before >= 0:
        picked = np.empty(before + 1, np.int64)
        _, count, _ = solve_deadline(cells, job, before, above, above, picked)
        none = count == 0
    return _solved(cells, job, deadline), none, _solved(cells, job, claimed)


@compiled
def _solved(cells: Cells, job: TaskNeed, deadline: int) -> tuple[int, int, Ints, Ints]:
    picked = np.empty(deadline + 1, np.int64)
    count = 0
    vendor_slot = 0
    if deadline >= 0:
        _, count, vendor_slot = solve_deadline(cells, job, deadline, INFINITY, -INFINITY, picked)
    slot = np.empty(count, np.int64)
    node = np.empty(count, np.int64)
    for i in range(count):
        slot[i] = cells.slot[picked[i]]
        node[i] = cells.node[picked[i]]
    return count, vendor_slot, slot, node


@compiled
def solve_curve(cells: Cells, job: TaskNeed, first: int, last: int) -> Floats:
    """Find the least cost by every deadline of a range, for any number of rates.

    Cost never rises with the deadline, and a schedule serves every deadline from
    its own end on: so the walk goes from the last deadline to just before the end
    of the schedule found, and so on.

    Returns
    -------
    float64[deadlines]
        Infinity where no schedule exists; equal where one schedule serves.
    """
    span = last - first + 1
    price = np.full(span, INFINITY)
    picked = np.empty(last + 1, np.int64)
    d = span - 1
    least = -INFINITY
    while d >= 0:
        value, n, t = solve_deadline(cells, job, first + d, INFINITY, least * _EQUAL, picked)
        if n == 0:
            break
        least = value
        finish = max(int(cells.slot[picked[n - 1]]) - first, 0)
        price[finish : d + 1] = compute_schedule_cost(picked, n, t, cells.own, job)
        d = finish - 1
    return price


@compiled
def trace_cover_curve(cells: Cells, job: TaskNeed, last: int) -> Floats:
    """Give the least cost by every deadline, for one or two rates.

    One pass over slots and vendors: ``paid[b, a]`` is the least cost so far of
    ``a`` slow and ``b`` fast cells, and a vendor puts its price on no cells at all
    from the slot it is ready at.

    Returns
    -------
    float64[last + 1]
        Infinity where no schedule exists.
    """
    slots = last + 1
    classes = job.units.shape[0]
    fast = classes - 1
    # Least numbers of slow cells by number of fast ones.
    most = (job.need + job.units[fast] - 1) // job.units[fast]
    rows = min(most, slots) + 1
    top = np.empty(rows, np.int64)
    for b in range(rows):
        top[b] = 0
        if classes == 2:
            rest = max(job.need - b * job.units[1], 0)
            top[b] = min((rest + job.units[0] - 1) // job.units[0], slots + 1)
    width = int(top.max()) + 1
    paid = np.full((rows, width), INFINITY)
    cost = np.empty(classes)
    curve = np.full(slots, INFINITY)
    least = INFINITY
    for t in range(slots):
        if job.entry[t] < paid[0, 0]:
            paid[0, 0] = job.entry[t]
        for c in range(classes):
            cost[c] = INFINITY
        for j in range(cells.starts[t], cells.starts[t + 1]):
            cost[cells.cls[j]] = cells.own[j]
        slow_cost = float(cost[0]) if classes == 2 else INFINITY
        for b in range(rows - 1, -1, -1):
            _take(paid[b], paid[b - 1] if b > 0 else paid[b], min(top[b], t + 1), slow_cost,
                  float(cost[fast]) if b > 0 else INFINITY)  # fmt: skip
            if paid[b, top[b]] < least and (classes == 2 or b == most):
                least = paid[b, top[b]]
        curve[t] = least
    return curve


@compiled
def _take(row: Floats, below: Floats, most: int, slow_cost: float, fast_cost: float) -> None:
    for a in range(most, 0, -1):
        one = row[a - 1] + slow_cost
        other = below[a] + fast_cost
        least = one if one < other else other
        row[a] = least if least < row[a] else row[a]
    other = below[0] + fast_cost
    row[0] = other if other < row[0] else row[0]


@compiled
def find_earliest_below(cells: Cells, job: TaskNeed, first: int, last: int, ceiling: float) -> int:
    """Find the first deadline of a range with a schedule cheaper than a ceiling.

    Returns
    -------
    int
        -1 when no deadline has one.
    """
    picked = np.empty(last + 1, np.int64)
    low = first
    high = last + 1
    middle = last
    while low < high:
        _, n, _ = solve_deadline(cells, job, middle, ceiling, ceiling, picked)
        if n > 0:
            high = max(low, int(cells.slot[picked[n - 1]]))
        elif middle == last:
            return -1
        else:
            low = middle + 1
        middle = (low + high) // 2
    return low
