"""The lane's round: one plan for warm, booting and cold GPUs, earliest deadline first.

Algorithms 1 and 2 of the paper decide apart: the first hands idle GPUs to whichever job can
use them, also those that the second counted on for an earlier deadline; the second buys a
whole new gang even where one more GPU beside the warm ones would do. Here every job in
order of its deadline takes its gang in one plan:

1. the gang that was promised to it, if that still ends in time;
2. otherwise the smallest gang of warm GPUs that ends in time, now or when they are free (the
   repaired DelaySchedulable; later jobs cannot take these GPUs);
3. otherwise the gang that needs the fewest new GPUs beside warm ones;
4. otherwise, past saving, one idle GPU that no promise counts on, or a new one where the
   base model has none at all: late jobs finish too.

Gangs whose GPUs are idle now start now.

Why promises hold. Take any plan that keeps them, and let its gangs, in the order of their
starts, take the GPUs that are free first: none starts later than in the plan, since at its start
only gangs before it are at work, and none of them for longer than planned. Jobs that end sooner
than predicted and new GPUs do not change that. A search for gangs at every round could not
promise it: a job that finds its GPUs sooner may take fewer and hold them for longer. A GPU that
comes free waits for the next round, which every taken GPU is charged.
"""

from __future__ import annotations

from bisect import bisect_right, insort_right
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from typing import NamedTuple

from scheduler.prompts.jobs import (
    TOLERANCE_S,
    Allocation,
    Course,
    TuningJob,
    find_fewest_gpus,
    order_by_deadline,
    run_s,
)
from scheduler.prompts.pools import WarmPool
from scheduler.prompts.rules import LaneRules


class Promise(NamedTuple):
    """What the plan holds for one job that can be saved."""

    job: TuningJob
    gpus: int
    course: Course
    start_s: float
    #: When it is predicted to end, at the latest.
    end_s: float


@dataclass(frozen=True, slots=True)
class Growth:
    """B_l: GPUs that one warm pool gets from the cold pool."""

    base_model: str
    gpus: int


@dataclass(frozen=True, slots=True)
class Round:
    """What one round decides."""

    #: Jobs that start now, on idle GPUs.
    starts: tuple[Allocation, ...]
    #: GPUs that leave the cold pool.
    growths: tuple[Growth, ...]
    #: Every job that is planned to end in time, in order of deadline.
    promises: tuple[Promise, ...]
    #: Idle GPUs by base model that no promise counts on.
    unclaimed: Mapping[str, int]


def choose_course(job: TuningJob, now_s: float, rules: LaneRules) -> Course:
    """How a job runs in the lane: the gang shares the lookup, whose budget is a share of the rest.

    With the paper's budget, a share of the whole SLO, the lookup of a job that has waited would
    take time that it no longer has.
    """
    # Written out for the hundreds of jobs of a round; no time left affords nothing.
    looks_up = 0.0 < job.lookup_gpu_s <= rules.lookup_share * (job.due_s - now_s)
    return predict_course(job, looks_up, rules, shared=True)


def predict_course(job: TuningJob, looks_up: bool, rules: LaneRules, *, shared: bool) -> Course:
    """Predict an upper bound of the job's run.

    Parameters
    ----------
    job : TuningJob
        Its work is the bound without a lookup.
    looks_up : bool
        Whether a lookup comes first and shortens the run by ``predicted_gain``.
    rules : LaneRules
        ``predicted_gain``.
    shared : bool
        Whether the gang shares the lookup (every GPU scores its part of the candidates).
        In the paper one GPU does it while the others wait.
    """
    if not looks_up:
        return Course(False, job.work_gpu_s, 0.0)
    tuning = job.work_gpu_s / rules.predicted_gain
    if shared:
        return Course(True, tuning + job.lookup_gpu_s, 0.0)
    return Course(True, tuning, job.lookup_gpu_s)


def plan_round(
    jobs: Sequence[TuningJob],
    pools: Mapping[str, WarmPool],
    cold: int,
    now_s: float,
    *,
    rules: LaneRules,
    held: Mapping[str, Promise] | None = None,
) -> Round:
    """Plan all pending jobs.

    Parameters
    ----------
    jobs : sequence of TuningJob
        Pending jobs of all base models, in any order.
    pools : mapping of str to WarmPool
        By base model; every job's base model must be there.
    cold : int
        GPUs in the cold pool.
    now_s : float
        The moment of this round.
    rules : LaneRules
        Costs of gangs, share of the SLO for a lookup, seconds between rounds.
    held : mapping of str to Promise, optional
        Promises given before, by job; without them every gang is chosen again.

    Returns
    -------
    Round
        Starts fit the idle GPUs, growths fit the cold pool.
    """
    return _plan(order_by_deadline(jobs), held or {}, pools, cold, now_s, rules)


