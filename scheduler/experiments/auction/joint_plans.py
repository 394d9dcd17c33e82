"""The cheapest plans of several jobs at once, as an integer program for HiGHS."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence
from math import fsum, inf

import highspy

from scheduler.auction import Engine
from scheduler.experiments.auction.sparse_program import SparseProgram
from scheduler.types import Task

#: Share of a price by which sums of the search may lie below the program's.
_ROUNDING = 1e-9


def find_joint_optimum(
    engine: Engine, tasks: Sequence[Task], *, slot: int, known: float, time_limit_s: float = 5.0
) -> float:
    """Give the least that jobs can cost together at the prices there are.

    Parameters
    ----------
    engine : Engine
    tasks : sequence of Task
        Without vendors or costs of their own.
    slot : int
        First slot that they may use.
    known : float
        The price of plans that are known.
    time_limit_s : float
        Beyond it a bound from below is given, which puts known plans in no too good a light.
    """
    alone = [engine.quote(task, slot=slot).price for task in tasks]
    least = fsum(inf if price is None else price for price in alone)
    if known <= least * (1.0 + _ROUNDING):
        # Each as cheap as if the others were not.
        return known
    solver = highspy.Highs()
    solver.setOptionValue("output_flag", False)
    solver.setOptionValue("threads", 1)
    solver.setOptionValue("time_limit", time_limit_s)
    solver.passModel(_build_program(engine, tasks, slot).model(integer=True))
    solver.run()
    bound = -float(solver.getInfo().mip_dual_bound)
    return min(known, max(least, bound))


def _build_program(engine: Engine, tasks: Sequence[Task], slot: int) -> SparseProgram:
    """Choose cells for each job, one in a slot at most, within the room there is."""
    prices, nodes = engine.prices(), engine.nodes
    base = engine.rules.base_memory
    program = SparseProgram()
    by_cell: defaultdict[tuple[int, int], list[tuple[int, Task, float]]] = defaultdict(list)
    for task in tasks:
        work: list[tuple[int, float]] = []
        begin = max(slot, task.arrival_slot)
        for t in range(begin, min(task.deadline_slot, engine.horizon.last_slot) + 1):
            row = t - prices.first_slot
            picks: list[tuple[int, float]] = []
            for k, node in enumerate(nodes):
                rate = task.rates.get(node.gpu_type, 0.0)
                if rate <= 0.0 or not prices.on_sale[k, row]:
                    continue
                reserve, compute = prices.reserve_price[k, row], prices.compute_price[k, row]
                cost = rate * (reserve + compute)
                cost += task.memory_demand * prices.memory_price[k, row]
                column = program.column(-float(cost))
                picks.append((column, 1.0))
                work.append((column, rate))
                by_cell[k, row].append((column, task, rate))
            if picks:
                program.row(picks, 0.0, 1.0)
        program.row(work, task.compute_demand * (1.0 - _ROUNDING), inf)
    for (k, row), users in by_cell.items():
        node = nodes[k]
        room = node.compute_capacity * (1.0 - prices.compute_sold[k, row])
        memory = (node.memory_capacity - base) * (1.0 - prices.memory_sold[k, row])
        slack = 1.0 + _ROUNDING
        program.row([(column, rate) for column, _, rate in users], 0.0, float(room) * slack)
        program.row(
            [(column, task.memory_demand) for column, task, _ in users], 0.0, float(memory) * slack
        )
    return program
