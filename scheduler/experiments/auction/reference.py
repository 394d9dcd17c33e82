"""Slow twins of the per-task search, written from the definition.

Nothing here is compiled, clever or shared with ``kernels``; tests hold the fast
search against these.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass
from fractions import Fraction
from itertools import product

from scheduler.auction.search.grid import TOLERANCE, Grid
from scheduler.types import LaborVendor, Task


@dataclass(frozen=True, slots=True)
class Candidate:
    """One cell that a task could use, with everything that makes its price."""

    slot: int
    node: int
    rate: float
    compute_price: float
    memory_price: float
    operational_cost: float


def candidates(
    grid: Grid, task: Task, *, begin: int, deadline: int, residual: bool
) -> list[list[Candidate]]:
    """List the cells a task may use, one list per slot from ``begin`` on."""
    lists: list[list[Candidate]] = []
    for slot in range(begin, deadline + 1):
        row = slot - grid.first_slot
        here: list[Candidate] = []
        for k, node in enumerate(grid.nodes):
            rate = task.rates.get(node.gpu_type, 0.0)
            free = float(grid.compute_free[row, k])
            left = float(grid.memory_free[row, k])
            if rate <= 0 or free == -math.inf:
                continue
            if residual and (
                free < rate - TOLERANCE * node.compute_capacity
                or left < task.memory_demand - TOLERANCE * abs(float(grid.memory_capacity[k]))
            ):
                continue
            cost = node.ask * rate / node.compute_capacity
            if task.operational_costs is not None and node.id in task.operational_costs:
                own = task.operational_costs[node.id]
                if slot - task.arrival_slot < len(own):
                    cost = own[slot - task.arrival_slot]
            here.append(
                Candidate(
                    slot=slot,
                    node=k,
                    rate=rate,
                    compute_price=float(grid.compute_price[row, k]),
                    memory_price=float(grid.memory_price[row, k]),
                    operational_cost=cost,
                )
            )
        lists.append(here)
    return lists


def cost_of(task: Task, cells: list[Candidate], *, additive: bool) -> float:
    """Give a schedule's price without its vendor, as the definition says it."""
    operational = math.fsum(c.operational_cost for c in cells)
    if additive:
        return operational + math.fsum(
            c.rate * c.compute_price + task.memory_demand * c.memory_price for c in cells
        )
    return (
        operational
        + max(c.compute_price for c in cells) * math.fsum(c.rate for c in cells)
        + max(c.memory_price for c in cells) * task.memory_demand * len(cells)
    )


def covers(task: Task, cells: list[Candidate]) -> bool:
    """Tell, in exact arithmetic, whether cells cover a task's work."""
    done = sum((Fraction(c.rate) for c in cells), Fraction(0))
    return bool(cells) and done >= Fraction(task.compute_demand)


def search_by_enumeration(
    grid: Grid, task: Task, *, begin: int, deadline: int, additive: bool, residual: bool
) -> float:
    """Try every schedule with every vendor; infinity when none covers the work."""
    best = math.inf
    for price, start in _starts(task, begin):
        lists = candidates(grid, task, begin=start, deadline=deadline, residual=residual)
        for choice in product(*([None, *here] for here in lists)):
            cells = [c for c in choice if c is not None]
            if covers(task, cells):
                best = min(best, price + cost_of(task, cells, additive=additive))
    return best


def search_by_caps(
    grid: Grid, task: Task, *, begin: int, deadline: int, additive: bool, residual: bool
) -> float:
    """Try every pair of price caps, with a plain dynamic program inside each.

    The best schedule's own largest prices are one of the pairs, and there the
    program charges exactly what the schedule costs; for no pair does it charge
    less than the truth.
    """
    best = math.inf
    for price, start in _starts(task, begin):
        lists = candidates(grid, task, begin=start, deadline=deadline, residual=residual)
        every = [c for here in lists for c in here]
        caps = product(
            sorted({c.compute_price for c in every}), sorted({c.memory_price for c in every})
        )
        for lam, phi in [(math.inf, math.inf)] if additive else caps:
            best = min(best, price + _cover(task, lists, lam=lam, phi=phi, additive=additive))
    return best


def _starts(task: Task, begin: int) -> Iterator[tuple[float, int]]:
    for vendor in task.vendors or (LaborVendor(id="", price=0.0, delay_slots=0),):
        yield vendor.price, max(begin, task.arrival_slot + vendor.delay_slots)


def _cover(
    task: Task, lists: list[list[Candidate]], *, lam: float, phi: float, additive: bool
) -> float:
    """Give the least cost of a cover within caps, work summed as fractions."""
    need = Fraction(task.compute_demand)
    table: dict[Fraction, float] = {Fraction(0): 0.0}
    best = math.inf
    for here in lists:
        grown = dict(table)
        for cell in here:
            if cell.compute_price > lam or cell.memory_price > phi:
                continue
            price = cell.operational_cost + (
                cell.rate * cell.compute_price + task.memory_demand * cell.memory_price
                if additive
                else cell.rate * lam + task.memory_demand * phi
            )
            for work, paid in table.items():
                total = paid + price
                reached = work + Fraction(cell.rate)
                if reached >= need:
                    best = min(best, total)
                elif total < grown.get(reached, math.inf):
                    grown[reached] = total
        table = grown
    return best
