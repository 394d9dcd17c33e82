"""The joint plan that keeps most promises, as an integer program for HiGHS.

Binary x says that a job uses a cell, binary y that a late job's promise is kept. For every job
and slot at most one x; the work of a job's cells is at least its need, times y for a late one;
in every cell, compute and memory are enough for all x. The number of kept promises is the
objective. The constraints are (4a) to (4g) of the auction's paper, without prices. Where it was
compared (``losses``), it kept no promise more than the live market's swaps; its bound says how many
could be kept.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, field

import highspy
import numpy as np

from scheduler.auction.engine.engine import Engine
from scheduler.auction.joint.least_laxity import JointPlan, build_plan
from scheduler.auction.search.grid import Ints
from scheduler.auction.search.room import Placement, PromisedJob, Room
from scheduler.experiments.auction.sparse_program import SparseProgram

#: Columns of a program that HiGHS has a chance at within seconds; further jobs stay as they are.
MOST_COLUMNS = 40_000


@dataclass(frozen=True, slots=True)
class ExactPlan:
    """What HiGHS found within its time."""

    plan: JointPlan
    #: Late jobs that any plan can put in time, at most; as many as there are if nothing is proven.
    bound: int


def plan_exactly(
    engine: Engine,
    *,
    lost: Sequence[PromisedJob],
    movable: Sequence[PromisedJob],
    slot: int,
    time_limit_s: float = 2.0,
) -> ExactPlan:
    """Keep as many promises of late jobs as can be, and all of those that may move.

    Parameters
    ----------
    engine : Engine
        Not changed.
    lost : sequence of PromisedJob
        Jobs without a plan in time.
    movable : sequence of PromisedJob
        Jobs whose cells may change; each is in time afterwards.
    slot : int
        First slot whose cells may change.
    time_limit_s : float
        Seconds that HiGHS may take.

    Returns
    -------
    ExactPlan
        A plan without moves when none was found in time.
    """
    room = engine.room(slot=slot)
    for job in lost:
        room.release(job)
    chosen = _choose_movable(room, lost, movable)
    for job in chosen:
        room.release(job)
    program = _Program(room)
    for job in lost:
        program.add_job(job, may_fail=True)
    for job in chosen:
        program.add_job(job, may_fail=False)
    program.add_capacity()
    values, bound = program.solve(time_limit_s)
    bound = min(bound, len(lost))
    if values is None:
        return ExactPlan(JointPlan((), kept=0), bound=bound)
    placed = {
        job.task_id: placement
        for job in (*lost, *chosen)
        if (placement := program.read_placement(job, values)) is not None
    }
    return ExactPlan(build_plan(room, placed, lost=lost, movable=chosen), bound=bound)


def _choose_movable(
    room: Room, lost: Sequence[PromisedJob], movable: Sequence[PromisedJob]
) -> list[PromisedJob]:
    """Take those with most slack, as many as the program has room for."""
    columns = sum(int((room.find_fitting(job) > 0).sum()) for job in lost)
    chosen: list[PromisedJob] = []
    for job in sorted(movable, key=lambda job: (-room.laxity(job), job.task_id)):
        room.release(job)
        columns += int((room.find_fitting(job) > 0).sum())
        room.hold(job)
        if columns > MOST_COLUMNS:
            break
        chosen.append(job)
    return chosen


@dataclass(slots=True)
class _JobColumns:
    """Columns of one job: one for each cell it could use."""

    rows: Ints
    columns: Ints
    first: int
    #: Column of its promise; ``None`` where it has to be kept.
    promise: int | None = None


@dataclass(slots=True)
class _Program:
    room: Room
    program: SparseProgram = field(default_factory=SparseProgram)
    jobs: dict[str, _JobColumns] = field(default_factory=dict[str, _JobColumns])
    #: By slot and node: columns that use the cell, with the compute and memory they take of it.
    cells: dict[tuple[int, int], list[tuple[int, float, float]]] = field(
        default_factory=dict[tuple[int, int], list[tuple[int, float, float]]]
    )

    def add_job(self, job: PromisedJob, *, may_fail: bool) -> None:
        """Add a job's cells, its slots and its work."""
        units = self.room.find_fitting(job)
        rows, columns = (found.astype(np.int64) for found in np.nonzero(units))
        first = len(self.program.cost)
        self.program.cost += [0.0] * len(rows)
        placed = _JobColumns(rows, columns, first)
        self.jobs[job.task_id] = placed
        if may_fail:
            placed.promise = len(self.program.cost)
            self.program.cost.append(1.0)
        rate = self.room.rates(job).node_rate[columns]
        for n, (row, k) in enumerate(zip(rows.tolist(), columns.tolist(), strict=True)):
            use = (first + n, float(rate[n]), job.memory_demand)
            self.cells.setdefault((row, k), []).append(use)
        for row in np.unique(rows).tolist():
            self.program.row(
                [(first + int(n), 1.0) for n in np.flatnonzero(rows == row)], -np.inf, 1.0
            )
        need = self.room.need(job)
        share = (units[rows, columns] / need).tolist()
        work = [(first + n, one) for n, one in enumerate(share)]
        if placed.promise is None:
            self.program.row(work, 1.0, np.inf)
        else:
            self.program.row([*work, (placed.promise, -1.0)], 0.0, np.inf)

    def add_capacity(self) -> None:
        """Limit what is used of each cell to what is free of it."""
        for (row, k), uses in self.cells.items():
            compute, memory = float(self.room.compute[row, k]), float(self.room.memory[row, k])
            if compute > 0:
                terms = [(column, rate / compute) for column, rate, _ in uses]
                self.program.row(terms, -np.inf, 1.0)
            if memory > 0:
                terms = [(column, demand / memory) for column, _, demand in uses]
                self.program.row(terms, -np.inf, 1.0)

    def solve(self, time_limit_s: float) -> tuple[list[float] | None, int]:
        """Give the values found, if any, and how many promises can be kept at most."""
        solver = highspy.Highs()
        solver.setOptionValue("output_flag", False)
        solver.setOptionValue("threads", 1)
        solver.setOptionValue("time_limit", time_limit_s)
        # Promises are whole: within less than one of the bound there is no better plan.
        solver.setOptionValue("mip_abs_gap", 0.99)
        solver.setOptionValue("mip_rel_gap", 0.0)
        solver.passModel(self.program.model(integer=True))
        solver.run()
        info = solver.getInfo()
        bound = info.mip_dual_bound
        most = math.floor(bound + 1e-6) if math.isfinite(bound) else len(self.jobs)
        if int(info.primal_solution_status) != int(highspy.SolutionStatus.kSolutionStatusFeasible):
            return None, most
        return list(solver.getSolution().col_value), most

    def read_placement(self, job: PromisedJob, values: Sequence[float]) -> Placement | None:
        """Give a job's cells, no more of them than it needs; ``None`` if it is not kept."""
        placed = self.jobs[job.task_id]
        if placed.promise is not None and values[placed.promise] < 0.5:
            return None
        used = np.array(values[placed.first : placed.first + len(placed.rows)]) > 0.5
        rows, columns = placed.rows[used], placed.columns[used]
        units = self.room.find_fitting(job)[rows, columns]
        end = int(np.searchsorted(np.cumsum(units), self.room.need(job))) + 1
        return Placement(rows=rows[:end], columns=columns[:end])
