"""Tasks as arrays, for the compiled answer to prices."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from scheduler.auction.prices.capacity import check_costs
from scheduler.auction.prices.response_kernel import (
    CellUse,
    PoolPrices,
    TaskColumns,
    VendorColumns,
    respond,
)
from scheduler.auction.prices.type_pools import TypePools
from scheduler.auction.search.grid import Floats
from scheduler.types import LaborVendor, Task

_NO_OFFER = (LaborVendor(id="", price=0.0, delay_slots=0),)


@dataclass(frozen=True, slots=True)
class DemandResponse:
    """How tasks answer to prices."""

    #: Upper bound on the sum of what they gain.
    upper: float
    #: The same at the schedules found.
    surplus: float
    #: Samples and GB used, slots by pools.
    compute: Floats
    memory: Floats


class Demand:
    """Tasks with weights, laid out over pools of room.

    Parameters
    ----------
    tasks : sequence of Task
    pools : TypePools
    weights : float64[task], optional
        How many tasks each one stands for.
    """

    def __init__(
        self, tasks: Sequence[Task], pools: TypePools, weights: Floats | None = None
    ) -> None:
        check_costs(tasks)
        self._pools = pools
        first = pools.first_slot
        self._tasks = TaskColumns(
            begin=np.array([max(t.arrival_slot - first, 0) for t in tasks], np.int64),
            end=np.array([min(t.deadline_slot, pools.last_slot) - first for t in tasks], np.int64),
            work=np.array([t.compute_demand for t in tasks], np.float64),
            memory=np.array([t.memory_demand for t in tasks], np.float64),
            bid=np.array([max(t.bid, 0.0) for t in tasks], np.float64),
            weight=np.ones(len(tasks)) if weights is None else weights,
            rate=np.array(
                [[t.rates.get(name, 0.0) for name in pools.types] for t in tasks], np.float64
            ).reshape(len(tasks), len(pools.types)),
        )
        counts = [len(t.vendors or _NO_OFFER) for t in tasks]
        listed = [(t, offer) for t in tasks for offer in t.vendors or _NO_OFFER]
        self._vendors = VendorColumns(
            start=np.concatenate([[0], np.cumsum(counts)]).astype(np.int64),
            price=np.array([offer.price for _, offer in listed], np.float64),
            ready=np.array(
                [t.arrival_slot + offer.delay_slots - first for t, offer in listed], np.int64
            ),
            work_price=np.zeros(len(listed)),
        )

    def find_marginal_worth(self, room: float) -> float:
        """Give the worth of one sample where work reaches the room; 0 without tasks.

        Work is added up from the dearest a sample down, until it fills the room or is
        half of all work. So many bids worth little lie below it, and one worth much
        counts by its work.

        Parameters
        ----------
        room : float
            Samples on sale.
        """
        tasks = self._tasks
        able = tasks.work > 0
        if not np.any(able):
            return 0.0
        worth = tasks.bid[able] / tasks.work[able]
        order = np.argsort(-worth, kind="stable")
        reached = np.cumsum((tasks.weight * tasks.work)[able][order])
        wanted = min(room, 0.5 * float(reached[-1]))
        return float(worth[order][np.searchsorted(reached, wanted)])

    def samples_per_gb(self) -> float:
        """Give the samples that go with one GB of a middling task in a slot."""
        fastest, memory = self._tasks.rate.max(axis=1, initial=0.0), self._tasks.memory
        able = (memory > 0) & (fastest > 0)
        return float(np.median(fastest[able] / memory[able])) if np.any(able) else 0.0

    def answer(self, compute_price: Floats, memory_price: Floats) -> DemandResponse:
        """Let the tasks choose at prices given by slot and pool."""
        pools = self._pools
        use = CellUse(np.zeros_like(compute_price), np.zeros_like(compute_price))
        prices = PoolPrices(compute_price, memory_price, pools.ask, pools.compute)
        upper, surplus = respond(prices, self._tasks, self._vendors, use)
        return DemandResponse(upper=upper, surplus=surplus, compute=use.compute, memory=use.memory)
