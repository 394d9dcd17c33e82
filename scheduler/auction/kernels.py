"""Compiled arithmetic of the per-task search.

Everything here is a plain loop over arrays, compiled by numba and cached on
disk; ``reference.py`` answers the same questions slowly and from the
definition, and the tests hold one against the other. Operation order is fixed,
so a result is the same bit for bit on every run.

Slots are rows and nodes are columns. ``search`` solves, for a whole range of
deadlines at once, problem (12) of the paper: pick at most one cell per slot so
that the work is covered, at the least

    vendor price + sum of e + L * sum of s + F * r * cells

where ``L`` and ``F`` are the largest compute and memory prices among the cells
picked (the *max* form). The additive form is the same problem with the whole
price of a cell folded into its own cost and ``L = F = 0``.
"""

from __future__ import annotations

import numpy as np
from numba import njit

INFINITY = np.inf


@njit(cache=True)
def gather_cells(
    lam,
    phi,
    free_compute,
    free_memory,
    cost,
    rate,
    node_class,
    need_compute,
    need_memory,
    classes,
    memory,
    first,
    last,
    additive,
):
    """List the cells a best schedule may use, slot by slot.

    Within a slot, a cell is dropped when another of the same rate costs no more
    in every respect: one cell per rate stays in the additive form, the Pareto
    front of (compute price, memory price, operational cost) in the max form.
    Cells that tie in everything go to the fuller node (best fit), then to the
    node that joined first; neither depends on the bid.

    Parameters
    ----------
    lam, phi : float64[slot, node]
        Dual prices.
    free_compute, free_memory : float64[slot, node]
        What is left on sale; minus infinity where the node is not on sale.
    cost : float64[slot or 1, node]
        Operational cost e_ikt of this task.
    rate : float64[node]
        s_ik.
    node_class : int64[node]
        Index of the node's distinct rate, -1 where the task cannot run.
    need_compute, need_memory : float64[node]
        What must be free, tolerance taken off.
    classes : int
        Number of distinct rates.
    memory : float
        r_i.
    first, last : int
        Rows to look at, inclusive.
    additive : bool

    Returns
    -------
    starts : int64[last - first + 2]
        Where each slot's cells begin in the lists below.
    node, cls : int64[n]
    lam_out, phi_out, own : float64[n]
        Prices that enter through their maximum, and the cell's own cost.
    """
    slots = last - first + 1
    nodes = lam.shape[1]
    room = 256
    starts = np.zeros(slots + 1, np.int64)
    node = np.empty(room, np.int64)
    cls = np.empty(room, np.int64)
    lam_out = np.empty(room)
    phi_out = np.empty(room)
    own = np.empty(room)
    by_slot = cost.shape[0] > 1
    count = 0
    for i in range(slots):
        t = first + i
        begin = count
        row = t if by_slot else 0
        if count + nodes > room:
            room = 2 * room + nodes
            node = _longer_int(node, room)
            cls = _longer_int(cls, room)
            lam_out = _longer(lam_out, room)
            phi_out = _longer(phi_out, room)
            own = _longer(own, room)
        for k in range(nodes):
            c = node_class[k]
            if c < 0 or free_compute[t, k] < need_compute[k] or free_memory[t, k] < need_memory[k]:
                continue
            a = lam[t, k]
            b = phi[t, k]
            e = cost[row, k]
            if additive:
                e = e + rate[k] * a + memory * b
                a = 0.0
                b = 0.0
            beaten = False
            j = begin
            while j < count:
                if cls[j] == c:
                    if lam_out[j] <= a and phi_out[j] <= b and own[j] <= e:
                        beaten = True
                        if lam_out[j] == a and phi_out[j] == b and own[j] == e:
                            other = node[j]
                            if (
                                free_compute[t, k] * memory + free_memory[t, k] * rate[k]
                                < free_compute[t, other] * memory + free_memory[t, other] * rate[k]
                            ):
                                node[j] = k
                        break
                    if a <= lam_out[j] and b <= phi_out[j] and e <= own[j]:
                        count -= 1
                        node[j] = node[count]
                        cls[j] = cls[count]
                        lam_out[j] = lam_out[count]
                        phi_out[j] = phi_out[count]
                        own[j] = own[count]
                        continue
                j += 1
            if not beaten:
                node[count] = k
                cls[count] = c
                lam_out[count] = a
                phi_out[count] = b
                own[count] = e
                count += 1
        starts[i + 1] = count
    return starts, node, cls, lam_out, phi_out, own


