"""One zone's rules, policy, prices and cells, and the moves that change prices."""

from __future__ import annotations

from collections.abc import Iterable

import numpy as np

from scheduler.auction.engine.price_policies import (
    Admission,
    Policies,
    PricePolicy,
    PriceRise,
    make_policy,
)
from scheduler.auction.log.events import PricesSolved
from scheduler.auction.log.rules import FIXED_RULES, ZoneRules
from scheduler.auction.search.grid import Grid, TaskHolding
from scheduler.auction.search.task_search import Plan, Search
from scheduler.types import Cell, Horizon, Task

#: What an admission added to the compute and memory price of each of its cells.
Rises = tuple[tuple[float, float], ...]


class ZoneState:
    """What the decisions of a zone are made from; only the engine holds one."""

    def __init__(self, rules: ZoneRules, policies: Policies) -> None:
        self.rules = rules
        self._policies = policies
        self.policy: PricePolicy = make_policy(rules, policies)
        self.policy_state = self.policy.start()
        self.grid = Grid(
            horizon=Horizon(first_slot=rules.first_slot, slots=rules.horizon_slots),
            base_memory=rules.base_memory,
        )
        #: Price movements to use instead of the policy's, while following a log.
        self.followed: Rises | None = None

    def search(self, task: Task, slot: int) -> Search:
        """Lay a task out over the cells, as the policy has them searched."""
        return self.policy.search(grid=self.grid, task=task, from_slot=slot)

    # -- admissions ----------------------------------------------------------

    def observe(self, task: Task) -> None:
        """Let a bid that has just been decided take part in what prices are made of."""
        self.policy_state = self.policy.observe(self.policy_state, task)

    def take(self, task: Task, plan: Plan) -> Rises:
        """Move the prices of a plan's cells and reserve them; give the rises."""
        rises = self.raise_prices(task, plan)
        cells = plan.schedule.cells
        holding = TaskHolding(
            cells=cells,
            rates=tuple(plan.rate.tolist()),
            memories=(float(task.memory_demand),) * len(cells),
            compute_rises=tuple(compute for compute, _ in rises),
            memory_rises=tuple(memory for _, memory in rises),
        )
        self.grid.reserve(task.id, holding, rows=plan.rows, columns=plan.columns, rate=plan.rate)
        return rises

    def raise_prices(self, task: Task, plan: Plan) -> Rises:
        """Move the prices of a plan's cells; give the rises."""
        grid, rows, columns = self.grid, plan.rows, plan.columns
        admission = Admission(
            task=task,
            value=task.bid - plan.parts.vendor - plan.parts.operational,
            rate=plan.rate,
            compute_capacity=grid.compute_capacity[columns],
            memory_capacity=grid.memory_capacity[columns],
            compute_price=plan.compute_price,
            memory_price=plan.memory_price,
        )
        rise = self._find_rise(admission)
        compute_share = plan.rate / admission.compute_capacity
        memory_share = task.memory_demand / admission.memory_capacity
        # In this order a rise that undoes the growth leaves the price as it was to the
        # last bit, and nodes that cost the same go on doing so.
        grid.compute_price[rows, columns] = plan.compute_price + (
            plan.compute_price * compute_share + rise.compute_rise
        )
        grid.memory_price[rows, columns] = plan.memory_price + (
            plan.memory_price * memory_share + rise.memory_rise
        )
        return tuple(zip(rise.compute_rise.tolist(), rise.memory_rise.tolist(), strict=True))

    def _find_rise(self, admission: Admission) -> PriceRise:
        if self.followed is None:
            return self.policy.raise_prices(self.policy_state, admission)
        table = np.zeros((len(admission.rate), 2))
        # A log of another length is not this engine's, as its comparison says.
        given = self.followed[: len(table)]
        table[: len(given)] = np.array(given, np.float64).reshape(-1, 2)
        return PriceRise(compute_rise=table[:, 0], memory_rise=table[:, 1])

    # -- releases ------------------------------------------------------------

    def release(self, task_id: str, cells: Iterable[Cell]) -> tuple[Cell, ...]:
        """Put cells back on sale and take back what their admission added.

        An empty cell costs what an unsold one does; elsewhere the price steps
        back by the released admission's own rise.
        """
        grid = self.grid
        gone = grid.release(task_id, cells)
        for hold in gone:
            k, row = grid.column[hold.cell.node], grid.row(hold.cell.slot)
            empty = bool(grid.load[row, k] == 0)
            for price, rise, used, capacity in (
                (grid.compute_price, hold.compute_rise, hold.rate, grid.compute_capacity[k]),
                (grid.memory_price, hold.memory_rise, hold.memory, grid.memory_capacity[k]),
            ):
                price[row, k] = self.policy.lower_price(
                    price=float(price[row, k]),
                    rise=rise,
                    # A node may have been changed to have nothing at all.
                    share=used / float(capacity) if capacity > 0 else 0.0,
                    empty=empty,
                )
        return tuple(hold.cell for hold in gone)

    # -- rules and solved prices -----------------------------------------------

    def change_rules(self, rules: ZoneRules) -> None:
        """Go on under other rules.

        Raises
        ------
        ValueError
            If something differs that the cells on sale were made by.
        """
        for name in FIXED_RULES:
            if getattr(rules, name) != getattr(self.rules, name):
                raise ValueError(f"{name} cannot change: the log began with it")
        before, policy = self.policy, make_policy(rules, self._policies)
        start = policy.start()
        known = {name: value for name, value in self.policy_state.items() if name in start}
        self.rules, self.policy, self.policy_state = rules, policy, {**start, **known}
        if before.prices_empty_cells and not policy.prices_empty_cells:
            # Solved prices are the forecast's; this policy gives empty cells none.
            empty = self.grid.load == 0
            self.grid.compute_price[empty] = 0.0
            self.grid.memory_price[empty] = 0.0

    def set_prices(self, event: PricesSolved) -> None:
        """Take solved prices for the slots and nodes that are on sale."""
        grid = self.grid
        grid.pack_by(event.usual_rates)
        grid.own_asks = event.own_asks
        for target, given in (
            (grid.compute_price, event.compute_price),
            (grid.memory_price, event.memory_price),
        ):
            for node_id, row in given.items():
                k = grid.column.get(node_id)
                if k is None:
                    continue
                for i, price in enumerate(row):
                    slot = event.first_slot + i
                    if slot in grid.horizon:
                        target[grid.row(slot), k] = max(price, 0.0)
