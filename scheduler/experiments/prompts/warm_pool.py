"""Algorithm 1: GPUs of a warm pool for its pending jobs (section 4.4.1)."""

from __future__ import annotations

from collections.abc import Sequence

from scheduler.experiments.prompts.repairs import Repairs
from scheduler.prompts.jobs import TOLERANCE_S, Allocation, Course, TuningJob, run_s
from scheduler.prompts.planning import predict_course
from scheduler.prompts.rules import LaneRules


def order_pending(jobs: Sequence[TuningJob], now_s: float, repairs: Repairs) -> list[TuningJob]:
    """Line 4 of both algorithms: shortest T_slo first."""
    return sorted(jobs, key=lambda job: (_slo_s(job, now_s, repairs), job.submitted_s, job.id))


def allocate_warm(
    jobs: Sequence[TuningJob], idle: int, now_s: float, *, rules: LaneRules, repairs: Repairs
) -> tuple[Allocation, ...]:
    """Allocate idle GPUs to the pending jobs of one base model.

    Parameters
    ----------
    jobs : sequence of TuningJob
        P_l, in any order.
    idle : int
        R_l.
    now_s : float
        The moment of this round.
    rules : LaneRules
        Costs of gangs, share of the SLO for a lookup.
    repairs : Repairs
        Which errors of the text are repaired.

    Returns
    -------
    tuple of Allocation
        Jobs that got GPUs, in the order they were served. As printed, they may add up to
        one GPU more than there are for each of them.

    Notes
    -----
    Departures, each behind its repair: ``time_left`` (T_slo is what is left of it),
    ``pool_bound`` (at most R GPUs), ``late_jobs`` (a job that no gang could save gets one
    GPU if jobs that can be saved left any idle).
    """
    served: list[Allocation] = []
    late: list[TuningJob] = []
    for job in order_pending(jobs, now_s, repairs):
        if repairs.pool_bound and idle < 1:
            break
        slo_s = _slo_s(job, now_s, repairs)
        course = choose_printed_course(job, rules)
        gpus = 1
        most = min(idle, rules.max_gpus) - (1 if repairs.pool_bound else 0)
        while run_s(course, gpus, rules) > slo_s + TOLERANCE_S and gpus <= most:
            gpus += 1
        if run_s(course, gpus, rules) <= slo_s + TOLERANCE_S:
            served.append(Allocation(job, gpus, course))
            idle -= gpus
        elif run_s(course, rules.max_gpus, rules) > slo_s + TOLERANCE_S:
            late.append(job)
    if repairs.late_jobs:
        served.extend(
            Allocation(job, 1, choose_printed_course(job, rules)) for job in late[: max(0, idle)]
        )
    return tuple(served)


def choose_printed_course(job: TuningJob, rules: LaneRules) -> Course:
    """How a job runs under the paper's budget: on one GPU of its gang, if a fifth is enough."""
    looks_up = affords_lookup(job, compute_printed_budget_s(job, rules))
    return predict_course(job, looks_up, rules, shared=False)


def affords_lookup(job: TuningJob, budget_s: float) -> bool:
    """Whether one GPU ends the lookup within the budget; a job without a bank has none."""
    return 0.0 < job.lookup_gpu_s <= budget_s


def compute_printed_budget_s(job: TuningJob, rules: LaneRules) -> float:
    """The paper's budget: a share of the whole SLO, seconds."""
    return rules.lookup_share * job.slo_s


def _slo_s(job: TuningJob, now_s: float, repairs: Repairs) -> float:
    return job.due_s - now_s if repairs.time_left else job.slo_s
