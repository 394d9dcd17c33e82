"""Ymir's program (6)-(11) to the letter, to show what it does.

Nothing runs on it: read literally it has no solution, read kindly its optimum gives no
job a GPU. :mod:`~scheduler.experiments.merging.task_merger` has the repaired program.
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import permutations

import highspy
import numpy as np

from scheduler.experiments.merging.fairness import compute_fair_share
from scheduler.experiments.merging.instance import Assignment, Instance, Merge, Mode
from scheduler.experiments.merging.task_merger import compute_fair_times, transfer_weights

#: One choice: objective, unit, partner (-1 alone), mode, GPUs.
_Choice = tuple[float, int, int, Mode, int]


def merge_as_printed(instance: Instance, *, literal: bool, time_limit_s: float = 10.0) -> Merge:
    """Solve the program as it is printed.

    - (6), (7): a job on ``a`` GPUs adds ``T_fair / T_a``, its speed-up, to what is
      *minimised*; on none it adds 0.
    - (9): x of every job and y and z of every pair each sum to 1.
    - (10): x on some GPUs and all pairs of a job sum to at most 1.
    - (11): the GPUs of y are counted twice.

    Parameters
    ----------
    instance : Instance
        Pairs without an entry run on no number of GPUs; their sums are in (9) all the same.
    literal : bool
        Read ``y_{i,k}`` in (10) as its sum over all numbers of GPUs, none included.
        Otherwise over numbers above zero, as the same equation reads ``x``.
    time_limit_s : float
        For the solver.

    Returns
    -------
    Merge
        ``feasible`` is false when the program has no solution.
    """
    choices, groups = _choices(instance)
    solver = highspy.Highs()
    solver.setOptionValue("output_flag", False)
    solver.setOptionValue("threads", 1)
    solver.setOptionValue("time_limit", time_limit_s)
    solver.passModel(_model(instance, choices, groups, literal=literal))
    solver.run()
    status = solver.getModelStatus()
    info = solver.getInfo()
    if int(info.primal_solution_status) != int(highspy.SolutionStatus.kSolutionStatusFeasible):
        return Merge(
            assignments=(),
            waiting=tuple(range(len(instance.members))),
            objective=np.inf,
            bound=np.inf if status == highspy.HighsModelStatus.kInfeasible else -np.inf,
            optimal=False,
            feasible=False,
            columns=len(choices),
            pairs=len(instance.first),
        )
    picked = np.array(solver.getSolution().col_value) > 0.5
    taken = [
        choice for choice, chosen in zip(choices, picked, strict=True) if chosen and choice[4] > 0
    ]
    served = {unit for _, first, second, _, _ in taken for unit in (first, second)}
    return Merge(
        assignments=tuple(
            Assignment(unit, None if partner < 0 else partner, mode, gpus)
            for _, unit, partner, mode, gpus in taken
        ),
        waiting=tuple(i for i in range(len(instance.members)) if i not in served),
        objective=float(info.objective_function_value),
        bound=float(info.mip_dual_bound),
        optimal=status == highspy.HighsModelStatus.kOptimal,
        feasible=True,
        columns=len(choices),
        pairs=len(instance.first),
    )


def _choices(instance: Instance) -> tuple[list[_Choice], list[range]]:
    """All variables, and which of them make up each sum of (9)."""
    fair = compute_fair_times(instance)
    weights = transfer_weights(instance)
    share = 2 * compute_fair_share(instance.gpus, instance.jobs)
    choices: list[_Choice] = []
    groups: list[range] = []

    def add(unit: int, partner: int, mode: Mode, costs: Sequence[float]) -> None:
        begin = len(choices)
        choices.append((0.0, unit, partner, mode, 0))
        for gpus, cost in zip(instance.allocations.tolist(), costs, strict=True):
            if np.isfinite(cost):
                choices.append((cost, unit, partner, mode, gpus))
        groups.append(range(begin, len(choices)))

    for i in range(len(instance.members)):
        times = instance.times_s[i]
        add(i, -1, Mode.NORMAL, np.where(np.isfinite(times), fair[i] / times, np.inf).tolist())
    at = max(int(np.searchsorted(instance.allocations, share, side="right")) - 1, 0)
    known = {
        (int(first), int(second), bool(together)): p
        for p, (first, second, together) in enumerate(
            zip(instance.first, instance.second, instance.spatial, strict=True)
        )
    }
    for i, k in permutations(range(len(instance.members)), 2):
        for mode in (Mode.TEMPORAL, Mode.SPATIAL):
            p = known.get((i, k, mode is Mode.SPATIAL))
            costs = np.full(len(instance.allocations), np.inf)
            if p is not None:
                times = instance.pair_s[p]
                runs = np.isfinite(times) & (weights[p] > 0) & np.isfinite(times[at])
                costs[runs] = 2.0 * times[at] / times[runs] / weights[p][runs]
            add(i, k, mode, costs.tolist())
    return choices, groups


def _model(
    instance: Instance, choices: Sequence[_Choice], groups: Sequence[range], *, literal: bool
) -> highspy.HighsLp:
    """Rows: (9) for each group, (10) for each unit, (11)."""
    units = len(instance.members)
    capacity = len(groups) + units
    rows: list[list[tuple[int, float]]] = [[] for _ in range(capacity + 1)]
    for number, group in enumerate(groups):
        rows[number] = [(column, 1.0) for column in group]
    for column, (_, first, second, mode, gpus) in enumerate(choices):
        if gpus > 0 or (literal and second >= 0):
            for unit in (first, second):
                if unit >= 0:
                    rows[len(groups) + unit].append((column, 1.0))
        if gpus > 0:
            rows[capacity].append((column, gpus * (2.0 if mode is Mode.TEMPORAL else 1.0)))
    lp = highspy.HighsLp()
    lp.num_col_, lp.num_row_ = len(choices), len(rows)
    lp.col_cost_ = np.array([choice[0] for choice in choices])
    lp.col_lower_, lp.col_upper_ = np.zeros(len(choices)), np.ones(len(choices))
    ones = np.ones(len(groups))
    lp.row_lower_ = np.r_[ones, np.full(units + 1, -np.inf)]
    lp.row_upper_ = np.r_[ones, np.ones(units), float(instance.gpus)]
    lp.a_matrix_.format_ = highspy.MatrixFormat.kRowwise
    lp.a_matrix_.start_ = np.cumsum([0, *(len(row) for row in rows)]).astype(np.int32)
    lp.a_matrix_.index_ = np.array([column for row in rows for column, _ in row], np.int32)
    lp.a_matrix_.value_ = np.array([value for row in rows for _, value in row])
    lp.integrality_ = [highspy.HighsVarType.kInteger] * len(choices)
    return lp
