"""Compiled exact search: branch and bound over the largest prices.

``solve_deadline`` solves, for one deadline and all labour vendors, problem (12)
of the paper: pick at most one cell per slot so that the work is covered, at the
least

    vendor price + sum of e + L * sum of s + F * r * cells

where ``L`` and ``F`` are the largest compute and memory prices among the cells
picked (the *max* form). The additive form is the same problem with the whole
price of a cell folded into its own cost and ``L = F = 0``.
"""

from __future__ import annotations

import numpy as np

from scheduler.auction.kernels.cells import box_costs, least_floor
from scheduler.auction.kernels.compiled import INFINITY, Floats, Ints, compiled
from scheduler.auction.kernels.covers import cover_by_labels, cover_by_pairs
from scheduler.auction.kernels.relaxation import greedy, least_cover, multiplier

#: Costs this close differ by the tilt of later slots alone.
_EQUAL = 1 + 2e-10


@compiled
def solve_deadline(
    starts: Ints,
    cls: Ints,
    lam: Floats,
    phi: Floats,
    own: Floats,
    class_rate: Floats,
    class_units: Ints,
    need: int,
    memory: float,
    entry: Floats,
    deadline: int,
    ceiling: float,
    floor: float,
    cells: Ints,
) -> tuple[float, int, int, int]:
    """Find the cheapest schedule that ends by a deadline.

    Parameters
    ----------
    starts, cls, lam, phi, own
        Cells as ``gather_cells`` lists them.
    class_rate : float64[rates]
        Distinct rates.
    class_units : int64[rates]
        The same in whole units of work.
    need : int
        Units of work to cover.
    memory : float
        r_i.
    entry : float64[slots]
        Price of the cheapest vendor that is done just before each slot, infinity
        where none is.
    deadline : int
        Last slot, counted from the first one gathered.
    ceiling : float
        Only schedules cheaper than this are looked for (infinity: all).
    floor : float
        A schedule that is no dearer than this will do (minus infinity: none).
    cells : int64[slots]
        Filled with the schedule's cells, in slot order.

    Returns
    -------
    value : float
        Cost, ``ceiling`` when there is no schedule below it.
    count, door : int
        Cells in the schedule (0: none) and the slot its vendor is ready at.
    boxes : int
        Boxes looked at.
    """
    slots = deadline + 1
    classes = class_rate.shape[0]
    best = np.empty((slots, classes))
    best_cell = np.empty((slots, classes), np.int64)
    path = np.empty(slots, np.int64)
    need = least_cover(class_units, need)
    units = np.empty(classes)
    for c in range(classes):
        units[c] = class_units[c]
    found = np.zeros(3)
    found[0] = ceiling
    start = 0
    while start < slots and entry[start] == INFINITY:
        start += 1
    if start == slots:
        return ceiling, 0, 0, 0
    box_costs(
        starts, cls, lam, phi, own, class_rate, memory, deadline,
        0.0, 0.0, INFINITY, INFINITY, 0.0, best, best_cell,
    )  # fmt: skip
    mu, bound = multiplier(best, units, need, start, deadline, 0.0, INFINITY)
    if bound == INFINITY:
        return ceiling, 0, 0, 0
    # Later slots are dearer by less than any price could tell: among equals the
    # early ones, which would otherwise go unused, are taken.
    tilt = 2e-14 * (bound + entry[start])
    if tilt <= 0.0:
        tilt = 2e-14
    for t in range(slots):
        for c in range(classes):
            best[t, c] += tilt * (t + 1)
    doors = np.empty(slots, np.int64)
    promise = np.empty(slots)
    price = np.empty(slots)
    count = 0
    for t in range(start, slots):
        if entry[t] == INFINITY:
            continue
        mu, bound = multiplier(best, units, need, t, deadline, mu, INFINITY)
        if bound == INFINITY:
            break
        doors[count] = t
        promise[count] = entry[t] + bound
        price[count] = mu
        count += 1
        n = greedy(best, best_cell, units, need, t, deadline, mu, path)
        if n > 0:
            _offer(path, n, t, starts, lam, phi, own, cls, class_rate, memory, entry, tilt,
                   found, cells)  # fmt: skip
    order = np.argsort(promise[:count], kind="mergesort")
    boxes = 0
    for i in range(count):
        e = order[i]
        if promise[e] >= found[0] or (found[1] > 0 and found[0] <= floor):
            break
        boxes += _branch(
            starts, cls, lam, phi, own, class_rate, class_units, units, need, memory, entry,
            int(doors[e]), deadline, tilt, float(price[e]), floor, found, cells, path, best,
            best_cell,
        )  # fmt: skip
    return found[0], int(found[1]), int(found[2]), boxes


