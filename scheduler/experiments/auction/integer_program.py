"""Problem (12) of the paper as a mixed-integer program for HiGHS.

The products of a price and a choice are made linear with one more variable per
cell: z >= price - cap * (1 - x). An independent check of the search, and the
yardstick of its speed.
"""

from __future__ import annotations

import math

import highspy

from scheduler.auction.search.grid import Grid
from scheduler.experiments.auction.reference import candidates
from scheduler.types import Task


def solve_with_highs(
    grid: Grid,
    task: Task,
    *,
    begin: int,
    deadline: int,
    additive: bool,
    residual: bool,
    time_limit_s: float = 60.0,
) -> float:
    """Give the optimum of (12) over all vendors, infinity when infeasible.

    Raises
    ------
    RuntimeError
        If HiGHS does not prove optimality or infeasibility in time.
    """
    best = math.inf
    offers = [(v.price, task.arrival_slot + v.delay_slots) for v in task.vendors] or [(0.0, begin)]
    for price, ready in offers:
        value = _one_vendor(
            grid,
            task,
            begin=max(begin, ready),
            deadline=deadline,
            additive=additive,
            residual=residual,
            time_limit_s=time_limit_s,
        )
        best = min(best, price + value)
    return best


def _one_vendor(
    grid: Grid,
    task: Task,
    *,
    begin: int,
    deadline: int,
    additive: bool,
    residual: bool,
    time_limit_s: float,
) -> float:
    lists = candidates(grid, task, begin=begin, deadline=deadline, residual=residual)
    every = [c for here in lists for c in here]
    if not every:
        return math.inf
    model = highspy.Highs()
    model.setOptionValue("output_flag", False)
    model.setOptionValue("threads", 1)
    model.setOptionValue("mip_rel_gap", 0.0)
    model.setOptionValue("mip_abs_gap", 1e-9)
    model.setOptionValue("primal_feasibility_tolerance", 1e-9)
    model.setOptionValue("mip_feasibility_tolerance", 1e-9)
    model.setOptionValue("time_limit", time_limit_s)
    lam_cap = max(c.compute_price for c in every)
    phi_cap = max(c.memory_price for c in every)
    lam = model.addVariable(lb=0.0, ub=lam_cap)
    phi = model.addVariable(lb=0.0, ub=phi_cap)
    objective: list[highspy.highs.highs_linear_expression] = []
    work: list[highspy.highs.highs_linear_expression] = []
    for here in lists:
        picks: list[highspy.highs.highs_linear_expression] = []
        for cell in here:
            x = model.addBinary()
            picks.append(1.0 * x)
            work.append(cell.rate * x)
            if additive:
                price = (
                    cell.operational_cost
                    + cell.rate * cell.compute_price
                    + task.memory_demand * cell.memory_price
                )
                objective.append(price * x)
                continue
            objective.append(cell.operational_cost * x)
            model.addConstr(lam >= cell.compute_price * x)
            model.addConstr(phi >= cell.memory_price * x)
            z = model.addVariable(lb=0.0)
            y = model.addVariable(lb=0.0)
            model.addConstr(z - lam - lam_cap * x >= -lam_cap)
            model.addConstr(y - phi - phi_cap * x >= -phi_cap)
            objective.append(cell.rate * z)
            objective.append(task.memory_demand * y)
        if picks:
            model.addConstr(sum(picks[1:], start=picks[0]) <= 1.0)
    model.addConstr(sum(work[1:], start=work[0]) >= task.compute_demand)
    model.minimize(sum(objective[1:], start=objective[0]))
    status = model.getModelStatus()
    if status == highspy.HighsModelStatus.kInfeasible:
        return math.inf
    if status != highspy.HighsModelStatus.kOptimal:
        raise RuntimeError(f"HiGHS stopped with {model.modelStatusToString(status)}")
    return float(model.getObjectiveValue())
