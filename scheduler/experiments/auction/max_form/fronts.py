"""Compiled layout of one task over a grid in the max form: Pareto fronts of cells."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from scheduler.auction.search.kernels.cells import OfferedCells, TaskNeed, is_fuller
from scheduler.auction.search.kernels.compiled import INFINITY, Floats, Ints, compiled


class PricedCells(NamedTuple):
    """Cells that a best schedule may use, in slot order."""

    #: Where each slot's cells begin in the lists below, int64[slots + 1].
    starts: Ints
    slot: Ints
    node: Ints
    #: Index of the cell's rate.
    cls: Ints
    #: Prices that enter through their maximum.
    lam: Floats
    phi: Floats
    #: The cell's own cost.
    own: Floats


@compiled
def gather_fronts(offer: OfferedCells, job: TaskNeed) -> PricedCells:
    """List the cells a best schedule may use, slot by slot.

    Within a slot, a cell is dropped when another of the same rate costs no more
    in every respect: the Pareto front of (compute price, memory price,
    operational cost) stays.
    """
    slots, nodes = offer.lam.shape
    most = slots * nodes
    starts = np.zeros(slots + 1, np.int64)
    slot = np.empty(most, np.int64)
    node = np.empty(most, np.int64)
    cls = np.empty(most, np.int64)
    lam = np.empty(most)
    phi = np.empty(most)
    own = np.empty(most)
    _keep_fronts(offer, job, PricedCells(starts, slot, node, cls, lam, phi, own))
    count = starts[slots]
    return PricedCells(
        starts, slot[:count], node[:count], cls[:count], lam[:count], phi[:count], own[:count]
    )


@compiled
def _keep_fronts(offer: OfferedCells, job: TaskNeed, cells: PricedCells) -> None:
    """Keep the Pareto front of every slot and rate.

    Nodes come in order of their own cost, so only those before can beat a cell,
    and only by costing no more in both prices: against the staircase of the
    prices so far that is one comparison.
    """
    lam, phi, free_compute, free_memory = (
        offer.lam, offer.phi, offer.free_compute, offer.free_memory,
    )  # fmt: skip
    cost, need_compute, need_memory = offer.cost, offer.need_compute, offer.need_memory
    slots, nodes = lam.shape
    classes = job.rate.shape[0]
    by_slot = cost.shape[0] > 1
    order, able = np.empty((classes, nodes), np.int64), np.zeros(classes, np.int64)
    if not by_slot:
        order_nodes_by_cost(cost[0], offer.node_class, order, able)
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
                        and is_fuller(offer, job, t, k, int(cells.node[j]))
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
def _close_up(cells: PricedCells, begin: int, end: int) -> int:
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
