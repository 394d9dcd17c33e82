"""Compiled layout of one task over a grid: which cells a best schedule may use.

Slots are rows and nodes are columns. Operation order is fixed, so a result is
the same bit for bit on every run; ``reference.py`` answers the same questions
slowly and from the definition, and the tests hold one against the other.
"""

from __future__ import annotations

import numpy as np

from scheduler.auction.kernels.compiled import INFINITY, Floats, Ints, compiled


@compiled
def gather_cells(
    lam: Floats,
    phi: Floats,
    free_compute: Floats,
    free_memory: Floats,
    cost: Floats,
    rate: Floats,
    node_class: Ints,
    need_compute: Floats,
    need_memory: Floats,
    classes: int,
    memory: float,
    first: int,
    last: int,
    additive: bool,
    waste: Floats,
    waste_unit: Floats,
    node_type: Ints,
) -> tuple[Ints, Ints, Ints, Floats, Floats, Floats]:
    """List the cells a best schedule may use, slot by slot.

    Within a slot, a cell is dropped when another of the same rate costs no more
    in every respect: one cell per rate stays in the additive form, the Pareto
    front of (compute price, memory price, operational cost) in the max form.
    Cells that tie in everything go, in the additive form, to the node of which
    the task leaves least that no mix of usual rates can fill (``waste``), then
    to the fuller node (best fit), then to the node that joined first; none of it
    depends on the bid.

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
    waste : float64[type, units]
        Samples that usual rates leave unused of so many units; no units: not known.
    waste_unit : float64[type]
        Samples of one unit.
    node_type : int64[node]

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
    kept = np.empty(classes, np.int64)
    least = np.empty(classes)
    spoiled = np.empty(classes)
    packs = waste.shape[1] > 0
    for i in range(slots):
        t = first + i
        begin = count
        row = t if by_slot else 0
        if count + nodes > room:
            room = 2 * room + nodes
            node = longer_int(node, room)
            cls = longer_int(cls, room)
            lam_out = longer(lam_out, room)
            phi_out = longer(phi_out, room)
            own = longer(own, room)
        if additive:
            for c in range(classes):
                kept[c] = -1
                least[c] = INFINITY
            for k in range(nodes):
                c = node_class[k]
                if (
                    c < 0
                    or free_compute[t, k] < need_compute[k]
                    or free_memory[t, k] < need_memory[k]
                ):
                    continue
                e = cost[row, k] + rate[k] * lam[t, k] + memory * phi[t, k]
                if e > least[c]:
                    continue
                spoils = 0.0
                if packs:
                    g = node_type[k]
                    before = free_compute[t, k] / waste_unit[g] + 1e-6
                    after = max(free_compute[t, k] - rate[k], 0.0) / waste_unit[g] + 1e-6
                    most = waste.shape[1] - 1
                    spoils = waste[g, min(int(after), most)] - waste[g, min(int(before), most)]
                if (
                    e < least[c]
                    or spoils < spoiled[c]
                    or (
                        spoils == spoiled[c]
                        and free_compute[t, k] * memory + free_memory[t, k] * rate[k]
                        < free_compute[t, kept[c]] * memory + free_memory[t, kept[c]] * rate[k]
                    )
                ):
                    least[c] = e
                    kept[c] = k
                    spoiled[c] = spoils
            for c in range(classes):
                if kept[c] >= 0:
                    node[count] = kept[c]
                    cls[count] = c
                    lam_out[count] = 0.0
                    phi_out[count] = 0.0
                    own[count] = least[c]
                    count += 1
            starts[i + 1] = count
            continue
        for k in range(nodes):
            c = node_class[k]
            if c < 0 or free_compute[t, k] < need_compute[k] or free_memory[t, k] < need_memory[k]:
                continue
            a = lam[t, k]
            b = phi[t, k]
            e = cost[row, k]
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


@compiled
def longer(
    old: Floats,
    size: int,
) -> Floats:
    new = np.empty(size)
    new[: old.shape[0]] = old
    return new


@compiled
def longer_int(
    old: Ints,
    size: int,
) -> Ints:
    new = np.empty(size, np.int64)
    new[: old.shape[0]] = old
    return new


@compiled
def box_costs(
    starts: Ints,
    cls: Ints,
    lam: Floats,
    phi: Floats,
    own: Floats,
    class_rate: Floats,
    memory: float,
    last: int,
    low_lam: float,
    low_phi: float,
    cap_lam: float,
    cap_phi: float,
    tilt: float,
    best: Floats,
    best_cell: Ints,
) -> None:
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


@compiled
def least_floor(
    starts: Ints,
    cls: Ints,
    price: Floats,
    other: Floats,
    cap_price: float,
    cap_other: float,
    units: Floats,
    need: int,
    first: int,
    last: int,
    low: float,
) -> float:
    """Find the least cap on one price that leaves enough cells to cover the work.

    Every cover within the caps has a largest price of at least this; a floor
    raised to it makes the box's bound tighter. Never below ``low``; infinity when
    nothing covers.
    """
    classes = units.shape[0]
    slots = last - first + 1
    within = 0.0
    for t in range(first, last + 1):
        most = 0.0
        for j in range(starts[t], starts[t + 1]):
            if price[j] <= low and other[j] < cap_other and units[cls[j]] > most:
                most = units[cls[j]]
        within += most
        if within >= need:
            return low
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
                return max(low, float(least[at]))
    return INFINITY