@compiled
def _branch(
    starts: Ints,
    cls: Ints,
    lam: Floats,
    phi: Floats,
    own: Floats,
    class_rate: Floats,
    class_units: Ints,
    units: Floats,
    need: int,
    memory: float,
    entry: Floats,
    door: int,
    deadline: int,
    tilt: float,
    mu: float,
    floor: float,
    found: Floats,
    cells: Ints,
    path: Ints,
    best: Floats,
    best_cell: Ints,
) -> int:
    """Search one vendor's window, box by box.

    A box holds the schedules whose largest prices lie in [low, cap). Charging
    every cell at least the low prices turns it into a min-cost cover, which
    bounds it from below; any schedule found there is worth its true cost, which
    bounds the whole from above. A box whose bound is not below that is closed;
    another is split at one of the prices of the schedule found in it. As long as
    it is prices, not whole cells, that leave the gap, the rounded relaxation
    chooses the split and no exact cover is needed. With all prices zero, and in
    the additive form, the first exact cover closes the first box.
    """
    classes = class_units.shape[0]
    room = 64
    box = np.empty((room, 5))
    box[0, 0] = 0.0
    box[0, 1] = 0.0
    box[0, 2] = INFINITY
    box[0, 3] = INFINITY
    box[0, 4] = mu
    split = np.empty(2)
    depth = 1
    boxes = 0
    while depth > 0 and not (found[1] > 0 and found[0] <= floor):
        depth -= 1
        low_lam = box[depth, 0]
        low_phi = box[depth, 1]
        cap_lam = box[depth, 2]
        cap_phi = box[depth, 3]
        boxes += 1
        # No cover of this box has lower largest prices than these.
        least = least_floor(
            starts, cls, lam, phi, cap_lam, cap_phi, units, need, door, deadline, low_lam
        )
        if least == INFINITY:
            continue
        low_lam = least
        least = least_floor(
            starts, cls, phi, lam, cap_phi, cap_lam, units, need, door, deadline, low_phi
        )
        low_phi = least
        box_costs(
            starts, cls, lam, phi, own, class_rate, memory, deadline,
            low_lam, low_phi, cap_lam, cap_phi, tilt, best, best_cell,
        )  # fmt: skip
        enough = found[0] - entry[door]
        mu, bound = multiplier(best, units, need, door, deadline, box[depth, 4], enough)
        if bound == INFINITY or bound >= enough:
            continue
        axis = -1
        gap = 0.0
        n = greedy(best, best_cell, units, need, door, deadline, mu, path)
        if n > 0:
            _offer(path, n, door, starts, lam, phi, own, cls, class_rate, memory, entry, tilt,
                   found, cells)  # fmt: skip
            enough = found[0] - entry[door]
            if bound >= enough:
                continue
            axis, gap = _split(path, n, lam, phi, cls, class_rate, memory, low_lam, low_phi, split)
        if n == 0 or (classes > 1 and gap < enough - bound):
            if classes == 2:
                n = cover_by_pairs(best, best_cell, class_units, need, door, deadline, enough, path)
            else:
                n = cover_by_labels(
                    best, best_cell, class_units, units, need, door, deadline, mu, enough, path
                )
            if n == 0:
                continue
            _offer(path, n, door, starts, lam, phi, own, cls, class_rate, memory, entry, tilt,
                   found, cells)  # fmt: skip
            axis, gap = _split(path, n, lam, phi, cls, class_rate, memory, low_lam, low_phi, split)
        if axis < 0:
            # The cover's cost is its true one, and it is the box's best.
            continue
        if depth + 2 > room:
            room = 2 * room
            bigger = np.empty((room, 5))
            bigger[: box.shape[0]] = box
            box = bigger
        for half in range(2):
            box[depth, 0] = low_lam
            box[depth, 1] = low_phi
            box[depth, 2] = cap_lam
            box[depth, 3] = cap_phi
            box[depth, 4] = mu
            # The half with the lower prices is on top of the stack.
            box[depth, axis if half == 0 else 2 + axis] = split[axis]
            depth += 1
    return boxes


