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
def cover_pass(
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
    last,
    low_lam,
    low_phi,
    cap_lam,
    cap_phi,
):
    """Cheapest cover for every deadline up to ``last``, in one forward pass.

    A label is (work so far, cost so far). Only labels that no other label beats
    in both are kept, sorted by work, so the list holds the exact trade-off; work
    is counted in whole units, which makes sums exact and equal sums merge. A
    labour vendor that is done before slot ``t`` enters as a label of no work and
    its price (``entry[t]``): one pass answers all vendors.

    Only cells with prices strictly below the caps are used, and each is charged
    at least the low prices, so the result bounds from below every schedule whose
    largest prices lie in [low, cap).

    Returns
    -------
    curve : float64[last + 1]
        Cost of the best cover that ends by each slot, infinity without one.
    top : int64[last + 1]
        Record of that cover's last cell, -1 without one.
    parent, cell : int64[records]
        ``cell`` is -1 - slot for a vendor's entry.
    """
    classes = class_rate.shape[0]
    curve = np.full(last + 1, INFINITY)
    top = np.full(last + 1, -1, np.int64)
    room = 64 + 16 * (last + 1)
    parent = np.empty(room, np.int64)
    cell = np.empty(room, np.int64)
    records = 0
    size = 0
    width = 64
    work = np.empty(width, np.int64)
    paid = np.empty(width)
    record = np.empty(width, np.int64)
    work_next = np.empty(width, np.int64)
    paid_next = np.empty(width)
    record_next = np.empty(width, np.int64)
    best = np.empty(classes)
    best_cell = np.empty(classes, np.int64)
    pointer = np.empty(classes + 1, np.int64)
    for t in range(last + 1):
        if entry[t] < INFINITY and (size == 0 or entry[t] < paid[0]):
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
        if size > 0:
            usable = 0
            for c in range(classes):
                best[c] = INFINITY
                best_cell[c] = -1
            for j in range(starts[t], starts[t + 1]):
                if lam[j] < cap_lam and phi[j] < cap_phi:
                    c = cls[j]
                    price = (
                        own[j]
                        + class_rate[c] * max(low_lam, lam[j])
                        + memory * max(low_phi, phi[j])
                    )
                    if price < best[c]:
                        if best_cell[c] < 0:
                            usable += 1
                        best[c] = price
                        best_cell[c] = j
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
                # Downwards in work: a label stays only if it is cheaper than
                # every label with at least as much work. An old label wins ties,
                # so equal costs finish earlier.
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
                        if best_cell[c] < 0 or p < 0:
                            continue
                        w = min(work[p] + class_units[c], need)
                        v = paid[p] + best[c]
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
                    cheapest = at_paid
                    place -= 1
                    work_next[place] = at_work
                    paid_next[place] = at_paid
                    if at == classes:
                        record_next[place] = record[p]
                    else:
                        parent[records] = record[p]
                        cell[records] = best_cell[at]
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
            if work[size - 1] >= need:
                curve[t] = paid[size - 1]
                top[t] = record[size - 1]
    return curve, top, parent, cell


