"""The paper's mechanism as printed, on the live engine's state."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace

from scheduler.auction.engine.decide import DeadlineHint, admit, refuse
from scheduler.auction.engine.engine import Engine
from scheduler.auction.engine.payment import make_payment_rule
from scheduler.auction.log.rules import ZoneRules
from scheduler.auction.search.grid import TOLERANCE, Grid
from scheduler.experiments.auction.max_form.policies import COMPARED_POLICIES
from scheduler.experiments.auction.max_form.search import PrintedSearch
from scheduler.types import Cell, Decision, Refusal, Task


class PrintedEngine(Engine):
    """Algorithm 1: prices rise before the room is checked, then a full cell refuses."""

    def _decide(self, task: Task, slot: int, hint: DeadlineHint | None) -> Decision:
        zone = self._zone
        search = PrintedSearch(grid=zone.grid, task=task, from_slot=slot)
        plan = search.find_plan(task.deadline_slot)
        if plan is None:
            return refuse(zone, task, search.find_refusal())
        parts = make_payment_rule(zone.rules, task).parts(plan.parts)
        if not task.bid > parts.total:
            return refuse(zone, task, Refusal.PRICE, plan=plan, parts=parts)
        if _fits(zone.grid, plan.schedule.cells, task):
            return admit(zone, task, plan, parts)
        refused = refuse(zone, task, Refusal.CAPACITY, plan=plan, parts=parts)
        return replace(refused, raised=zone.raise_prices(task, plan))


def _fits(grid: Grid, cells: Iterable[Cell], task: Task) -> bool:
    """Tell whether every cell has room for the task."""
    for cell in cells:
        k, row = grid.column[cell.node], grid.row(cell.slot)
        need = task.rates[grid.nodes[k].gpu_type] - TOLERANCE * grid.compute_capacity[k]
        if grid.compute_free[row, k] < need:
            return False
        least = task.memory_demand - TOLERANCE * abs(grid.memory_capacity[k])
        if grid.memory_free[row, k] < least:
            return False
    return True


def make_engine(rules: ZoneRules) -> Engine:
    """Give an engine of any policy, live or of the max form."""
    kind = PrintedEngine if rules.policy == "printed" else Engine
    return kind(rules, policies=COMPARED_POLICIES)


def pay_eq14(decision: Decision) -> Decision:
    """Give a decision with the payment (14), which leaves out the operational cost.

    For showing that it is not truthful.
    """
    if not decision.admitted or decision.parts is None:
        return decision
    parts = decision.parts
    return replace(decision, payment=parts.vendor + parts.compute + parts.memory)
