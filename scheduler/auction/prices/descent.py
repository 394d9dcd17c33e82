"""Subgradient descent on the dual (6), with averaging."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from scheduler.auction.prices.demand_response import Demand
from scheduler.auction.prices.type_pools import TypePools
from scheduler.auction.search.grid import Floats


@dataclass(frozen=True, slots=True)
class Duals:
    """Prices by slot and type, and what they prove."""

    #: Above the lowest ask of the type.
    compute_price: Floats
    memory_price: Floats
    #: Upper bound on the welfare of any choice of schedules.
    value: float


def compute_dual_value(
    pools: TypePools, demand: Demand, compute_price: Floats, memory_price: Floats
) -> float:
    """Give (6) at prices: worth of all room plus what tasks gain at them."""
    return (
        pools.value_room(compute_price, memory_price)
        + demand.answer(compute_price, memory_price).upper
    )


def descend(
    pools: TypePools,
    demand: Demand,
    *,
    iterations: int,
    start: tuple[Floats, Floats] | None = None,
    first_step: float = 0.3,
    last_step: float = 0.01,
) -> tuple[Duals, Duals]:
    """Move prices by the relative excess of demand over what is sold at them.

    Steps shrink geometrically from ``first_step`` to ``last_step`` of the worth of a
    sample at the margin (``Demand.find_marginal_worth``).

    Parameters
    ----------
    pools : TypePools
    demand : Demand
    iterations : int
    start : pair of float64[slot, type], optional
        Prices to begin with; the lowest there are without.
    first_step, last_step : float

    Returns
    -------
    best : Duals
        The lowest dual value met.
    mean : Duals
        Mean of the second half, which moves less than any one of them.
    """
    shape = pools.compute.shape
    lam = np.maximum(np.zeros(shape) if start is None else start[0], pools.floor)
    phi = np.zeros(shape) if start is None else start[1].copy()
    unit = demand.find_marginal_worth(float(pools.compute.sum()))
    unit_gb = unit * demand.samples_per_gb()
    has_compute, has_memory = pools.compute > 0, pools.memory > 0
    safe_compute = np.where(has_compute, pools.compute, 1.0)
    safe_memory = np.where(has_memory, pools.memory, 1.0)
    best = (np.inf, lam, phi)
    sums = (np.zeros(shape), np.zeros(shape))
    kept = 0
    for step in range(iterations):
        answer = demand.answer(lam, phi)
        value = pools.value_room(lam, phi) + answer.upper
        if value < best[0]:
            best = (value, lam.copy(), phi.copy())
        if 2 * step >= iterations:
            sums[0][:] += lam
            sums[1][:] += phi
            kept += 1
        share = step / max(iterations - 1, 1)
        size = first_step * (last_step / first_step) ** share
        offered = pools.find_offered_share(lam)
        excess = np.clip(answer.compute / safe_compute - offered, -1.0, 2.0)
        lam = np.where(has_compute, np.maximum(lam + size * unit * excess, pools.floor), 0.0)
        excess = np.clip(answer.memory / safe_memory - 1.0, -1.0, 2.0)
        phi = np.where(has_memory, np.maximum(phi + size * unit_gb * excess, 0.0), 0.0)
    mean_lam, mean_phi = sums[0] / max(kept, 1), sums[1] / max(kept, 1)
    mean = Duals(mean_lam, mean_phi, compute_dual_value(pools, demand, mean_lam, mean_phi))
    return Duals(best[1], best[2], best[0]), mean