@compiled
def _split(
    path: Ints,
    n: int,
    lam: Floats,
    phi: Floats,
    cls: Ints,
    class_rate: Floats,
    memory: float,
    low_lam: float,
    low_phi: float,
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
    samples = 0.0
    extra_lam = 0.0
    extra_phi = 0.0
    high_lam = low_lam
    high_phi = low_phi
    for j in range(n):
        u = path[j]
        s = class_rate[cls[u]]
        samples += s
        high_lam = max(high_lam, lam[u])
        high_phi = max(high_phi, phi[u])
        extra_lam += s * max(low_lam, lam[u])
        extra_phi += max(low_phi, phi[u])
    gap_lam = high_lam * samples - extra_lam
    gap_phi = memory * (high_phi * n - extra_phi)
    # Halve the range of prices the schedule leaves open, at a price of its own,
    # so that both halves are smaller.
    half_lam = 0.5 * (low_lam + high_lam)
    half_phi = 0.5 * (low_phi + high_phi)
    split[0] = high_lam
    split[1] = high_phi
    for j in range(n):
        u = path[j]
        if half_lam <= lam[u] < split[0]:
            split[0] = lam[u]
        if half_phi <= phi[u] < split[1]:
            split[1] = phi[u]
    axis = -1
    if gap_lam >= gap_phi and split[0] > low_lam:
        axis = 0
    elif split[1] > low_phi:
        axis = 1
    elif split[0] > low_lam:
        axis = 0
    return axis, float(gap_lam + gap_phi)


@compiled
def _offer(
    path: Ints,
    n: int,
    door: int,
    starts: Ints,
    lam: Floats,
    phi: Floats,
    own: Floats,
    cls: Ints,
    class_rate: Floats,
    memory: float,
    entry: Floats,
    tilt: float,
    found: Floats,
    cells: Ints,
) -> None:
    """Keep a schedule if, at its true cost, it is the cheapest so far."""
    total = entry[door]
    samples = 0.0
    high_lam = 0.0
    high_phi = 0.0
    t = 0
    for j in range(n):
        u = path[j]
        while starts[t + 1] <= u:
            t += 1
        total += own[u] + tilt * (t + 1)
        samples += class_rate[cls[u]]
        high_lam = max(high_lam, lam[u])
        high_phi = max(high_phi, phi[u])
    exact = total + high_lam * samples + high_phi * (memory * n)
    if exact < found[0]:
        found[0] = exact
        found[1] = n
        found[2] = door
        for j in range(n):
            cells[j] = path[j]


@compiled
def solve_curve(
    starts: Ints,
    cls: Ints,
    lam: Floats,
    phi: Floats,
    own: Floats,
    class_rate: Floats,
    class_units: Ints,
    need: int,
    memory: float,
    entry: Floats,
    first: int,
    last: int,
) -> tuple[Floats, Ints, Ints, Ints, Ints]:
    """Find the cheapest schedule for every deadline of a range.

    Cost never rises with the deadline, so a stretch whose two ends cost the same
    is done, and any other is halved; each solve is confined between the costs of
    its two neighbours.

    Returns
    -------
    price : float64[deadlines]
        Infinity where no schedule exists.
    finish, count, door : int64[deadlines]
    cells : int64[deadlines, slots]
        As ``solve_deadline`` gives them.
    """
    span = last - first + 1
    value = np.empty(span)
    count = np.zeros(span, np.int64)
    door = np.zeros(span, np.int64)
    cells = np.empty((span, last + 1), np.int64)
    value[span - 1], count[span - 1], door[span - 1], _ = solve_deadline(
        starts, cls, lam, phi, own, class_rate, class_units, need, memory, entry,
        last, INFINITY, -INFINITY, cells[span - 1],
    )  # fmt: skip
    value[0], count[0], door[0], _ = solve_deadline(
        starts, cls, lam, phi, own, class_rate, class_units, need, memory, entry,
        first, INFINITY, float(value[span - 1]) * _EQUAL, cells[0],
    )  # fmt: skip
    left = np.empty(span + 1, np.int64)
    right = np.empty(span + 1, np.int64)
    left[0] = 0
    right[0] = span - 1
    depth = 1 if span > 2 else 0
    while depth > 0:
        depth -= 1
        a = left[depth]
        b = right[depth]
        if b - a < 2:
            continue
        if value[a] <= value[b] * _EQUAL:
            for d in range(a + 1, b):
                value[d] = value[a]
                count[d] = count[a]
                door[d] = door[a]
                cells[d] = cells[a]
            continue
        middle = (a + b) // 2
        v, n, e, _ = solve_deadline(
            starts, cls, lam, phi, own, class_rate, class_units, need, memory, entry,
            first + middle, float(value[a]), float(value[b]) * _EQUAL, cells[middle],
        )  # fmt: skip
        value[middle] = v
        if n > 0:
            count[middle] = n
            door[middle] = e
        else:
            count[middle] = count[a]
            door[middle] = door[a]
            cells[middle] = cells[a]
        left[depth] = middle
        right[depth] = b
        left[depth + 1] = a
        right[depth + 1] = middle
        depth += 2
    price = np.full(span, INFINITY)
    finish = np.zeros(span, np.int64)
    for d in range(span):
        if count[d] > 0:
            if d > 0 and value[d] == value[d - 1]:
                price[d] = price[d - 1]
                finish[d] = finish[d - 1]
            else:
                price[d], finish[d] = schedule_cost(
                    cells[d], int(count[d]), int(door[d]), starts, cls, lam, phi, own,
                    class_rate, memory, entry,
                )  # fmt: skip
    return price, finish, count, door, cells


@compiled
def schedule_cost(
    cells: Ints,
    count: int,
    door: int,
    starts: Ints,
    cls: Ints,
    lam: Floats,
    phi: Floats,
    own: Floats,
    class_rate: Floats,
    memory: float,
    entry: Floats,
) -> tuple[float, int]:
    """Give a schedule's true cost, without any tilt, and its last slot."""
    found = np.zeros(3)
    found[0] = INFINITY
    _offer(
        cells, count, door, starts, lam, phi, own, cls, class_rate, memory, entry, 0.0,
        found, np.empty(count, np.int64),
    )  # fmt: skip
    last = 0
    while starts[last + 1] <= cells[count - 1]:
        last += 1
    return float(found[0]), last


@compiled
def earliest_below(
    starts: Ints,
    cls: Ints,
    lam: Floats,
    phi: Floats,
    own: Floats,
    class_rate: Floats,
    class_units: Ints,
    need: int,
    memory: float,
    entry: Floats,
    first: int,
    last: int,
    ceiling: float,
) -> int:
    """Find the first deadline of a range with a schedule cheaper than a ceiling.

    Returns
    -------
    int
        -1 when no deadline has one.
    """
    scratch = np.empty(last + 1, np.int64)
    _, n, _, _ = solve_deadline(
        starts, cls, lam, phi, own, class_rate, class_units, need, memory, entry,
        last, ceiling, ceiling, scratch,
    )  # fmt: skip
    if n == 0:
        return -1
    low = first
    high = last
    while low < high:
        middle = (low + high) // 2
        _, n, _, _ = solve_deadline(
            starts, cls, lam, phi, own, class_rate, class_units, need, memory, entry,
            middle, ceiling, ceiling, scratch,
        )  # fmt: skip
        if n > 0:
            high = middle
        else:
            low = middle + 1
    return low
