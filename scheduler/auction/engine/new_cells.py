"""Prices of cells that come on sale between two solves: what the cheapest alike cells cost."""

from __future__ import annotations

from collections.abc import Collection

import numpy as np

from scheduler.auction.search.grid import Grid, Ints


def price_new_nodes(grid: Grid, names: Collection[str]) -> None:
    """Price nodes that joined as the others of their type are in each slot; alone it has none."""
    joined = np.array([grid.column[name] for name in names], np.int64)
    rows = np.arange(grid.slots)
    for g in sorted(set(grid.node_type[joined].tolist())):
        _price(grid, g=g, rows=rows, columns=joined[grid.node_type[joined] == g], like=rows)


def price_new_slots(grid: Grid, opened: int) -> None:
    """Price the last slots, which were opened, as each type is priced in the slot before them."""
    rows = np.arange(grid.slots - opened, grid.slots)
    for g in range(len(grid.types)):
        columns = np.flatnonzero(grid.node_type == g)
        _price(grid, g=g, rows=rows, columns=columns, like=np.full(opened, rows[0] - 1))


def _price(grid: Grid, *, g: int, rows: Ints, columns: Ints, like: Ints) -> None:
    """Give cells of a type the price at which they cost what the cheapest do in other rows."""
    reserves = grid.reserve_price if len(grid.reserve_price) else grid.ask_per_sample.reshape(1, -1)
    reserves = np.broadcast_to(reserves, grid.compute_price.shape)
    alike = np.flatnonzero(grid.node_type == g)
    if like is rows:
        alike = np.setdiff1d(alike, columns)
    if not len(alike):
        return
    cells = np.ix_(like, alike)
    price, on_sale = grid.compute_price[cells], grid.compute_free[cells] > -np.inf
    cost = np.where(on_sale, reserves[cells] + price, np.inf)
    least = cost.min(axis=1, keepdims=True)
    # Where a node's ask is all that it costs, others may have a price that comes to as much.
    best = alike[np.where(cost == least, price, -1.0).argmax(axis=1)]
    is_sold = least[:, 0] < np.inf
    compute, paid = grid.compute_price[like, best], reserves[like, best]
    memory = np.where(is_sold, grid.memory_price[like, best], 0.0)
    for k in columns:
        own = reserves[rows, k]
        is_above = is_sold & (compute > 0) & (own < np.inf)
        safe = np.where(is_above, own, 0.0), np.where(is_above, paid, 0.0)
        # Nodes of one ask go on costing the same to the last bit.
        above = np.where(own == paid, compute, np.maximum(compute + safe[1] - safe[0], 0.0))
        grid.compute_price[rows, k] = np.where(is_above, above, 0.0)
        grid.memory_price[rows, k] = memory