@njit(cache=True)
def _longer(old, size):
    new = np.empty(size)
    new[: old.shape[0]] = old
    return new


@njit(cache=True)
def _longer_int(old, size):
    new = np.empty(size, np.int64)
    new[: old.shape[0]] = old
    return new


@njit(cache=True)
def box_costs(
    starts,
    cls,
    lam,
    phi,
    own,
    class_rate,
    memory,
    last,
    low_lam,
    low_phi,
    cap_lam,
    cap_phi,
    tilt,
    best,
    best_cell,
):
    """Fill in the cheapest cell of every slot and rate within a box of prices.

    Only cells with prices strictly below the caps count, and each is charged at
    least the low prices: a schedule whose largest prices lie in [low, cap) costs
    at least the sum of its cells here. ``tilt`` makes later slots dearer by less
    than any price could tell, so that among equals the early ones, which would
    otherwise go unused, are taken.
    """
    classes = class_rate.shape[0]
    for t in range(last + 1):
        for c in range(classes):
            best[t, c] = INFINITY
            best_cell[t, c] = -1
        late = tilt * (t + 1)
        for j in range(starts[t], starts[t + 1]):
            if lam[j] < cap_lam and phi[j] < cap_phi:
                c = cls[j]
                price = (
                    own[j]
                    + class_rate[c] * max(low_lam, lam[j])
                    + memory * max(low_phi, phi[j])
                    + late
                )
                if price < best[t, c]:
                    best[t, c] = price
                    best_cell[t, c] = j


@njit(cache=True)
def least_floor(starts, cls, price, other, cap_price, cap_other, units, need, first, last):
    """Find the least cap on one price that leaves enough cells to cover the work.

    Every cover within the caps has a largest price of at least this; a floor
    raised to it makes the box's bound tighter. Infinity when nothing covers.
    """
    classes = units.shape[0]
    slots = last - first + 1
    least = np.full(slots * classes, INFINITY)
    for i in range(slots):
        for j in range(starts[first + i], starts[first + i + 1]):
            if price[j] < cap_price and other[j] < cap_other:
                at = i * classes + cls[j]
                if price[j] < least[at]:
                    least[at] = price[j]
    order = np.argsort(least)
    reached = np.zeros(slots)
    covered = 0.0
    for n in range(order.shape[0]):
        at = order[n]
        if least[at] == INFINITY:
            break
        i = at // classes
        gain = units[at - i * classes] - reached[i]
        if gain > 0.0:
            reached[i] += gain
            covered += gain
            if covered >= need:
                return least[at]
    return INFINITY


@njit(cache=True)
def relaxed(best, units, need, first, last, mu):
    """Evaluate the Lagrangian bound of a cover at one price of work.

    Returns
    -------
    bound, slope : float
        ``mu * need + sum over slots of min(0, cost - mu * units)`` and its
        derivative.
    """
    bound = mu * need
    slope = float(need)
    for t in range(first, last + 1):
        gain = 0.0
        taken = 0.0
        for c in range(units.shape[0]):
            reduced = best[t, c] - mu * units[c]
            if reduced < gain:
                gain = reduced
                taken = units[c]
        bound += gain
        slope -= taken
    return bound, slope


