"""The prices and the sold shares of all cells, as those who look at a zone read them."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from scheduler.auction.search.grid import Floats, Grid


@dataclass(frozen=True, slots=True)
class Prices:
    """Dual prices of every cell on sale, nodes by slots."""

    node_ids: tuple[str, ...]
    first_slot: int
    #: Per sample.
    compute_price: Floats
    #: Per GB and slot.
    memory_price: Floats
    #: Sold share of each cell; 0 where the node is not on sale.
    compute_sold: Floats
    memory_sold: Floats
    #: Whether the node is on sale in the slot.
    on_sale: NDArray[np.bool_]
    #: Whether it would be if its ask were not above its posted rate.
    is_available: NDArray[np.bool_]
    #: What a sample costs at least: the node's ask, or its posted rate if it sells at that.
    reserve_price: Floats


def copy_prices(grid: Grid) -> Prices:
    """Give a copy of all prices of a grid, nodes by slots."""
    on_sale = grid.compute_free > -np.inf
    reserve = grid.reserve_price
    if not len(reserve):
        reserve = np.broadcast_to(grid.ask_per_sample, on_sale.shape)
    with np.errstate(divide="ignore", invalid="ignore"):
        compute = 1 - np.where(on_sale, grid.compute_free, 0.0) / grid.compute_capacity
        memory = 1 - np.where(on_sale, grid.memory_free, 0.0) / grid.memory_capacity
    return Prices(
        node_ids=tuple(node.id for node in grid.nodes),
        first_slot=grid.first_slot,
        compute_price=grid.compute_price.T.copy(),
        memory_price=grid.memory_price.T.copy(),
        compute_sold=np.where(on_sale & np.isfinite(compute), compute, 0.0).T.copy(),
        memory_sold=np.where(on_sale & np.isfinite(memory), memory, 0.0).T.copy(),
        on_sale=(on_sale & (reserve < np.inf)).T.copy(),
        is_available=on_sale.T.copy(),
        reserve_price=reserve.T.copy(),
    )
