"""Prices of nodes that join between two solves: what the cheapest alike cells cost."""

from __future__ import annotations

from collections.abc import Collection

import numpy as np

from scheduler.auction.search.grid import Grid


def price_new_nodes(grid: Grid, names: Collection[str]) -> None:
    """Price nodes that joined as the others of their type are in each slot; alone it has none."""
    reserves = grid.reserve_price if len(grid.reserve_price) else grid.ask_per_sample.reshape(1, -1)
    reserves = np.broadcast_to(reserves, grid.compute_price.shape)
    rows, joined = np.arange(grid.slots), [grid.column[name] for name in names]
    for k in joined:
        alike = np.setdiff1d(np.flatnonzero(grid.node_type == grid.node_type[k]), joined)
        if not len(alike):
            continue
        price, on_sale = grid.compute_price[:, alike], grid.compute_free[:, alike] > -np.inf
        cost = np.where(on_sale, reserves[:, alike] + price, np.inf)
        least = cost.min(axis=1)
        # Where a node's ask is all that it costs, others may have a price that comes to as much.
        best = alike[np.where(cost == least[:, None], price, -1.0).argmax(axis=1)]
        compute, paid, own = grid.compute_price[rows, best], reserves[rows, best], reserves[:, k]
        is_sold = least < np.inf
        is_above = is_sold & (compute > 0) & (own < np.inf)
        # Nodes of one ask go on costing the same to the last bit.
        differs, more = is_above & (own != paid), np.zeros(grid.slots)
        np.subtract(paid, own, out=more, where=differs)
        grid.compute_price[:, k] = np.where(is_above, np.maximum(compute + more, 0.0), 0.0)
        grid.memory_price[:, k] = np.where(is_sold, grid.memory_price[rows, best], 0.0)