@njit(cache=True)
def multiplier(best, units, need, first, last, guess, enough):
    """Find the price of work that gives the best Lagrangian bound.

    The bound is concave and piecewise linear; the two tangents that enclose its
    peak are intersected until they meet. Every price of work gives a valid
    bound, so stopping early costs strength only; a bound of ``enough`` will do.

    Returns
    -------
    mu, bound : float
        ``bound`` is infinity when the slots cannot cover the work at all.
    """
    most = 0.0
    for t in range(first, last + 1):
        top = 0.0
        for c in range(units.shape[0]):
            if best[t, c] < INFINITY and units[c] > top:
                top = units[c]
        most += top
    if most < need:
        return 0.0, INFINITY
    left, left_bound, left_slope = 0.0, 0.0, float(need)
    right = guess
    if right <= 0.0:
        for t in range(first, last + 1):
            for c in range(units.shape[0]):
                if best[t, c] < INFINITY:
                    right = max(right, best[t, c] / units[c])
        if right <= 0.0:
            return 0.0, 0.0
    right_bound, right_slope = relaxed(best, units, need, first, last, right)
    while right_slope > 0.0:
        left, left_bound, left_slope = right, right_bound, right_slope
        right = 2.0 * right
        if right > 1e300:
            return left, left_bound
        right_bound, right_slope = relaxed(best, units, need, first, last, right)
    for _ in range(24):
        if right_slope == 0.0 or right_bound >= enough:
            return right, right_bound
        if left_bound >= enough:
            return left, left_bound
        mu = (right_bound - left_bound + left_slope * left - right_slope * right) / (
            left_slope - right_slope
        )
        if not left < mu < right:
            break
        bound, slope = relaxed(best, units, need, first, last, mu)
        if slope > 0.0:
            if bound <= left_bound:
                break
            left, left_bound, left_slope = mu, bound, slope
        else:
            if bound <= right_bound:
                break
            right, right_bound, right_slope = mu, bound, slope
    if right_bound >= left_bound:
        return right, right_bound
    return left, left_bound


@njit(cache=True)
def greedy(best, best_cell, units, need, first, last, mu, path):
    """Round the relaxed cover to a real one: a first schedule, often the best.

    Returns
    -------
    int
        Cells put into ``path``, in slot order; 0 when this way leads nowhere.
    """
    slots = last - first + 1
    reduced = np.empty(slots)
    choice = np.empty(slots, np.int64)
    for i in range(slots):
        reduced[i] = INFINITY
        choice[i] = -1
        for c in range(units.shape[0]):
            value = best[first + i, c] - mu * units[c]
            if value < reduced[i] or (
                value == reduced[i] and choice[i] >= 0 and units[c] > units[choice[i]]
            ):
                reduced[i] = value
                choice[i] = c
    order = np.argsort(reduced, kind="mergesort")
    covered = 0.0
    count = 0
    while count < slots and covered < need and choice[order[count]] >= 0:
        covered += units[choice[order[count]]]
        count += 1
    if covered < need:
        return 0
    taken = np.zeros(slots, np.bool_)
    for n in range(count):
        taken[order[n]] = True
    for n in range(count - 1, -1, -1):
        spare = units[choice[order[n]]]
        if covered - spare >= need:
            covered -= spare
            taken[order[n]] = False
    n = 0
    for i in range(slots):
        if taken[i]:
            path[n] = best_cell[first + i, choice[i]]
            n += 1
    return n


