"""Compiled layout of one task over a grid: which cells a best schedule may use.

Slots are rows and nodes are columns. Operation order is fixed, so a result is
the same bit for bit on every run.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from scheduler.auction.search.kernels.compiled import INFINITY, Floats, Ints, compiled


class OfferedCells(NamedTuple):
    """What a grid offers one task, slots by nodes."""

    #: Dual prices, float64[slot, node].
    lam: Floats
    phi: Floats
    #: What is left on sale; minus infinity where the node is not on sale.
    free_compute: Floats
    free_memory: Floats
    #: Operational cost e_ikt of this task, float64[slot or 1, node].
    cost: Floats
    #: Reserve per sample, float64[slot or 1, node], infinite where the node does not sell;
    #: empty: costs and prices are added by cell.
    reserve: Floats
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


class TaskNeed(NamedTuple):
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


class Rows(NamedTuple):
    """Cheapest cell of every rate, one row for each slot that has any."""

    #: float64[rows, rates]; infinity where there is none.
    cost: Floats
    #: int64[rows, rates]; -1 where there is none.
    cell: Ints


class Cells(NamedTuple):
    """Cells that a best schedule may use, in slot order."""

    #: Where each slot's cells begin in the lists below, int64[slots + 1].
    starts: Ints
    slot: Ints
    node: Ints
    #: Index of the cell's rate.
    cls: Ints
    #: What the cell costs the task, all its prices in it.
    own: Floats


@compiled
def gather_cells(offer: OfferedCells, job: TaskNeed) -> Cells:
    """List the cells a best schedule may use: the cheapest of every slot and rate.

    Ties go to the node where the task leaves the least room that no mix of usual rates can fill
    (``OfferedCells.waste``). Then they go to the fuller node (best fit), then to the node that
    joined first. None of it depends on the bid.
    """
    slots, nodes = offer.lam.shape
    classes = job.rate.shape[0]
    most = slots * min(classes, nodes)
    starts = np.zeros(slots + 1, np.int64)
    slot = np.empty(most, np.int64)
    node = np.empty(most, np.int64)
    cls = np.empty(most, np.int64)
    own = np.empty(most)
    _keep_cheapest(offer, job, Cells(starts, slot, node, cls, own))
    count = starts[slots]
    return Cells(starts, slot[:count], node[:count], cls[:count], own[:count])


@compiled
def _keep_cheapest(offer: OfferedCells, job: TaskNeed, cells: Cells) -> None:
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
    shares = offer.reserve.shape[0] > 0
    count = 0
    for t in range(slots):
        row = t if offer.cost.shape[0] > 1 else 0
        reserve_row = t if offer.reserve.shape[0] > 1 else 0
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
            if shares:
                e = offer.rate[k] * (offer.reserve[reserve_row, k] + lam[t, k]) + memory * phi[t, k]
            else:
                e = offer.cost[row, k] + offer.rate[k] * lam[t, k] + memory * phi[t, k]
            if e > least[c] or e == INFINITY:
                continue
            spoils = _compute_spoiled(offer, t, k) if packs else 0.0
            if (
                e < least[c]
                or spoils < spoiled[c]
                or (spoils == spoiled[c] and is_fuller(offer, job, t, k, int(kept[c])))
            ):
                least[c] = e
                kept[c] = k
                spoiled[c] = spoils
        for c in range(classes):
            if kept[c] >= 0:
                cells.slot[count] = t
                cells.node[count] = kept[c]
                cells.cls[count] = c
                cells.own[count] = least[c]
                count += 1
        cells.starts[t + 1] = count


@compiled
def _compute_spoiled(offer: OfferedCells, t: int, k: int) -> float:
    """Give what of a node usual rates can fill now and not with the task on it."""
    g = offer.node_type[k]
    free = offer.free_compute[t, k]
    before = free / offer.waste_unit[g] + 1e-6
    after = max(free - offer.rate[k], 0.0) / offer.waste_unit[g] + 1e-6
    most = offer.waste.shape[1] - 1
    return float(offer.waste[g, min(int(after), most)] - offer.waste[g, min(int(before), most)])


@compiled
def is_fuller(offer: OfferedCells, job: TaskNeed, t: int, one: int, other: int) -> bool:
    """Tell whether a node has strictly less left than another."""
    free_compute, free_memory = offer.free_compute, offer.free_memory
    return (
        free_compute[t, one] * job.memory + free_memory[t, one] * offer.rate[one]
        < free_compute[t, other] * job.memory + free_memory[t, other] * offer.rate[other]
    )
