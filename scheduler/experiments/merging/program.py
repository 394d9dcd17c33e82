"""A choice for each unit, within the GPUs, at the least cost: an integer program for HiGHS."""

from __future__ import annotations

from dataclasses import dataclass

import highspy
import numpy as np
from numpy.typing import NDArray

Floats = NDArray[np.float64]
Ints = NDArray[np.int64]
Bools = NDArray[np.bool_]

#: Why HiGHS may stop before it has proved its answer.
LIMITS = (highspy.HighsModelStatus.kTimeLimit, highspy.HighsModelStatus.kSolutionLimit)
#: Halvings of the search for the price of a GPU.
PRICE_STEPS = 40


@dataclass(frozen=True, slots=True)
class Columns:
    """Binary variables: what may be chosen, for one unit or for two at once."""

    #: Objective, ``[C]``.
    cost: Floats
    #: GPUs taken in the capacity row, ``[C]``.
    gpus: Ints
    #: Units that the choice serves; ``second`` is -1 for one unit, ``[C]``.
    first: Ints
    second: Ints

    def __len__(self) -> int:
        return len(self.cost)


@dataclass(frozen=True, slots=True)
class ColumnChoice:
    """What the solver found."""

    #: Whether each column is chosen, ``[C]``.
    picked: Bools
    objective: float
    #: Proven lower bound.
    bound: float
    optimal: bool


def choose_columns(
    columns: Columns,
    *,
    units: int,
    gpus: int,
    time_limit_s: float,
    gap: float,
    node_limit: int | None = None,
) -> ColumnChoice:
    """Choose columns so that each unit is served once and the GPUs suffice.

    ``min cost u`` subject to one row per unit, ``sum of its columns = 1``, and
    ``sum of gpus u <= R``. The relaxation is nearly whole: where it is rounded within the
    gap that is the answer, otherwise the search starts from there.

    Parameters
    ----------
    columns : Columns
        Each unit has a column of its own that takes no GPUs (it waits).
    units, gpus : int
        Rows, and the right side of the last one.
    time_limit_s : float
        Wall-clock seconds for the solver.
    gap : float
        Relative distance from the bound at which to stop.
    node_limit : int, optional
        Nodes of the search tree; unlike time the same on every machine.

    Returns
    -------
    Chosen
        ``optimal`` is false when time or nodes ran out first.

    Raises
    ------
    RuntimeError
        When HiGHS stops for another reason than optimality or a limit.
    """
    if len(columns) == units:
        # Nothing but waiting is possible.
        cost = float(columns.cost.sum())
        return ColumnChoice(np.ones(units, np.bool_), cost, cost, optimal=True)
    start = choose_by_price(columns, units=units, gpus=gpus)
    model = _model(columns, units=units, gpus=gpus)
    relaxed = _solver(time_limit_s, gap)
    relaxed.setOptionValue("presolve", "off")
    relaxed.passModel(model)
    relaxed.run()
    bound = -np.inf
    if relaxed.getModelStatus() == highspy.HighsModelStatus.kOptimal:
        bound = float(relaxed.getInfo().objective_function_value)
        x = np.array(relaxed.getSolution().col_value)
        start = _cheaper(columns, start, _round(columns, x, units=units, gpus=gpus))
    objective = float(columns.cost[start].sum())
    if objective - bound <= gap * abs(objective) + 1e-9:
        return ColumnChoice(start, objective, min(bound, objective), optimal=True)
    return _search(
        columns,
        model,
        _solver(max(time_limit_s - relaxed.getRunTime(), 0.0), gap, node_limit),
        start,
        bound,
    )


def choose_by_price(columns: Columns, *, units: int, gpus: int) -> Bools:
    """A good choice without pairs: one price for a GPU, each unit for itself.

    At a price p each unit takes its column with the least ``cost + p gpus``. The lowest
    price at which the GPUs suffice is found by bisection, and what is left over goes to
    the units for which it saves the most per GPU.
    """
    alone = np.flatnonzero(columns.second < 0)
    order = alone[np.lexsort((columns.gpus[alone], columns.first[alone]))]
    owner, cost, need = columns.first[order], columns.cost[order], columns.gpus[order]
    starts = np.searchsorted(owner, np.arange(units))
    place = np.arange(len(order))

    def cheapest(price: float) -> Ints:
        charged = cost + price * need
        least = np.minimum.reduceat(charged, starts)
        return np.minimum.reduceat(np.where(charged == least[owner], place, len(order)), starts)

    low, high = 0.0, float(np.ptp(cost)) + 1.0
    taken = cheapest(low)
    if need[taken].sum() > gpus:
        for _ in range(PRICE_STEPS):
            middle = (low + high) / 2.0
            if need[cheapest(middle)].sum() > gpus:
                low = middle
            else:
                high = middle
        taken = cheapest(high)
    _spend_rest(taken, cost, need, owner, gpus)
    picked = np.zeros(len(columns), np.bool_)
    picked[order[taken]] = True
    return picked


