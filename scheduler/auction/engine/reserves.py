"""Posted rates as the reserves of cells: what a buyer pays for a sample at least.

A cell is on sale where its node's ask, as it was when the rates were posted, is no higher
than the rate; elsewhere its reserve is infinite.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np
from numpy.typing import NDArray

from scheduler.auction.log.events import RatesPosted
from scheduler.auction.search.grid import Floats, Grid, Ints
from scheduler.types import NodeSpec


def find_rates(
    posted: RatesPosted,
    nodes: Sequence[NodeSpec],
    *,
    first_slot: int,
    slots: int,
    sample_worth: Mapping[str, tuple[float, ...]] | None = None,
) -> tuple[Floats, NDArray[np.bool_]]:
    """Give the rates of cells, and whether they are on sale at them.

    Parameters
    ----------
    posted : RatesPosted
    nodes : sequence of NodeSpec
    first_slot, slots : int
    sample_worth : mapping of str to sequence of float, optional
        As ``PricesSolved`` has it, from ``first_slot`` on. It lowers the day-ahead rates,
        not below a node's floor; where it is silent they stay.

    Returns
    -------
    rates : float64[slot, node]
        Money per sample; 0 for a node without a posted rate.
    on_sale : bool[slot, node]
        Whether the node's ask, as it was when rates were posted, is no higher.
    """
    since: Ints = np.arange(first_slot, first_slot + slots) - posted.first_slot
    block: Ints = since % posted.day_slots // posted.block_slots
    rates = np.zeros((slots, len(nodes)))
    on_sale = np.zeros((slots, len(nodes)), np.bool_)
    for k, node in enumerate(nodes):
        rate = posted.rates.get(node.id)
        if rate is None:
            continue
        worth = np.full(slots, np.inf)
        known = (sample_worth or {}).get(node.gpu_type, ())[:slots]
        worth[: len(known)] = known
        day_ahead = np.array(rate.by_block, np.float64)[block]
        rates[:, k] = np.maximum(rate.floor, np.minimum(day_ahead, worth))
        on_sale[:, k] = rate.ask <= rates[:, k]
    return rates, on_sale


def find_floors(posted: RatesPosted, nodes: Sequence[NodeSpec]) -> Floats:
    """Give each node's floor, money per sample; 0 for a node without a posted rate."""
    return np.array([posted.rates[n.id].floor if n.id in posted.rates else 0.0 for n in nodes])


def move_prices(grid: Grid, reserves: Floats) -> None:
    """Put reserves in place; what a sample costs stays where it is above them."""
    before = grid.reserve_price if len(grid.reserve_price) else grid.ask_per_sample.reshape(1, -1)
    above = (grid.compute_price > 0) & (before < np.inf)
    cost = np.where(above, before + grid.compute_price, 0.0)
    for g in range(len(grid.types)):
        alike = grid.node_type == g
        if alike.any():
            cost[:, alike] = cost[:, alike].max(axis=1, keepdims=True)
    safe = np.where(reserves < np.inf, reserves, 0.0)
    grid.compute_price = np.where(reserves < np.inf, np.maximum(cost - safe, 0.0), 0.0)
    grid.reserve_price = reserves
