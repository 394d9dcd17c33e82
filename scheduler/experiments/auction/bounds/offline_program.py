"""Problem (4) of the paper as a mixed-integer program for HiGHS."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import highspy
import numpy as np

from scheduler.auction.prices.capacity import Supply, check_costs
from scheduler.experiments.auction.sparse_program import SparseProgram
from scheduler.types import NO_VENDOR, LaborVendor, Task


@dataclass(frozen=True, slots=True)
class Solution:
    """What HiGHS found within its time."""

    #: Welfare of the schedules below.
    welfare: float
    #: Proven upper bound on the welfare of any choice.
    bound: float
    optimal: bool
    #: Vendor and (slot, place) cells of each task served, by task index.
    chosen: Mapping[int, tuple[int, tuple[tuple[int, int], ...]]]


def offline_optimum(
    tasks: Sequence[Task],
    supply: Supply,
    *,
    time_limit_s: float = 60.0,
    relative_gap: float = 0.0,
) -> Solution:
    """Solve (4) with all tasks known, or as far as time allows.

    Parameters
    ----------
    tasks : sequence of Task
    supply : Supply
        Places with room; pools instead of nodes give a relaxation.
    time_limit_s : float
    relative_gap : float
        Distance from the optimum at which to stop.

    Returns
    -------
    Solution
        With nothing chosen when HiGHS found no solution in time.
    """
    rows, cells, vendors = _rows(tasks, supply)
    solver = _solver(time_limit_s)
    solver.setOptionValue("mip_rel_gap", relative_gap)
    solver.passModel(rows.model(integer=True))
    solver.run()
    info = solver.getInfo()
    optimal = solver.getModelStatus() == highspy.HighsModelStatus.kOptimal
    bound = float(info.mip_dual_bound) if rows.cost else 0.0
    if int(info.primal_solution_status) != int(highspy.SolutionStatus.kSolutionStatusFeasible):
        return Solution(welfare=0.0, bound=bound, optimal=False, chosen={})
    x = np.array(solver.getSolution().col_value) > 0.5
    chosen: dict[int, tuple[int, tuple[tuple[int, int], ...]]] = {}
    for i in range(len(tasks)):
        used = tuple((t, k) for t, k, column in cells[i] if x[column])
        if used:
            vendor = next((n for n, column in vendors[i] if x[column]), NO_VENDOR)
            chosen[i] = (vendor, used)
    welfare = float(info.objective_function_value)
    return Solution(welfare=welfare, bound=max(bound, welfare), optimal=optimal, chosen=chosen)


def linear_bound(tasks: Sequence[Task], supply: Supply, *, time_limit_s: float = 600.0) -> float:
    """Give the optimum of (4) with every choice allowed in part.

    Raises
    ------
    RuntimeError
        If HiGHS does not finish in time.
    """
    rows, _, _ = _rows(tasks, supply)
    solver = _solver(time_limit_s)
    solver.passModel(rows.model(integer=False))
    solver.run()
    status = solver.getModelStatus()
    if status not in (highspy.HighsModelStatus.kOptimal, highspy.HighsModelStatus.kModelEmpty):
        raise RuntimeError(
            f"HiGHS stopped with {solver.modelStatusToString(status)}: "
            "allow more time or take fewer tasks"
        )
    return float(solver.getInfo().objective_function_value)


def _solver(time_limit_s: float) -> highspy.Highs:
    solver = highspy.Highs()
    solver.setOptionValue("output_flag", False)
    solver.setOptionValue("threads", 1)
    solver.setOptionValue("random_seed", 0)
    solver.setOptionValue("time_limit", time_limit_s)
    return solver


_Cells = list[list[tuple[int, int, int]]]
_Vendors = list[list[tuple[int, int]]]


def _rows(tasks: Sequence[Task], supply: Supply) -> tuple[SparseProgram, _Cells, _Vendors]:
    """Write (4a)-(4g); admission and cleaning also bind each cell, which is tighter."""
    check_costs(tasks)
    rows = SparseProgram()
    cells: _Cells = []
    vendors: _Vendors = []
    compute: dict[tuple[int, int], list[tuple[int, float]]] = {}
    memory: dict[tuple[int, int], list[tuple[int, float]]] = {}
    for task in tasks:
        admitted = rows.column(task.bid)
        offers = task.vendors or (LaborVendor(id="", price=0.0, delay_slots=0),)
        z = [rows.column(-offer.price) for offer in offers]
        rows.row([(admitted, -1.0), *((column, 1.0) for column in z)], 0.0, 0.0)
        vendors.append(list(enumerate(z)) if task.vendors else [])
        here: list[tuple[int, int, int]] = []
        work: list[tuple[int, float]] = [(admitted, -task.compute_demand)]
        begin = max(task.arrival_slot, supply.first_slot)
        for t in range(begin, min(task.deadline_slot, supply.last_slot) + 1):
            row = t - supply.first_slot
            ready = [
                column
                for column, offer in zip(z, offers, strict=True)
                if task.arrival_slot + offer.delay_slots <= t
            ]
            one: list[tuple[int, float]] = []
            for k, name in enumerate(supply.types):
                rate = task.rates.get(name, 0.0)
                if (
                    rate <= 0
                    or supply.compute[row, k] < rate * (1 - 1e-9)
                    or supply.memory[row, k] < task.memory_demand * (1 - 1e-9)
                    or not ready
                ):
                    continue
                column = rows.column(-float(supply.ask[k]) * rate)
                here.append((t, k, column))
                one.append((column, 1.0))
                work.append((column, rate))
                compute.setdefault((t, k), []).append((column, rate))
                memory.setdefault((t, k), []).append((column, task.memory_demand))
            if one:
                rows.row([*one, *((column, -1.0) for column in ready)], -np.inf, 0.0)
        rows.row(work, 0.0, np.inf)
        cells.append(here)
    for (t, k), terms in compute.items():
        rows.row(terms, -np.inf, float(supply.compute[t - supply.first_slot, k]) * (1 + 1e-9))
    for (t, k), terms in memory.items():
        rows.row(terms, -np.inf, float(supply.memory[t - supply.first_slot, k]) * (1 + 1e-9))
    return rows, cells, vendors
