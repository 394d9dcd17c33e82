"""One run of the prompt-tuning simulator: jobs and a policy in, an outcome out."""

from __future__ import annotations

import math
from collections.abc import Sequence

from scheduler.experiments.prompts.cluster import PooledCluster
from scheduler.experiments.prompts.elasticflow import run_elasticflow
from scheduler.experiments.prompts.lanes import TuningLane
from scheduler.experiments.prompts.outcome import TuningOutcome, summarize
from scheduler.experiments.prompts.policies import ELASTICFLOW, make_lane
from scheduler.experiments.prompts.workload import MODELS, DrawnJob, WorkloadRules, draw_jobs
from scheduler.prompts.rules import LaneRules

#: The paper's cluster.
GPUS = 32
#: A round at least this often while jobs wait: what can be saved changes with time alone.
RETRY_S = 1.0


def simulate(
    *,
    policy: str,
    load: str,
    seed: int,
    slo: float = 1.0,
    gpus: int = GPUS,
    workload: WorkloadRules | None = None,
) -> TuningOutcome:
    """Run one policy on one drawn trace.

    Parameters
    ----------
    policy : str
        A name of :data:`~scheduler.experiments.prompts.policies.POLICIES`.
    load : str
        A name of :data:`~scheduler.experiments.prompts.workload.LOADS`.
    seed : int
        Draws the jobs; all policies under one seed meet the same.
    slo : float
        S.
    gpus : int
        Size of the cluster, cold pool included.
    workload : WorkloadRules, optional
        What differs from the defaults.

    Raises
    ------
    ValueError
        For an unknown policy or load, an S not above zero, or a cluster without GPUs or too
        small for the policy's floors.
    """
    if gpus < 1:
        raise ValueError(f"a cluster needs at least one GPU, got {gpus}")
    drawn = draw_jobs(load=load, slo=slo, seed=seed, rules=workload)
    if policy == ELASTICFLOW:
        return run_elasticflow(
            drawn, load=load, slo=slo, seed=seed, gpus=gpus, rules=LaneRules(max_gpus=gpus)
        )
    lane = make_lane(policy, seed)
    if lane.least_floor * len(MODELS) > gpus:
        raise ValueError(
            f"{gpus} GPUs are too few for a floor of {lane.least_floor} under each of "
            f"{len(MODELS)} base models"
        )
    cluster = run_lane(lane, drawn, gpus)
    jobs = [one.job for one in drawn]
    return summarize(
        jobs,
        cluster.ended_s,
        policy=policy,
        load=load,
        slo=slo,
        seed=seed,
        gpu_s={"busy": cluster.busy_s, "idle": cluster.idle_s, "boot": cluster.boot_s},
        lookups_s=list(cluster.lookups_s.values()),
        end_s=cluster.now_s,
        certified_due_s=lane.certified_due_s,
        refused=lane.refused,
    )


def run_lane(lane: TuningLane, drawn: Sequence[DrawnJob], gpus: int) -> PooledCluster:
    """Run a lane from before the first arrival to the end of the last job.

    Rounds come at multiples of ``lane.rules.round_s``, where something has happened since the last.
    A floor is warm at the beginning, and paid from when its GPUs began to boot.
    """
    cluster = PooledCluster(MODELS, gpus, {one.job.id: one.gain for one in drawn})
    cluster.warm_up(lane.least_floor)
    arrivals = [one.job for one in drawn]
    last_due_s = max(job.due_s for job in arrivals)
    arrived, tick = 0, -1
    wake_s: float | None = None
    while True:
        times = [cluster.next_change_s(), wake_s]
        if arrived < len(arrivals):
            times.append(arrivals[arrived].submitted_s)
        moments = [at_s for at_s in times if at_s is not None]
        if not moments:
            return cluster
        tick = max(tick + 1, math.ceil(min(moments) / lane.rules.round_s - 1e-9))
        tick_s = tick * lane.rules.round_s
        while (change_s := cluster.next_change_s()) is not None and change_s <= tick_s:
            cluster.advance(change_s)
        cluster.advance(tick_s)
        while arrived < len(arrivals) and arrivals[arrived].submitted_s <= tick_s:
            lane.receive(arrivals[arrived], cluster)
            arrived += 1
        lane.decide(cluster)
        idle = arrived == len(arrivals) and not cluster.is_at_work()
        if idle and (not lane.pending or tick_s > last_due_s):
            return cluster
        retry_s = tick_s + RETRY_S if lane.pending else None
        wakes = [at_s for at_s in (lane.next_expiry_s(cluster), retry_s) if at_s is not None]
        wake_s = min(wakes, default=None)
