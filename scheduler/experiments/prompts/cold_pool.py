"""Algorithm 2: GPUs from the cold pool for the warm pools (section 4.4.2)."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from scheduler.experiments.prompts.delaying import delay_schedulable, delay_schedulable_printed
from scheduler.experiments.prompts.repairs import Repairs
from scheduler.experiments.prompts.warm_pool import choose_printed_course, order_pending
from scheduler.prompts.jobs import TOLERANCE_S, Course, TuningJob, run_s
from scheduler.prompts.planning import Growth
from scheduler.prompts.pools import WarmPool
from scheduler.prompts.rules import LaneRules


def grow_pools(
    jobs: Sequence[TuningJob],
    pools: Mapping[str, WarmPool],
    cold: int,
    now_s: float,
    *,
    rules: LaneRules,
    repairs: Repairs,
    delays: bool = True,
) -> tuple[Growth, ...]:
    """Decide how many GPUs each warm pool gets from the cold pool.

    Parameters
    ----------
    jobs : sequence of TuningJob
        P, the pending jobs of all base models, in any order.
    pools : mapping of str to WarmPool
        E, by base model; every job's base model must be there.
    cold : int
        GPUs in the cold pool.
    now_s : float
        The moment of this round.
    rules : LaneRules
        Costs of gangs, share of the SLO for a lookup.
    repairs : Repairs
        Which errors of the text are repaired.
    delays : bool
        ``False`` leaves DelaySchedulable out, which table 8 of the paper measures.

    Returns
    -------
    tuple of Growth
        Pools that get any, in order of the first job that needs them; together at most
        ``cold``.

    Notes
    -----
    Departures, each behind its repair: ``time_left`` and ``delay`` as in
    :mod:`~scheduler.experiments.prompts.warm_pool` and
    :mod:`~scheduler.experiments.prompts.delaying`, and ``growth`` (line 12). As printed, line
    12 never ends when T_slo < T_cold; no GPUs are given then, since line 15 could not hold for
    any number of them. The text lets A grow without regard to the cold pool; in every variant
    a pool gets what the cold pool has or nothing.
    """
    free_at_s = {name: pool.free_at_s for name, pool in pools.items()}
    grown: dict[str, int] = {}
    for job in order_pending(jobs, now_s, repairs):
        pool = pools[job.base_model]
        course = choose_printed_course(job, rules)
        slo_s = job.due_s - now_s if repairs.time_left else job.slo_s
        if delays:
            delayed = _delay(free_at_s[pool.base_model], course, slo_s, now_s, rules, repairs)
            if delayed is not None:
                free_at_s[pool.base_model] = delayed
                continue
        gpus = _count_new(course, slo_s, pool.boot_s, cold, rules, repairs)
        if not gpus:
            continue
        cold -= gpus
        grown[pool.base_model] = grown.get(pool.base_model, 0) + gpus
        # Line 19 pushes a length where E holds timestamps.
        end_s = (now_s if repairs.delay else 0.0) + pool.boot_s + run_s(course, gpus, rules)
        free_at_s[pool.base_model] = tuple(sorted((*free_at_s[pool.base_model], *([end_s] * gpus))))
    return tuple(Growth(name, gpus) for name, gpus in grown.items())


def _delay(
    free_at_s: tuple[float, ...],
    course: Course,
    slo_s: float,
    now_s: float,
    rules: LaneRules,
    repairs: Repairs,
) -> tuple[float, ...] | None:
    if not repairs.delay:
        return delay_schedulable_printed(free_at_s, course, slo_s, now_s, rules)
    found = delay_schedulable(free_at_s, course, now_s + slo_s, rules)
    return None if found is None else found[0]


def _count_new(
    course: Course, slo_s: float, boot_s: float, cold: int, rules: LaneRules, repairs: Repairs
) -> int:
    """Lines 10-15: the size of a gang of new GPUs that ends in time, or 0."""
    gpus, most = 1, min(cold, rules.max_gpus)
    if repairs.growth and slo_s > boot_s:
        while run_s(course, gpus, rules) + boot_s > slo_s + TOLERANCE_S and gpus < most:
            gpus += 1
    fits = run_s(course, gpus, rules) + boot_s <= slo_s + TOLERANCE_S
    return gpus if fits and gpus <= most else 0
