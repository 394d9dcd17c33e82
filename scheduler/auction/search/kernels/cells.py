"""Compiled layout of one task over a grid: which cells a best schedule may use.

Slots are rows and nodes are columns. Operation order is fixed, so a result is
the same bit for bit on every run; ``reference.py`` answers the same questions
slowly and from the definition, and the tests hold one against the other.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from scheduler.auction.search.kernels.compiled import INFINITY, Floats, Ints, compiled


class Offer(NamedTuple):
    """What a grid offers one task, slots by nodes."""

    #: Dual prices, float64[slot, node].
    lam: Floats
    phi: Floats
    #: What is left on sale; minus infinity where the node is not on sale.
    free_compute: Floats
    free_memory: Floats
    #: Operational cost e_ikt of this task, float64[slot or 1, node].
    cost: Floats
    #: s_ik, float64[node].
    rate: Floats
    #: Index of the node's distinct rate, -1 where the task cannot run.
    node_class: Ints
    #: What must be free, tolerance taken off, float64[node].
    need_compute: Floats
    need_memory: Floats
    #: Samples that usual rates leave unused of so many units, float64[type, units];
    #: no units: not known. Samples of one unit, and each node's type.
    waste: Floats
    waste_unit: Floats
    node_type: Ints
    #: Nodes of each rate by their cost, and how many there are, for a cost of one row;
    #: int64[rates, node] and int64[rates].
    order: Ints
    able: Ints


class Job(NamedTuple):
    """What a task asks for."""

    #: Distinct rates, float64[rates], and the same in whole units of work.
    rate: Floats
    units: Ints
    #: Units of work to cover.
    need: int
    #: r_i.
    memory: float
    #: Price of the cheapest vendor that is done just before each slot, infinity
    #: where none is; float64[slots].
    entry: Floats


class Cells(NamedTuple):
    """Cells that a best schedule may use, in slot order."""

    #: Where each slot's cells begin in the lists below, int64[slots + 1].
    starts: Ints
    slot: Ints
    node: Ints
    #: Index of the cell's rate.
    cls: Ints
    #: Prices that enter through their maximum; zero in the additive form.
    lam: Floats
    phi: Floats
    #: The cell's own cost.
    own: Floats


@compiled
def gather_cells(offer: Offer, job: Job, additive: bool) -> Cells:
    """List the cells a best schedule may use, slot by slot.

    Within a slot, a cell is dropped when another of the same rate costs no more
    in every respect: one cell per rate stays in the additive form, the Pareto
    front of (compute price, memory price, operational cost) in the max form.
    Cells that tie in everything go, in the additive form, to the node of which
    the task leaves least that no mix of usual rates can fill (``Offer.waste``),
    then to the fuller node (best fit), then to the node that joined first; none
    of it depends on the bid.
    """
    slots, nodes = offer.lam.shape
    classes = job.rate.shape[0]
    most = slots * (min(classes, nodes) if additive else nodes)
    starts = np.zeros(slots + 1, np.int64)
    slot = np.empty(most, np.int64)
    node = np.empty(most, np.int64)
    cls = np.empty(most, np.int64)
    lam = np.empty(most)
    phi = np.empty(most)
    own = np.empty(most)
    cells = Cells(starts, slot, node, cls, lam, phi, own)
    if additive:
        _cheapest(offer, job, cells)
    else:
        _fronts(offer, job, cells)
    count = starts[slots]
    return Cells(
        starts, slot[:count], node[:count], cls[:count], lam[:count], phi[:count], own[:count]
    )


@compiled
def _cheapest(offer: Offer, job: Job, cells: Cells) -> None:
    """Keep the cheapest cell of every slot and rate."""
    lam, phi, free_compute, free_memory = (
        offer.lam, offer.phi, offer.free_compute, offer.free_memory,
    )  # fmt: skip
    slots, nodes = lam.shape
    classes = job.rate.shape[0]
    memory = job.memory
    kept = np.empty(classes, np.int64)
    least = np.empty(classes)
    spoiled = np.empty(classes)
    packs = offer.waste.shape[1] > 0
    count = 0
    for t in range(slots):
        row = t if offer.cost.shape[0] > 1 else 0
        for c in range(classes):
            kept[c] = -1
            least[c] = INFINITY
        for k in range(nodes):
            c = offer.node_class[k]
            if (
                c < 0
                or free_compute[t, k] < offer.need_compute[k]
                or free_memory[t, k] < offer.need_memory[k]
            ):
                continue
            e = offer.cost[row, k] + offer.rate[k] * lam[t, k] + memory * phi[t, k]
            if e > least[c]:
                continue
            spoils = _spoiled(offer, t, k) if packs else 0.0
            if (
                e < least[c]
                or spoils < spoiled[c]
                or (spoils == spoiled[c] and _fuller(offer, job, t, k, int(kept[c])))
            ):
                least[c] = e
                kept[c] = k
                spoiled[c] = spoils
        for c in range(classes):
            if kept[c] >= 0:
                cells.slot[count] = t
                cells.node[count] = kept[c]
                cells.cls[count] = c
                cells.lam[count] = 0.0
                cells.phi[count] = 0.0
                cells.own[count] = least[c]
                count += 1
        cells.starts[t + 1] = count


@compiled
def _spoiled(offer: Offer, t: int, k: int) -> float:
    """Give what of a node usual rates can fill now and not with the task on it."""
    g = offer.node_type[k]
    free = offer.free_compute[t, k]
    before = free / offer.waste_unit[g] + 1e-6
    after = max(free - offer.rate[k], 0.0) / offer.waste_unit[g] + 1e-6
    most = offer.waste.shape[1] - 1
    return float(offer.waste[g, min(int(after), most)] - offer.waste[g, min(int(before), most)])


@compiled
def _fronts(offer: Offer, job: Job, cells: Cells) -> None:
    """Keep the Pareto front of every slot and rate.

    Nodes come in order of their own cost, so only those before can beat a cell,
    and only by being no dearer in both prices: against the staircase of the
    prices so far that is one comparison.
    """
    lam, phi, free_compute, free_memory = (
        offer.lam, offer.phi, offer.free_compute, offer.free_memory,
    )  # fmt: skip
    cost, need_compute, need_memory = offer.cost, offer.need_compute, offer.need_memory
    slots, nodes = lam.shape
    classes = job.rate.shape[0]
    by_slot = cost.shape[0] > 1
    order, able = offer.order, offer.able
    if by_slot:
        order, able = np.empty((classes, nodes), np.int64), np.zeros(classes, np.int64)
    full = np.empty(nodes, np.int64)
    room = np.empty(nodes + 1, np.int64)
    stair = np.empty(nodes, np.int64)
    count = 0
    for t in range(slots):
        row = t if by_slot else 0
        if by_slot:
            order_nodes_by_cost(cost[row], offer.node_class, order, able)
        for k in range(nodes):
            short = free_compute[t, k] < need_compute[k]
            full[k] = short | (free_memory[t, k] < need_memory[k])
        for c in range(classes):
            # Nodes with room, without a branch that most of them would mislead.
            rooms = 0
            for i in range(able[c]):
                room[rooms] = order[c, i]
                rooms += 1 - full[order[c, i]]
            # The staircase: compute prices rise, memory prices fall.
            steps = 0
            begin = count
            dropped = False
            # Prices of the step that beat a cell last, which beats most of the next ones.
            beat_lam = INFINITY
            beat_phi = INFINITY
            for i in range(rooms):
                k = int(room[i])
                a = lam[t, k]
                b = phi[t, k]
                if a >= beat_lam and b >= beat_phi and (a > beat_lam or b > beat_phi):
                    continue
                e = cost[row, k]
                at = steps
                while at > 0 and cells.lam[stair[at - 1]] > a:
                    at -= 1
                if at > 0 and cells.phi[stair[at - 1]] <= b:
                    j = stair[at - 1]
                    beat_lam = cells.lam[j]
                    beat_phi = cells.phi[j]
                    if (
                        cells.lam[j] == a
                        and cells.phi[j] == b
                        and cells.own[j] == e
                        and _fuller(offer, job, t, k, int(cells.node[j]))
                    ):
                        cells.node[j] = k
                    continue
                # Steps that the new one undercuts; one with the same own cost is
                # beaten in everything.
                low = at
                if low > 0 and cells.lam[stair[low - 1]] == a:
                    low -= 1
                high = low
                while high < steps and cells.phi[stair[high]] >= b:
                    if cells.own[stair[high]] == e:
                        cells.node[stair[high]] = -1
                        dropped = True
                    high += 1
                if high == low:
                    for s in range(steps, low, -1):
                        stair[s] = stair[s - 1]
                    steps += 1
                elif high > low + 1:
                    for s in range(high, steps):
                        stair[low + 1 + s - high] = stair[s]
                    steps -= high - low - 1
                stair[low] = count
                cells.slot[count] = t
                cells.node[count] = k
                cells.cls[count] = c
                cells.lam[count] = a
                cells.phi[count] = b
                cells.own[count] = e
                count += 1
            if dropped:
                count = _close_up(cells, begin, count)
        cells.starts[t + 1] = count


@compiled
def order_nodes_by_cost(cost: Floats, node_class: Ints, order: Ints, able: Ints) -> None:
    """List the nodes of each rate by their cost, and how many there are."""
    able[:] = 0
    for k in np.argsort(cost, kind="mergesort"):
        c = node_class[k]
        if c >= 0:
            order[c, able[c]] = k
            able[c] += 1


@compiled
def _fuller(offer: Offer, job: Job, t: int, one: int, other: int) -> bool:
    """Tell whether a node has strictly less left than another."""
    free_compute, free_memory = offer.free_compute, offer.free_memory
    return (
        free_compute[t, one] * job.memory + free_memory[t, one] * offer.rate[one]
        < free_compute[t, other] * job.memory + free_memory[t, other] * offer.rate[other]
    )


@compiled
def _close_up(cells: Cells, begin: int, end: int) -> int:
    """Take out the cells without a node; give the new end."""
    count = begin
    for j in range(begin, end):
        if cells.node[j] >= 0:
            cells.slot[count] = cells.slot[j]
            cells.node[count] = cells.node[j]
            cells.cls[count] = cells.cls[j]
            cells.lam[count] = cells.lam[j]
            cells.phi[count] = cells.phi[j]
            cells.own[count] = cells.own[j]
            count += 1
    return count