def _spend_rest(taken: Ints, cost: Floats, need: Ints, owner: Ints, gpus: int) -> None:
    """Exchange columns, the best saving per GPU first, while GPUs are left."""
    left = gpus - int(need[taken].sum())
    while left > 0:
        more = need - need[taken][owner]
        fits = (more > 0) & (more <= left)
        saving = np.where(fits, (cost[taken][owner] - cost) / np.maximum(more, 1), 0.0)
        column = int(np.argmax(saving))
        if saving[column] <= 0:
            return
        left -= int(more[column])
        taken[owner[column]] = column


def _search(
    columns: Columns, model: highspy.HighsLp, solver: highspy.Highs, start: Bools, bound: float
) -> ColumnChoice:
    """Branch and bound from a start."""
    model.integrality_ = [highspy.HighsVarType.kInteger] * len(columns)
    solver.passModel(model)
    known = highspy.HighsSolution()
    known.col_value = start.astype(np.float64).tolist()
    solver.setSolution(known)
    solver.run()
    status = solver.getModelStatus()
    optimal = status == highspy.HighsModelStatus.kOptimal
    if not optimal and status not in LIMITS:
        raise RuntimeError(f"HiGHS stopped with {solver.modelStatusToString(status)}")
    info = solver.getInfo()
    picked = start
    if int(info.primal_solution_status) == int(highspy.SolutionStatus.kSolutionStatusFeasible):
        picked = _cheaper(columns, start, np.array(solver.getSolution().col_value) > 0.5)
    objective = float(columns.cost[picked].sum())
    bound = max(bound, float(info.mip_dual_bound))
    return ColumnChoice(picked, objective, min(bound, objective), optimal)


def _cheaper(columns: Columns, one: Bools, other: Bools) -> Bools:
    return one if columns.cost[one].sum() <= columns.cost[other].sum() else other


def _round(columns: Columns, x: Floats, *, units: int, gpus: int) -> Bools:
    """Keep what the relaxation chose wholly; the other units share what is left by price."""
    picked = x > 1.0 - 1e-6
    served = np.zeros(units, np.bool_)
    served[columns.first[picked]] = True
    served[columns.second[picked & (columns.second >= 0)]] = True
    place = np.cumsum(~served) - 1
    rest = np.flatnonzero((columns.second < 0) & ~served[columns.first])
    if len(rest):
        part = Columns(
            cost=columns.cost[rest],
            gpus=columns.gpus[rest],
            first=place[columns.first[rest]],
            second=columns.second[rest],
        )
        left = gpus - int(columns.gpus[picked].sum())
        picked[rest[choose_by_price(part, units=int((~served).sum()), gpus=left)]] = True
    return picked


def _solver(time_limit_s: float, gap: float, node_limit: int | None = None) -> highspy.Highs:
    solver = highspy.Highs()
    options: dict[str, bool | int | float] = {
        "output_flag": False,
        "threads": 1,
        "random_seed": 0,
        "mip_rel_gap": gap,
        "time_limit": time_limit_s,
        # The start is as good as what they find, in a third of the time.
        "mip_heuristic_effort": 0.0,
        "mip_heuristic_run_feasibility_jump": False,
        "mip_heuristic_run_rins": False,
        "mip_heuristic_run_rens": False,
        "mip_heuristic_run_root_reduced_cost": False,
        "mip_detect_symmetry": False,
        "mip_allow_restart": False,
    }
    if node_limit is not None:
        options["mip_max_nodes"] = node_limit
    for name, value in options.items():
        solver.setOptionValue(name, value)
    return solver


def _model(columns: Columns, *, units: int, gpus: int) -> highspy.HighsLp:
    """The relaxation, column by column: its unit, its second unit, its GPUs."""
    entries = 1 + (columns.second >= 0) + (columns.gpus > 0)
    start = np.r_[0, np.cumsum(entries)]
    index = np.empty(start[-1], np.int32)
    value = np.ones(start[-1])
    at = start[:-1]
    index[at] = columns.first
    pair = columns.second >= 0
    index[at[pair] + 1] = columns.second[pair]
    taking = columns.gpus > 0
    last = start[1:][taking] - 1
    index[last] = units
    value[last] = columns.gpus[taking]
    lp = highspy.HighsLp()
    lp.num_col_ = len(columns)
    lp.num_row_ = units + 1
    lp.col_cost_ = columns.cost
    lp.col_lower_ = np.zeros(len(columns))
    lp.col_upper_ = np.ones(len(columns))
    lp.row_lower_ = np.r_[np.ones(units), -np.inf]
    lp.row_upper_ = np.r_[np.ones(units), float(gpus)]
    lp.a_matrix_.format_ = highspy.MatrixFormat.kColwise
    lp.a_matrix_.start_ = start.astype(np.int32)
    lp.a_matrix_.index_ = index
    lp.a_matrix_.value_ = value
    return lp
