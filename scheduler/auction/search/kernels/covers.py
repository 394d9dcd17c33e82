"""Compiled exact covers of one window, for any number of distinct rates.

Each function returns the cells of the cheapest cover that undercuts ``limit``
(in ``path``, in slot order; 0 cells when none does). With one rate the
relaxation is exact already and none of these is needed.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from scheduler.auction.search.kernels.cells import Rows
from scheduler.auction.search.kernels.compiled import INFINITY, Floats, Ints, compiled, extend_ints

States = NDArray[np.int8]


@compiled
def cover_by_pairs(
    rows: Rows,
    class_units: Ints,
    need: int,
    slots: int,
    mu: float,
    bound: float,
    limit: float,
    path: Ints,
) -> tuple[int, float]:
    """Two rates: try every least pair of cell counts that may undercut the limit.

    A cover is least in its counts (slow, fast), and for each number of fast cells
    the number of slow ones follows. For given counts the problem is a
    transportation problem with three states per slot (unused, slow, fast). So
    shortest paths over three states lead from the optimum of one pair to that of
    the next. With work priced at ``mu``, the best choice of every slot by itself
    is the optimum of the counts that it has; the walk starts there and goes both
    ways. A pair costs at least ``bound`` plus ``mu`` times what it does too much.
    """
    cost = rows.cost
    fast = 0 if class_units[0] >= class_units[1] else 1
    slow = 1 - fast
    fast_units = class_units[fast]
    slow_units = class_units[slow]
    most = (need + fast_units - 1) // fast_units
    # Cost of each slot by its state: unused, or used at one of the two rates.
    value = np.empty((3, slots))
    start = np.empty(slots, np.int8)
    state = np.empty(slots, np.int8)
    have_0 = 0
    have_1 = 0
    first_priced = mu * class_units[0]
    second_priced = mu * class_units[1]
    for i in range(slots):
        value[0, i] = 0.0
        value[1, i] = cost[i, 0]
        value[2, i] = cost[i, 1]
        least = 0.0
        at = 0
        if cost[i, 0] - first_priced < least:
            least = cost[i, 0] - first_priced
            at = 1
        if cost[i, 1] - second_priced < least:
            at = 2
        start[i] = at
        have_0 += at == 0
        have_1 += at == 1
    have_2 = slots - have_0 - have_1
    now = np.empty(3, np.int64)
    goal = np.empty(3, np.int64)
    count = 0
    middle = min(have_2 if fast == 1 else have_1, most)
    for way in range(2):
        state[:] = start
        now[0] = have_0
        now[1] = have_1
        now[2] = have_2
        n = middle if way == 0 else middle - 1
        while 0 <= n <= most:
            m = (max(need - n * fast_units, 0) + slow_units - 1) // slow_units
            over = n * fast_units + m * slow_units - need
            if n + m <= slots and bound + mu * over < limit:
                goal[0] = slots - n - m
                goal[fast + 1] = n
                goal[slow + 1] = m
                if _move(value, slots, state, now, goal):
                    total = 0.0
                    for i in range(slots):
                        if state[i] > 0:
                            total += value[state[i], i]
                    if total < limit:
                        limit = total
                        count = 0
                        for i in range(slots):
                            if state[i] > 0:
                                path[count] = rows.cell[i, state[i] - 1]
                                count += 1
            n += 1 if way == 0 else -1
    return count, limit


@compiled
def _move(value: Floats, slots: int, state: States, now: Ints, goal: Ints) -> bool:
    """Lead from the optimum of some counts to that of others, one slot at a time."""
    while True:
        origin = -1
        target = -1
        for p in range(3):
            if now[p] > goal[p]:
                origin = p
            elif now[p] < goal[p]:
                target = p
        if origin < 0:
            return True
        middle = 3 - origin - target
        # The cheapest slot to lead straight there, and one each for the way around.
        direct = INFINITY
        out = INFINITY
        on = INFINITY
        direct_slot = -1
        out_slot = -1
        on_slot = -1
        for i in range(slots):
            p = state[i]
            if p == origin:
                change = value[target, i] - value[origin, i]
                if change < direct:
                    direct = change
                    direct_slot = i
                change = value[middle, i] - value[origin, i]
                if change < out:
                    out = change
                    out_slot = i
            elif p == middle:
                change = value[target, i] - value[middle, i]
                if change < on:
                    on = change
                    on_slot = i
        around = out + on
        if direct == INFINITY and around == INFINITY:
            return False
        if direct <= around:
            state[direct_slot] = target
        else:
            state[out_slot] = middle
            state[on_slot] = target
        now[origin] -= 1
        now[target] += 1


@compiled
def cover_by_labels(
    rows: Rows,
    class_units: Ints,
    need: int,
    slots: int,
    mu: float,
    limit: float,
    path: Ints,
) -> int:
    """Any number of rates: one forward pass over labels.

    A label is (work so far, cost so far). Only labels that no other label beats
    in both are kept, sorted by work, so the list holds the exact trade-off; work
    is counted in whole units, which makes sums exact and equal sums merge. A
    label is dropped when, with the Lagrangian bound on what is still to be paid,
    it cannot undercut the limit.
    """
    best_cell = rows.cell
    classes = class_units.shape[0]
    later = _bound_later(rows.cost, class_units.astype(np.float64), slots, mu)
    room = 256
    parent = np.empty(room, np.int64)
    cell = np.empty(room, np.int64)
    records = 0
    width = 64
    work = np.empty(width, np.int64)
    paid = np.empty(width)
    record = np.empty(width, np.int64)
    work_next = np.empty(width, np.int64)
    paid_next = np.empty(width)
    record_next = np.empty(width, np.int64)
    pointer = np.empty(classes + 1, np.int64)
    work[0] = 0
    paid[0] = 0.0
    record[0] = -1
    size = 1
    done = -1
    for i in range(slots):
        usable = 0
        for c in range(classes):
            if best_cell[i, c] >= 0:
                usable += 1
        if usable == 0:
            continue
        most = (usable + 1) * size
        if most > work_next.shape[0]:
            work_next = np.empty(2 * most, np.int64)
            paid_next = np.empty(2 * most)
            record_next = np.empty(2 * most, np.int64)
        if records + most > room:
            room = 2 * room + most
            parent = extend_ints(parent, room)
            cell = extend_ints(cell, room)
        _point_at_last(work, size, class_units, need, pointer)
        # Downwards in work: a label stays only if it is cheaper than every label
        # with at least as much work. An old label wins ties.
        place = work_next.shape[0]
        cheapest = INFINITY
        while True:
            at, at_work, at_paid = _pick_most_work(rows, i, work, paid, pointer, class_units, need)
            if at < 0:
                break
            p = pointer[at]
            pointer[at] = p - 1
            if at_paid >= cheapest:
                continue
            if at_paid + mu * (need - at_work) + later[i + 1] >= limit:
                continue
            cheapest = at_paid
            place -= 1
            work_next[place] = at_work
            paid_next[place] = at_paid
            if at == classes:
                record_next[place] = record[p]
            else:
                parent[records] = record[p]
                cell[records] = best_cell[i, at]
                record_next[place] = records
                records += 1
        size = work_next.shape[0] - place
        if size == 0:
            return 0
        if size > width:
            width = 2 * size
            work = np.empty(width, np.int64)
            paid = np.empty(width)
            record = np.empty(width, np.int64)
        for j in range(size):
            work[j] = work_next[place + j]
            paid[j] = paid_next[place + j]
            record[j] = record_next[place + j]
        if work[size - 1] >= need and paid[size - 1] < limit:
            limit = paid[size - 1]
            done = record[size - 1]
    return _trace_back(parent, cell, done, path)


@compiled
def _bound_later(best: Floats, units: Floats, slots: int, mu: float) -> Floats:
    """Bound what the slots after each one still cost, work priced at mu."""
    later = np.zeros(slots + 1)
    for i in range(slots - 1, -1, -1):
        gain = 0.0
        for c in range(units.shape[0]):
            gain = min(gain, best[i, c] - mu * units[c])
        later[i] = later[i + 1] + gain
    return later


@compiled
def _point_at_last(work: Ints, size: int, class_units: Ints, need: int, pointer: Ints) -> None:
    """Point at the label that each class extends first: of those it completes the cheapest."""
    classes = class_units.shape[0]
    pointer[classes] = size - 1
    for c in range(classes):
        p = size - 1
        while p > 0 and work[p - 1] + class_units[c] >= need:
            p -= 1
        pointer[c] = p


@compiled
def _pick_most_work(
    rows: Rows, i: int, work: Ints, paid: Floats, pointer: Ints, class_units: Ints, need: int
) -> tuple[int, int, float]:
    """Pick the class whose next label has the most work; with equal work the cheapest.

    The class after the last stands for a label that leaves the slot unused. Gives -1 for it
    when all labels are done.
    """
    classes = class_units.shape[0]
    at = -1
    at_work = -1
    at_paid = INFINITY
    p = pointer[classes]
    if p >= 0:
        at = classes
        at_work = int(work[p])
        at_paid = float(paid[p])
    for c in range(classes):
        p = pointer[c]
        if rows.cell[i, c] < 0 or p < 0:
            continue
        w = int(min(work[p] + class_units[c], need))
        v = float(paid[p] + rows.cost[i, c])
        if w > at_work or (w == at_work and v < at_paid):
            at = c
            at_work = w
            at_paid = v
    return at, at_work, at_paid


@compiled
def _trace_back(parent: Ints, cell: Ints, last: int, path: Ints) -> int:
    """Write the cells that lead to a record in slot order; give how many they are."""
    n = 0
    at = last
    while at >= 0:
        n += 1
        at = parent[at]
    at = last
    for j in range(n - 1, -1, -1):
        path[j] = cell[at]
        at = parent[at]
    return n