@njit(cache=True)
def labels(  # noqa: C901
    best,
    best_cell,
    class_units,
    units,
    need,
    entry,
    mu,
    value,
    first_deadline,
    begin,
    end,
    curve,
    top,
):
    """Cheapest cover for every deadline of a range, in one forward pass.

    A label is (work so far, cost so far). Only labels that no other label beats
    in both are kept, sorted by work, so the list holds the exact trade-off; work
    is counted in whole units, which makes sums exact and equal sums merge. A
    labour vendor that is done before slot ``t`` enters as a label of no work and
    its price (``entry[t]``): one pass answers all vendors. A label is dropped
    when, with the Lagrangian bound on what is still to be paid, it cannot
    undercut any deadline's ``value``.

    Fills ``curve`` (cost of the best cover that ends by each slot and undercuts
    its value, else infinity) and ``top`` (record of its last cell, else -1).

    Returns
    -------
    parent, cell : int64[records]
        ``cell`` is -1 - slot for a vendor's entry.
    """
    classes = class_units.shape[0]
    last = first_deadline + end
    # Room left under any deadline from slot t on, at this price of work: a label
    # of slot t survives if paid + mu * (need - work) - gains[t] < ceiling[t].
    gains = np.empty(last + 1)
    ceiling = np.empty(last + 1)
    sum_ = 0.0
    for t in range(last + 1):
        gain = 0.0
        for c in range(classes):
            gain = min(gain, best[t, c] - mu * units[c])
        sum_ += gain
        gains[t] = sum_
    room_left = -INFINITY
    for t in range(last, -1, -1):
        if t >= first_deadline + begin:
            # Less than rounding may stand between a label and a value.
            limit = value[t - first_deadline]
            if limit < INFINITY:
                limit -= 1e-15 * limit
            room_left = max(room_left, limit - gains[t])
        ceiling[t] = room_left
    room = 64 + 4 * (last + 1)
    parent = np.empty(room, np.int64)
    cell = np.empty(room, np.int64)
    records = 0
    size = 0
    width = 32
    work = np.empty(width, np.int64)
    paid = np.empty(width)
    record = np.empty(width, np.int64)
    work_next = np.empty(width, np.int64)
    paid_next = np.empty(width)
    record_next = np.empty(width, np.int64)
    pointer = np.empty(classes + 1, np.int64)
    for t in range(last + 1):
        curve[t] = INFINITY
        top[t] = -1
        if entry[t] < INFINITY and (size == 0 or entry[t] < paid[0]):
            before = gains[t - 1] if t > 0 else 0.0
            if entry[t] + mu * need - before < ceiling[t]:
                if size == 0 or work[0] > 0:
                    if size + 1 > width:
                        width = 2 * width
                        work = _longer_int(work, width)
                        paid = _longer(paid, width)
                        record = _longer_int(record, width)
                    for j in range(size, 0, -1):
                        work[j] = work[j - 1]
                        paid[j] = paid[j - 1]
                        record[j] = record[j - 1]
                    size += 1
                if records + 1 > room:
                    room = 2 * room
                    parent = _longer_int(parent, room)
                    cell = _longer_int(cell, room)
                parent[records] = -1
                cell[records] = -1 - t
                work[0] = 0
                paid[0] = entry[t]
                record[0] = records
                records += 1
        if size == 0:
            continue
        usable = 0
        for c in range(classes):
            if best_cell[t, c] >= 0:
                usable += 1
        if usable > 0:
            most = (usable + 1) * size
            if most > work_next.shape[0]:
                work_next = np.empty(2 * most, np.int64)
                paid_next = np.empty(2 * most)
                record_next = np.empty(2 * most, np.int64)
            if records + most > room:
                room = 2 * room + most
                parent = _longer_int(parent, room)
                cell = _longer_int(cell, room)
            pointer[classes] = size - 1
            for c in range(classes):
                # Of the labels that this cell completes, the cheapest only.
                p = size - 1
                while p > 0 and work[p - 1] + class_units[c] >= need:
                    p -= 1
                pointer[c] = p
            # Downwards in work: a label stays only if it is cheaper than every
            # label with at least as much work. An old label wins ties.
            place = work_next.shape[0]
            cheapest = INFINITY
            limit = ceiling[t] + gains[t]
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
                if at_paid >= cheapest or at_paid + mu * (need - at_work) >= limit:
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
            if size > width:
                width = 2 * size
                work = np.empty(width, np.int64)
                paid = np.empty(width)
                record = np.empty(width, np.int64)
            for j in range(size):
                work[j] = work_next[place + j]
                paid[j] = paid_next[place + j]
                record[j] = record_next[place + j]
        if size > 0 and work[size - 1] >= need:
            curve[t] = paid[size - 1]
            top[t] = record[size - 1]
    return parent, cell