def keep_promises(
    promises: Collection[Promise],
    pools: Mapping[str, WarmPool],
    cold: int,
    now_s: float,
    *,
    rules: LaneRules,
) -> Round:
    """Hold a round in which no job is new: every gang in the order of its planned start.

    Parameters
    ----------
    promises : collection of Promise
        Of one plan whose growths were carried out.
    pools, cold, now_s, rules
        As in :func:`plan_round`.

    Returns
    -------
    Round
        Its promises end no later than those given, unless GPUs were lost or a job has run
        for longer than predicted; then gangs are chosen again where they must be.
    """
    by_start = sorted(promises, key=lambda one: (one.start_s, one.job.due_s, one.job.id))
    held = {one.job.id: one for one in by_start}
    return _plan([one.job for one in by_start], held, pools, cold, now_s, rules)


def _plan(
    jobs: Sequence[TuningJob],
    held: Mapping[str, Promise],
    pools: Mapping[str, WarmPool],
    cold: int,
    now_s: float,
    rules: LaneRules,
) -> Round:
    free = {
        name: [at_s if at_s <= now_s else at_s + rules.round_s for at_s in pool.free_at_s]
        for name, pool in pools.items()
    }
    ready = {name: now_s + pool.boot_s + rules.round_s for name, pool in pools.items()}
    new: dict[str, int] = {}
    promises: list[Promise] = []
    late: list[TuningJob] = []
    for job in jobs:
        times = free[job.base_model]
        before = held.get(job.id)
        if before is not None and _can_keep(before, times, rules):
            promises.append(_take(job, before.gpus, before.course, times, now_s, rules))
            continue
        course = choose_course(job, now_s, rules)
        gpus = find_fewest_gpus(course, job.due_s, times, rules)
        if not gpus:
            ready_s = ready[job.base_model]
            added, gpus = find_fewest_new(course, job.due_s, times, cold, ready_s, rules)
            if not gpus:
                late.append(job)
                continue
            cold -= added
            new[job.base_model] = new.get(job.base_model, 0) + added
            _insert(times, ready_s, added)
        promises.append(_take(job, gpus, course, times, now_s, rules))
    starts = [Allocation(one.job, one.gpus, one.course) for one in promises if one.start_s <= now_s]
    for job in late:
        times = free[job.base_model]
        if times and times[0] <= now_s:
            taken = _take(job, 1, choose_course(job, now_s, rules), times, now_s, rules)
            starts.append(Allocation(job, 1, taken.course))
        elif not times and cold:
            cold -= 1
            new[job.base_model] = 1
            times.append(now_s + pools[job.base_model].boot_s)
    unclaimed = {name: bisect_right(times, now_s) for name, times in free.items()}
    growths = tuple(Growth(name, gpus) for name, gpus in new.items())
    return Round(tuple(starts), growths, tuple(promises), unclaimed)


def find_fewest_new(
    course: Course,
    until_s: float,
    free_at_s: Sequence[float],
    cold: int,
    ready_s: float,
    rules: LaneRules,
) -> tuple[int, int]:
    """Find the gang that ends in time with the fewest new GPUs.

    Parameters
    ----------
    course : Course
        How the job will run.
    until_s : float
        Its deadline.
    free_at_s : sequence of float
        When the warm GPUs are free, rising.
    cold : int
        GPUs that may be added.
    ready_s : float
        When an added GPU is ready.
    rules : LaneRules
        Costs and largest size of a gang.

    Returns
    -------
    added, gpus : int
        GPUs to add and size of the gang, the smaller gang among equals; zeros when no gang
        ends in time.
    """
    if not cold or ready_s + course.fixed_s > until_s + TOLERANCE_S:
        return 0, 0
    best, size = cold + 1, 0
    most = len(free_at_s) + cold
    most = rules.max_gpus if most > rules.max_gpus else most
    end_s = until_s + TOLERANCE_S
    if ready_s + run_s(course, most, rules) > end_s and ready_s + run_s(course, 1, rules) > end_s:
        return 0, 0
    for gpus in range(1, most + 1):
        latest_s = until_s - run_s(course, gpus, rules)
        if ready_s > latest_s + TOLERANCE_S:
            continue
        added = max(1, gpus - bisect_right(free_at_s, latest_s + TOLERANCE_S))
        if added < best:
            best, size = added, gpus
            if added == 1:
                break
    return (best, size) if size else (0, 0)


def _can_keep(held: Promise, free_at_s: Sequence[float], rules: LaneRules) -> bool:
    """Whether the GPUs of the gang promised before are there and still end the job in time."""
    if held.gpus > len(free_at_s):
        return False
    end_s = free_at_s[held.gpus - 1] + run_s(held.course, held.gpus, rules)
    return end_s <= held.job.due_s + TOLERANCE_S


def _take(
    job: TuningJob, gpus: int, course: Course, times: list[float], now_s: float, rules: LaneRules
) -> Promise:
    """Take the GPUs that are free first, until the round after the job's end."""
    start_s = times[gpus - 1]
    if start_s < now_s:
        start_s = now_s
    end_s = start_s + run_s(course, gpus, rules)
    if gpus == 1:
        del times[0]
        insort_right(times, end_s + rules.round_s)
    else:
        del times[:gpus]
        _insert(times, end_s + rules.round_s, gpus)
    return Promise(job, gpus, course, start_s, end_s)


def _insert(times: list[float], at_s: float, count: int) -> None:
    place = bisect_right(times, at_s)
    times[place:place] = [at_s] * count