@njit(cache=True)
def search(
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

    Branch and bound over boxes [low, cap) of the largest compute and memory
    price. ``cover_pass`` bounds a box; the schedule it finds is worth its true
    cost, which bounds from above; when the two differ the box is split at that
    schedule's own largest price. With all prices zero (or in the additive form)
    the first pass closes the box.

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
        Cover passes made.
    """
    span = last_deadline - first_deadline + 1
    value = np.full(span, ceiling)
    length = np.zeros(span, np.int64)
    vendor_slot = np.zeros(span, np.int64)
    cells = np.empty((span, last_deadline + 1), np.int64)
    path = np.empty(last_deadline + 1, np.int64)
    depth = 1
    room = 64
    box = np.empty((room, 4))
    box[0, 0] = 0.0
    box[0, 1] = 0.0
    box[0, 2] = INFINITY
    box[0, 3] = INFINITY
    reach = np.empty((room, 2), np.int64)
    reach[0, 0] = 0
    reach[0, 1] = span - 1
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
        curve, top, parent, cell = cover_pass(
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
            first_deadline + end,
            low_lam,
            low_phi,
            cap_lam,
            cap_phi,
        )
        # Every distinct schedule on the bound's curve is also a real one.
        open_first = -1
        open_last = -1
        split_lam = 0.0
        split_phi = 0.0
        on_lam = True
        widest = 0.0
        i = begin
        while i <= end:
            t = first_deadline + i
            tread = top[t]
            stop = i
            while stop < end and top[first_deadline + stop + 1] == tread:
                stop += 1
            bound = curve[t]
            # Costs that differ by rounding alone are the same cost.
            if tread >= 0 and _worth(bound, value, i, stop):
                n = 0
                at = tread
                while cell[at] >= 0:
                    path[n] = cell[at]
                    n += 1
                    at = parent[at]
                came = -1 - cell[at]
                high_lam = low_lam
                high_phi = low_phi
                samples = 0.0
                extra_lam = 0.0
                extra_phi = 0.0
                total = entry[came]
                true_lam = 0.0
                true_phi = 0.0
                for j in range(n - 1, -1, -1):
                    u = path[j]
                    s = class_rate[cls[u]]
                    total += own[u]
                    samples += s
                    true_lam = max(true_lam, lam[u])
                    true_phi = max(true_phi, phi[u])
                    extra_lam += s * max(low_lam, lam[u])
                    extra_phi += max(low_phi, phi[u])
                high_lam = max(low_lam, true_lam)
                high_phi = max(low_phi, true_phi)
                exact = total + true_lam * samples + true_phi * (memory * n)
                for d in range(i, span):
                    if exact >= value[d]:
                        break
                    value[d] = exact
                    length[d] = n
                    vendor_slot[d] = came
                    for j in range(n):
                        cells[d, j] = path[n - 1 - j]
                gap_lam = high_lam * samples - extra_lam
                gap_phi = memory * (high_phi * n - extra_phi)
                if _worth(bound, value, i, stop):
                    if open_first < 0:
                        open_first = i
                    open_last = stop
                    gap = value[stop] - bound
                    if gap > widest:
                        widest = gap
                        on_lam = gap_lam >= gap_phi
                        split_lam = high_lam
                        split_phi = high_phi
            i = stop + 1
        if open_first < 0:
            continue
        if depth + 2 > room:
            room = 2 * room
            new_box = np.empty((room, 4))
            new_box[: box.shape[0]] = box
            new_reach = np.empty((room, 2), np.int64)
            new_reach[: reach.shape[0]] = reach
            box = new_box
            reach = new_reach
        if on_lam and split_lam <= low_lam:
            on_lam = False
        if not on_lam and split_phi <= low_phi:
            if split_lam <= low_lam:
                # The bound is this schedule's true cost: the box is closed for it
                # up to rounding, and nothing below is left to split.
                continue
            on_lam = True
        for high in range(2):
            box[depth, 0] = low_lam
            box[depth, 1] = low_phi
            box[depth, 2] = cap_lam
            box[depth, 3] = cap_phi
            if on_lam:
                if high == 0:
                    box[depth, 0] = split_lam
                else:
                    box[depth, 2] = split_lam
            elif high == 0:
                box[depth, 1] = split_phi
            else:
                box[depth, 3] = split_phi
            reach[depth, 0] = open_first
            reach[depth, 1] = open_last
            depth += 1
    return value, length, vendor_slot, cells, passes


@njit(cache=True)
def _worth(bound, value, begin, end):
    """Tell whether a bound leaves room below any value in the range."""
    for d in range(begin, end + 1):
        if bound < value[d] - 1e-13 * abs(value[d]) or (value[d] == INFINITY and bound < INFINITY):
            return True
    return False