@njit(cache=True)
def least_cover(class_units, need):
    """Raise the need to the least sum of units that covers it.

    Exact for one and for two rates; with more, the need stays as it is, which
    only weakens bounds.
    """
    if class_units.shape[0] == 1:
        u = class_units[0]
        return (need + u - 1) // u * u
    if class_units.shape[0] != 2:
        return need
    fast = max(class_units[0], class_units[1])
    slow = min(class_units[0], class_units[1])
    least = (need + fast - 1) // fast * fast
    if least // fast > 4096:
        return need
    for n in range(least // fast):
        rest = need - n * fast
        least = min(least, n * fast + (rest + slow - 1) // slow * slow)
    return least


@njit(cache=True)
def search(  # noqa: C901
    starts,
    cls,
    lam,
    phi,
    own,
    class_rate,
    class_units,
    need,
    memory,
    entry,
    first_deadline,
    last_deadline,
    ceiling,
):
    """Exact optimum of (12) for every deadline in a range.

    For one deadline each vendor's window is searched on its own, the most
    promising first; for a range one pass over labels answers all vendors and
    deadlines, see ``labels``.

    Parameters
    ----------
    first_deadline, last_deadline : int
        Slots, relative to the first one gathered.
    ceiling : float
        Only schedules cheaper than this are looked for (infinity: all).

    Returns
    -------
    value : float64[deadlines]
    length, vendor_slot : int64[deadlines]
        Cells in the best schedule; slot at which its vendor's label entered.
    cells : int64[deadlines, slots]
        Indices into the gathered lists, in slot order.
    passes : int
        Boxes looked at.
    """
    span = last_deadline - first_deadline + 1
    slots = last_deadline + 1
    classes = class_rate.shape[0]
    value = np.full(span, ceiling)
    length = np.zeros(span, np.int64)
    vendor_slot = np.zeros(span, np.int64)
    cells = np.empty((span, slots), np.int64)
    path = np.empty(slots, np.int64)
    best = np.empty((slots, classes))
    best_cell = np.empty((slots, classes), np.int64)
    need = least_cover(class_units, need)
    units = np.empty(classes)
    for c in range(classes):
        units[c] = class_units[c]
    doors = np.empty(slots, np.int64)
    count = 0
    for t in range(slots):
        if entry[t] < INFINITY:
            doors[count] = t
            count += 1
    if count == 0:
        return value, length, vendor_slot, cells, 0
    start = doors[0]
    box_costs(
        starts, cls, lam, phi, own, class_rate, memory, last_deadline,
        0.0, 0.0, INFINITY, INFINITY, 0.0, best, best_cell,
    )  # fmt: skip
    mu, bound = multiplier(best, units, need, start, last_deadline, 0.0, INFINITY)
    if bound == INFINITY:
        return value, length, vendor_slot, cells, 0
    tilt = 2e-14 * (bound + entry[start])
    if tilt <= 0.0:
        tilt = 2e-14
    for t in range(slots):
        for c in range(classes):
            best[t, c] += tilt * (t + 1)

    # First schedules, by rounding: the closer to the best, the less is searched.
    promise = np.full(count, INFINITY)
    price = np.empty(count)
    step = max(1, span // 12)
    guess = mu
    i = span - 1
    while i >= 0:
        for e in range(count):
            t0 = doors[e]
            if t0 > first_deadline + i:
                continue
            guess, bound = multiplier(best, units, need, t0, first_deadline + i, guess, INFINITY)
            if bound == INFINITY:
                continue
            if i == span - 1:
                promise[e] = entry[t0] + bound
                price[e] = guess
            n = greedy(best, best_cell, units, need, t0, first_deadline + i, guess, path)
            if n > 0:
                _offer(
                    path, n, t0, lam, phi, own, cls, class_rate, memory, entry, tilt,
                    starts, first_deadline, value, length, vendor_slot, cells,
                )  # fmt: skip
        i -= step
    passes = 0
    if span > 1:
        passes = _branch(
            starts, cls, lam, phi, own, class_rate, class_units, units, need, memory,
            entry, start, first_deadline, span, tilt, mu, value, length, vendor_slot,
            cells, path, best, best_cell,
        )  # fmt: skip
        return value, length, vendor_slot, cells, passes
    order = np.argsort(promise, kind="mergesort")
    alone = np.full(slots, INFINITY)
    for n in range(count):
        e = order[n]
        if promise[e] >= value[0]:
            break
        alone[doors[e]] = entry[doors[e]]
        passes += _branch(
            starts, cls, lam, phi, own, class_rate, class_units, units, need, memory,
            alone, doors[e], first_deadline, span, tilt, price[e], value, length,
            vendor_slot, cells, path, best, best_cell,
        )  # fmt: skip
        alone[doors[e]] = INFINITY
    return value, length, vendor_slot, cells, passes


@njit(cache=True)
def _branch(  # noqa: C901
    starts,
    cls,
    lam,
    phi,
    own,
    class_rate,
    class_units,
    units,
    need,
    memory,
    entry,
    start,
    first_deadline,
    span,
    tilt,
    mu,
    value,
    length,
    vendor_slot,
    cells,
    path,
    best,
    best_cell,
):
    """Branch and bound over boxes [low, cap) of the largest prices.

    Within a box the problem is a min-cost cover, which bounds from below; a
    schedule found there is worth its true cost, which bounds from above; when
    the two differ the box is split at one of that schedule's own prices. With
    all prices zero (or in the additive form) the first cover closes the first
    box. For one deadline, the relaxed cover decides as long as it is prices, not
    whole cells, that leave the gap.
    """
    slots = first_deadline + span
    curve = np.empty(slots)
    top = np.empty(slots, np.int64)
    depth = 1
    room = 64
    box = np.empty((room, 5))
    box[0, 0] = 0.0
    box[0, 1] = 0.0
    box[0, 2] = INFINITY
    box[0, 3] = INFINITY
    box[0, 4] = mu
    reach = np.empty((room, 2), np.int64)
    reach[0, 0] = 0
    reach[0, 1] = span - 1
    split = np.empty(2)
    passes = 0
    while depth > 0:
        depth -= 1
        low_lam = box[depth, 0]
        low_phi = box[depth, 1]
        cap_lam = box[depth, 2]
        cap_phi = box[depth, 3]
        begin = reach[depth, 0]
        end = reach[depth, 1]
        passes += 1
        last = first_deadline + end
        floor = least_floor(starts, cls, lam, phi, cap_lam, cap_phi, units, need, start, last)
        if floor == INFINITY:
            continue
        low_lam = max(low_lam, floor)
        floor = least_floor(starts, cls, phi, lam, cap_phi, cap_lam, units, need, start, last)
        low_phi = max(low_phi, floor)
        box_costs(
            starts, cls, lam, phi, own, class_rate, memory, last,
            low_lam, low_phi, cap_lam, cap_phi, tilt, best, best_cell,
        )  # fmt: skip
        single = span == 1
        enough = value[0] - entry[start] if single else INFINITY
        mu, bound = multiplier(best, units, need, start, last, box[depth, 4], enough)
        if bound == INFINITY or bound >= enough:
            continue
        open_first = -1
        open_last = -1
        axis = -1
        if single:
            n = greedy(best, best_cell, units, need, start, last, mu, path)
            if n > 0:
                _offer(
                    path, n, start, lam, phi, own, cls, class_rate, memory, entry, tilt,
                    starts, first_deadline, value, length, vendor_slot, cells,
                )  # fmt: skip
                enough = value[0] - entry[start]
                if bound >= enough:
                    continue
                axis, gap = _split(
                    path, n, lam, phi, cls, class_rate, memory, low_lam, low_phi, split
                )
                if gap >= 0.3 * (enough - bound):
                    open_first = 0
                    open_last = 0
        if open_first < 0:
            parent, cell = labels(
                best, best_cell, class_units, units, need, entry, mu, value,
                first_deadline, begin, end, curve, top,
            )  # fmt: skip
            # Every distinct schedule on the bound's curve is also a real one.
            widest = 0.0
            i = begin
            while i <= end:
                t = first_deadline + i
                tread = top[t]
                stop = i
                while stop < end and top[first_deadline + stop + 1] == tread:
                    stop += 1
                bound = curve[t]
                if tread >= 0 and _worth(bound, value, i, stop):
                    n = 0
                    at = tread
                    while cell[at] >= 0:
                        n += 1
                        at = parent[at]
                    came = -1 - cell[at]
                    at = tread
                    for j in range(n - 1, -1, -1):
                        path[j] = cell[at]
                        at = parent[at]
                    _offer(
                        path, n, came, lam, phi, own, cls, class_rate, memory, entry, tilt,
                        starts, first_deadline, value, length, vendor_slot, cells,
                    )  # fmt: skip
                    if _worth(bound, value, i, stop):
                        if open_first < 0:
                            open_first = i
                        open_last = stop
                        gap = value[stop] - bound
                        if gap > widest:
                            widest = gap
                            axis, gap = _split(
                                path, n, lam, phi, cls, class_rate, memory,
                                low_lam, low_phi, split,
                            )  # fmt: skip
                i = stop + 1
            if open_first < 0:
                continue
        if axis < 0:
            # The bound is the schedule's true cost: only rounding is left.
            continue
        if depth + 2 > room:
            room = 2 * room
            new_box = np.empty((room, 5))
            new_box[: box.shape[0]] = box
            new_reach = np.empty((room, 2), np.int64)
            new_reach[: reach.shape[0]] = reach
            box = new_box
            reach = new_reach
        for high in range(2):
            box[depth, 0] = low_lam
            box[depth, 1] = low_phi
            box[depth, 2] = cap_lam
            box[depth, 3] = cap_phi
            box[depth, 4] = mu
            # The half with the lower prices is on top of the stack.
            box[depth, axis if high == 0 else 2 + axis] = split[axis]
            reach[depth, 0] = open_first
            reach[depth, 1] = open_last
            depth += 1
    return passes


@njit(cache=True)
def _split(path, n, lam, phi, cls, class_rate, memory, low_lam, low_phi, split):
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
    return axis, gap_lam + gap_phi


@njit(cache=True)
def _offer(
    path,
    n,
    came,
    lam,
    phi,
    own,
    cls,
    class_rate,
    memory,
    entry,
    tilt,
    starts,
    first_deadline,
    value,
    length,
    vendor_slot,
    cells,
):
    """Enter a schedule, at its true cost, for every deadline it is best for."""
    total = entry[came]
    samples = 0.0
    true_lam = 0.0
    true_phi = 0.0
    t = 0
    for j in range(n):
        u = path[j]
        while starts[t + 1] <= u:
            t += 1
        total += own[u] + tilt * (t + 1)
        samples += class_rate[cls[u]]
        true_lam = max(true_lam, lam[u])
        true_phi = max(true_phi, phi[u])
    exact = total + true_lam * samples + true_phi * (memory * n)
    for d in range(max(t - first_deadline, 0), value.shape[0]):
        if exact >= value[d]:
            break
        value[d] = exact
        length[d] = n
        vendor_slot[d] = came
        for j in range(n):
            cells[d, j] = path[j]


@njit(cache=True)
def _worth(bound, value, begin, end):
    """Tell whether a bound leaves room below any value in the range."""
    for d in range(begin, end + 1):
        if bound < value[d] - 1e-14 * value[d] or (value[d] == INFINITY and bound < INFINITY):
            return True
    return False
