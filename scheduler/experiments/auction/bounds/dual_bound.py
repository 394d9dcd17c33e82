"""The Lagrangian bound: no choice of schedules has more welfare than this."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from scheduler.auction.prices.capacity import Supply
from scheduler.auction.prices.demand_response import Demand
from scheduler.auction.prices.descent import Duals, descend
from scheduler.auction.prices.type_pools import TypePools, pool_by_type
from scheduler.auction.search.grid import Floats, Grid
from scheduler.auction.search.task_search import Search
from scheduler.types import Horizon, NodeSpec, Task


@dataclass(frozen=True, slots=True)
class LagrangianBound:
    """A bound with the prices that prove it."""

    value: float
    #: By slot and type of ``pool_by_type``.
    compute_price: Floats
    memory_price: Floats


def lagrangian_bound(
    tasks: Sequence[Task], supply: Supply, *, iterations: int = 150, exact: bool = True
) -> LagrangianBound:
    """Bound the welfare of (4) by its dual with additive prices (6).

    Weak duality: for any prices, no feasible choice is worth more than all room
    at those prices plus what each task gains at them on its own. The descent only
    looks for prices that make this small. Nodes of one type share a price of a
    sample, asks included, which leaves the bound valid and loses nothing.

    Parameters
    ----------
    tasks : sequence of Task
        All of them, as if known beforehand.
    supply : Supply
    iterations : int
    exact : bool
        Solve each task's own problem exactly at the prices found, which lowers
        the bound a little; else bound it by the price of its work.
    """
    pools, _ = pool_by_type(supply)
    demand = Demand(tasks, pools)
    best, mean = descend(pools, demand, iterations=iterations)
    duals = best if best.value <= mean.value else mean
    value = duals.value
    if exact:
        value = min(value, _exact_value(tasks, pools, duals))
    return LagrangianBound(value, duals.compute_price, duals.memory_price)


def _exact_value(tasks: Sequence[Task], pools: TypePools, duals: Duals) -> float:
    """Give (6) with every task's cheapest schedule found exactly."""
    worth = pools.value_room(duals.compute_price, duals.memory_price)
    grid = Grid(horizon=Horizon(first_slot=pools.first_slot, slots=pools.slots), base_memory=0.0)
    for g, name in enumerate(pools.types):
        capacity = float(pools.compute[:, g].max(initial=0.0)) or 1.0
        grid.add_node(
            NodeSpec(
                id=str(g),
                gpu_type=f"{name}/{g}",
                compute_capacity=capacity,
                memory_capacity=max(float(pools.memory[:, g].max(initial=0.0)), 1e-9),
                ask=float(pools.ask[g]) * capacity,
            )
        )
    grid.compute_price[:] = duals.compute_price
    grid.memory_price[:] = duals.memory_price
    grid.compute_free[:] = pools.compute
    grid.memory_free[:] = pools.memory
    gains = 0.0
    for task in tasks:
        here = Task(
            id=task.id,
            arrival_slot=task.arrival_slot,
            deadline_slot=task.deadline_slot,
            compute_demand=task.compute_demand,
            memory_demand=task.memory_demand,
            bid=task.bid,
            rates={
                f"{name}/{g}": task.rates[name]
                for g, name in enumerate(pools.types)
                if name in task.rates
            },
            vendors=task.vendors,
        )
        search = Search(grid=grid, task=here, from_slot=pools.first_slot)
        plan = search.find_plan(task.deadline_slot)
        if plan is not None:
            gains += max(task.bid - plan.price, 0.0)
    return worth + gains
