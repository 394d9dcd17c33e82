"""Compiled exact covers of one window, whatever the number of distinct rates.

Each function returns the cells of the cheapest cover that undercuts ``limit``
(in ``path``, in slot order; 0 cells when none does). With one rate the
relaxation is exact already and none of these is needed.
"""

from __future__ import annotations

import numpy as np

from scheduler.auction.kernels.cells import longer_int
from scheduler.auction.kernels.compiled import INFINITY, Floats, Ints, compiled


@compiled
def cover_by_pairs(
    best: Floats,
    best_cell: Ints,
    class_units: Ints,
    need: int,
    first: int,
    last: int,
    limit: float,
    path: Ints,
) -> int:
    """Two rates: try every minimal pair of cell counts.

    A cover is minimal in its counts (fast, slow), and for each number of fast
    cells the number of slow ones follows. For given counts the problem is a
    transportation problem with three states per slot (unused, fast, slow), so
    shortest paths over three states lead from the optimum of one pair to that
    of the next. Pairs that cannot undercut the limit even when both rates may
    use the same slot are left out.
    """
    fast = 0 if class_units[0] >= class_units[1] else 1
    slow = 1 - fast
    fast_units = class_units[fast]
    slow_units = class_units[slow]
    slots = last - first + 1
    cost = np.zeros((3, slots))
    for i in range(slots):
        cost[1, i] = best[first + i, fast]
        cost[2, i] = best[first + i, slow]
    fast_order = np.argsort(cost[1], kind="mergesort")
    slow_sorted = np.sort(cost[2])
    # Range of fast counts worth a try.
    fast_most = (need + fast_units - 1) // fast_units
    slow_sum = np.full(slots + 1, INFINITY)
    slow_sum[0] = 0.0
    for n in range(slots):
        slow_sum[n + 1] = slow_sum[n] + slow_sorted[n]
    high = -1
    low = -1
    fast_sum = 0.0
    for n in range(min(fast_most, slots) + 1):
        if n > 0:
            fast_sum += cost[1, fast_order[n - 1]]
        if fast_sum == INFINITY:
            break
        rest = max(need - n * fast_units, 0)
        m = (rest + slow_units - 1) // slow_units
        if m + n <= slots and fast_sum + slow_sum[m] < limit:
            if low < 0:
                low = n
            high = n
    if high < 0:
        return 0
    state = np.zeros(slots, np.int64)
    for n in range(high):
        state[fast_order[n]] = 1
    arc = np.empty((3, 3))
    arc_slot = np.empty((3, 3), np.int64)
    count = 0
    least = limit
    slow_count = 0
    n = high
    while n >= low:
        rest = max(need - n * fast_units, 0)
        m = (rest + slow_units - 1) // slow_units
        reachable = True
        while slow_count < m:
            if not _shift(cost, state, 0, 2, arc, arc_slot):
                reachable = False
                break
            slow_count += 1
        if not reachable:
            # Fewer fast cells would need even more slots.
            break
        total = 0.0
        for i in range(slots):
            total += cost[state[i], i]
        if total < least:
            least = total
            count = 0
            for i in range(slots):
                if state[i] == 1:
                    path[count] = best_cell[first + i, fast]
                    count += 1
                elif state[i] == 2:
                    path[count] = best_cell[first + i, slow]
                    count += 1
        n -= 1
        if n >= low and not _shift(cost, state, 1, 0, arc, arc_slot):
            break
    return count


@compiled
def _shift(
    cost: Floats,
    state: Ints,
    origin: int,
    target: int,
    arc: Floats,
    arc_slot: Ints,
) -> bool:
    """Move one slot's worth from one state to another at the least extra cost."""
    slots = state.shape[0]
    for p in range(3):
        for q in range(3):
            arc[p, q] = INFINITY
            arc_slot[p, q] = -1
    for i in range(slots):
        p = state[i]
        for q in range(3):
            if q != p and cost[q, i] < INFINITY:
                change = cost[q, i] - cost[p, i]
                if change < arc[p, q]:
                    arc[p, q] = change
                    arc_slot[p, q] = i
    middle = 3 - origin - target
    direct = arc[origin, target]
    around = arc[origin, middle] + arc[middle, target]
    if direct == INFINITY and around == INFINITY:
        return False
    if direct <= around:
        state[arc_slot[origin, target]] = target
    else:
        state[arc_slot[origin, middle]] = middle
        state[arc_slot[middle, target]] = target
    return True


@compiled
def cover_by_labels(
    best: Floats,
    best_cell: Ints,
    class_units: Ints,
    units: Floats,
    need: int,
    first: int,
    last: int,
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
    classes = class_units.shape[0]
    slots = last - first + 1
    # Bound on what the slots after each one still cost, work priced at mu.
    later = np.zeros(slots + 1)
    for i in range(slots - 1, -1, -1):
        gain = 0.0
        for c in range(classes):
            gain = min(gain, best[first + i, c] - mu * units[c])
        later[i] = later[i + 1] + gain
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
        t = first + i
        usable = 0
        for c in range(classes):
            if best_cell[t, c] >= 0:
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
            parent = longer_int(parent, room)
            cell = longer_int(cell, room)
        pointer[classes] = size - 1
        for c in range(classes):
            # Of the labels that this cell completes, the cheapest only.
            p = size - 1
            while p > 0 and work[p - 1] + class_units[c] >= need:
                p -= 1
            pointer[c] = p
        # Downwards in work: a label stays only if it is cheaper than every label
        # with at least as much work. An old label wins ties.
        place = work_next.shape[0]
        cheapest = INFINITY
        while True:
            at = -1
            at_work = -1
            at_paid = INFINITY
            p = pointer[classes]
            if p >= 0:
                at = classes
                at_work = work[p]
                at_paid = paid[p]
            for c in range(classes):
                p = pointer[c]
                if best_cell[t, c] < 0 or p < 0:
                    continue
                w = min(work[p] + class_units[c], need)
                v = paid[p] + best[t, c]
                if w > at_work or (w == at_work and v < at_paid):
                    at = c
                    at_work = w
                    at_paid = v
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
                cell[records] = best_cell[t, at]
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
    n = 0
    at = done
    while at >= 0:
        n += 1
        at = parent[at]
    at = done
    for j in range(n - 1, -1, -1):
        path[j] = cell[at]
        at = parent[at]
    return n
