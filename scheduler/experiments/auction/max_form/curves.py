"""Compiled price-by-deadline curve in the max form: one search for all deadlines."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from scheduler.auction.search.kernels.cells import TaskNeed
from scheduler.auction.search.kernels.compiled import (
    INFINITY,
    Floats,
    Ints,
    compiled,
    extend_ints,
    extend_rows,
)
from scheduler.auction.search.kernels.relaxation import find_least_cover
from scheduler.experiments.auction.max_form.boxes import Rows, fill_rows, schedule_cost, split_box
from scheduler.experiments.auction.max_form.fronts import PricedCells

#: A bound that is below a price by no more than this share is that price.
_SAME = 1 - 1e-13
#: What sums of floats may be off by where counts are left out for their cost.
_MORE = 1 + 1e-12


class Covers(NamedTuple):
    """The cheapest covers of a box by every deadline, and room to find them."""

    #: Slow cells needed beside so many fast ones, int64[fast].
    top: Ints
    #: Least cost so far of so many fast and slow cells, each count one further on, of
    #: this row and the one before by turns: float64[2, fast + 1, slow + 1].
    paid: Floats
    #: Most slow cells beside so many fast ones that may lead anywhere, int64[fast].
    reach: Ints
    #: What a row adds to the cheapest cover of some counts: nothing, slow or fast;
    #: int8[row, fast, slow].
    choice: NDArray[np.int8]
    #: Least cost of a unit of work from each row on, float64[rows + 1].
    later: Floats
    #: Least cost by every deadline, and its number of fast cells.
    bound: Floats
    fast: Ints


@compiled
def trace_prices_by_deadline(cells: PricedCells, job: TaskNeed, last: int) -> Floats:
    """Find the least cost by every deadline, in the max form, one or two rates.

    The boxes of prices of ``search_window``, each looked at once for all deadlines:
    one pass over slots and vendors gives the cheapest cover by every deadline, which
    bounds its price from below; the schedules behind the bounds are offered, at their
    true cost, to every deadline from their end on. A box is closed when no deadline's
    bound is below the best known for it, else split by the schedule of a deadline
    whose bound is far below.

    Returns
    -------
    float64[last + 1]
        Infinity where no schedule exists.
    """
    slots = last + 1
    best = np.full(slots, INFINITY)
    start = 0
    while start < slots and job.entry[start] == INFINITY:
        start += 1
    if start == slots:
        return best
    # Where the cheapest vendor is ready that is done by a slot.
    doors = np.full(slots, start)
    for t in range(start + 1, slots):
        doors[t] = t if job.entry[t] < job.entry[doors[t - 1]] else doors[t - 1]
    need = find_least_cover(job.units, job.need)
    classes = job.rate.shape[0]
    rows = Rows(np.empty((slots, classes)), np.empty((slots, classes), np.int64))
    covers = _room(job.units, need, slots)
    bound = covers.bound
    path = np.empty(slots, np.int64)
    widest = np.empty(slots, np.int64)
    split = np.empty(2)
    end = cells.starts[slots]
    pool = np.empty(4 * end + 64, np.int64)
    for j in range(end):
        pool[j] = j
    # A box: low prices, caps, how far below its parent's bound was; its cells'
    # stretch of the pool, its first and last deadline.
    open_boxes = np.empty((64, 5))
    stretch = np.empty((64, 4), np.int64)
    open_boxes[0, :2] = 0.0
    open_boxes[0, 2:] = INFINITY
    stretch[0, 0] = cells.starts[start]
    stretch[0, 1] = end
    stretch[0, 2] = start
    stretch[0, 3] = last
    count = 1
    used = end
    box = np.empty(5)
    while count > 0:
        at = count - 1
        for i in range(count - 2, -1, -1):
            if open_boxes[i, 4] > open_boxes[at, 4]:
                at = i
        box[:] = open_boxes[at]
        begin = stretch[at, 0]
        end = stretch[at, 1]
        since = stretch[at, 2]
        until = stretch[at, 3]
        count -= 1
        open_boxes[at] = open_boxes[count]
        stretch[at] = stretch[count]
        m = fill_rows(pool, begin, end, cells, cells.own, job, box, rows)
        _cover(rows, m, cells, job, need, doors, since, until, best, covers)
        width = 0.0
        n = 0
        d = until
        while d >= since and bound[d] < INFINITY:
            if bound[d] < best[d] * _SAME:
                k = _walk(rows, m, cells, covers, d, path)
                door = int(doors[cells.slot[path[0]]])
                cost = schedule_cost(path, k, door, cells, cells.own, job)
                finish = int(cells.slot[path[k - 1]])
                for e in range(finish, slots):
                    best[e] = min(best[e], cost)
                if bound[d] < best[d] * _SAME and best[d] - bound[d] > width:
                    axis, _ = split_box(path, k, cells, job, box, split)
                    if axis >= 0:
                        width = best[d] - bound[d]
                        n = k
                        widest[:k] = path[:k]
                # Deadlines from its end on have the same cover.
                d = finish
            d -= 1
        # A deadline's best may be one found for an earlier one.
        while until >= since and not bound[until] < best[until] * _SAME:
            until -= 1
        while since <= until and not bound[since] < best[since] * _SAME:
            since += 1
        if n == 0 or until < since:
            continue
        axis, _ = split_box(widest, n, cells, job, box, split)
        if count + 2 > open_boxes.shape[0]:
            more = 2 * open_boxes.shape[0]
            open_boxes = extend_rows(open_boxes, more)
            stretch = extend_rows(stretch, more)
        if used + 2 * (end - begin) > pool.shape[0]:
            pool = extend_ints(pool, 2 * (used + 2 * (end - begin)))
        box[4] = width
        for half in range(2):
            open_boxes[count] = box
            open_boxes[count, axis if half == 0 else 2 + axis] = split[axis]
            stretch[count, 0] = used
            for i in range(begin, end):
                j = pool[i]
                if cells.slot[j] > until:
                    break
                if cells.lam[j] < open_boxes[count, 2] and cells.phi[j] < open_boxes[count, 3]:
                    pool[used] = j
                    used += 1
            stretch[count, 1] = used
            stretch[count, 2] = since
            stretch[count, 3] = until
            count += 1
    return best


@compiled
def _room(units: Ints, need: int, slots: int) -> Covers:
    """Make room for covers by least pairs of counts, fast ones first."""
    classes = units.shape[0]
    fast = units[classes - 1]
    most = (need + fast - 1) // fast
    top = np.zeros(min(most, slots) + 1, np.int64)
    for b in range(top.shape[0]):
        rest = max(need - b * fast, 0)
        if rest > 0:
            # With one rate, fewer fast cells than all are never enough.
            slow = slots + 1 if classes == 1 else (rest + units[0] - 1) // units[0]
            top[b] = min(slow, slots + 1)
    counts = top.shape[0]
    width = int(top.max()) + 1 if classes == 2 else 1
    return Covers(
        top,
        np.empty((2, counts + 1, width + 1)),
        np.empty(counts, np.int64),
        np.empty((slots, counts, width), np.int8),
        np.empty(slots + 1),
        np.empty(slots),
        np.empty(slots, np.int64),
    )


@compiled
def _cover(
    rows: Rows,
    m: int,
    cells: PricedCells,
    job: TaskNeed,
    need: int,
    doors: Ints,
    since: int,
    until: int,
    best: Floats,
    covers: Covers,
) -> None:
    """Find a box's cheapest cover by each of its deadlines that undercuts the best.

    Counts from which no deadline's best can be undercut, with every unit of work that
    is missing at the least price still to come, are left as they are: they never can
    again, for the best falls with the deadline and that price rises with the slot.
    """
    top, paid, reach, choice, later = (
        covers.top, covers.paid, covers.reach, covers.choice, covers.later,
    )  # fmt: skip
    classes = job.units.shape[0]
    fast = classes - 1
    counts = top.shape[0]
    width = choice.shape[2] - 1
    paid[:] = INFINITY
    reach[:] = -1
    later[m] = 0.0
    if m > 0:
        later[m - 1] = INFINITY
    for i in range(m - 1, -1, -1):
        if i < m - 1:
            later[i] = later[i + 1]
        for c in range(classes):
            later[i] = min(later[i], rows.cost[i, c] / job.units[c])
    least = INFINITY
    least_fast = -1
    high = 0
    slot = since
    for i in range(m):
        t = cells.slot[max(rows.cell[i, 0], rows.cell[i, fast])]
        if t > until:
            break
        while slot < t:
            covers.bound[slot] = least
            covers.fast[slot] = least_fast
            slot += 1
        old = i & 1
        new = 1 - old
        limit = best[max(t, since)] * _MORE
        paid[old, 1, 1] = min(paid[old, 1, 1], job.entry[doors[t]])
        reach[0] = max(reach[0], 0)
        slow_cost = rows.cost[i, 0] if classes == 2 else INFINITY
        fast_cost = rows.cost[i, fast]
        while high > 0 and reach[high] < 0:
            high -= 1
        high = min(high + 1, counts - 1)
        for b in range(high, -1, -1):
            most = reach[b] + 1 if reach[b] >= 0 else -1
            if b > 0:
                most = max(most, reach[b - 1])
            most = min(most, top[b], width)
            if most < 0:
                continue
            for a in range(most + 1):
                value = paid[old, b + 1, a + 1]
                one = paid[old, b + 1, a] + slow_cost
                two = paid[old, b, a + 1] + fast_cost
                taken = np.int8(1) if one < value else np.int8(0)
                value = one if one < value else value
                taken = np.int8(2) if two < value else taken
                value = two if two < value else value
                paid[new, b + 1, a + 1] = value
                choice[i, b, a] = taken
            a = most
            while a >= 0:
                rest = max(need - b * job.units[fast] - a * job.units[0], 0)
                if paid[new, b + 1, a + 1] + later[i + 1] * rest < limit:
                    break
                a -= 1
            reach[b] = a
            if most == top[b] and paid[new, b + 1, most + 1] < least:
                least = paid[new, b + 1, most + 1]
                least_fast = b
    while slot <= until:
        covers.bound[slot] = least
        covers.fast[slot] = least_fast
        slot += 1


@compiled
def _walk(rows: Rows, m: int, cells: PricedCells, covers: Covers, deadline: int, path: Ints) -> int:
    """Put the cheapest cover by a deadline into ``path``, in slot order; give its cells."""
    last = rows.cell.shape[1] - 1
    i = m - 1
    while cells.slot[max(rows.cell[i, 0], rows.cell[i, last])] > deadline:
        i -= 1
    b = covers.fast[deadline]
    a = covers.top[b]
    n = a + b
    k = n
    while k > 0:
        taken = covers.choice[i, b, a]
        if taken > 0:
            k -= 1
            path[k] = rows.cell[i, 0 if taken == 1 else last]
            if taken == 1:
                a -= 1
            else:
                b -= 1
        i -= 1
    return n
