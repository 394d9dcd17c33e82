"""One run: jobs, a cluster and a policy in, an outcome out."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from scheduler.experiments.merging.cluster import Cluster
from scheduler.experiments.merging.fairness import compute_unfair_share, finish_time_ratio
from scheduler.experiments.merging.policies import POLICIES, Policy
from scheduler.experiments.merging.transfer import TransferShares, World
from scheduler.experiments.merging.workload import Jobs, speed_up

Floats = NDArray[np.float64]


@dataclass(frozen=True, slots=True)
class MergingOutcome:
    """What one run measured; times in seconds."""

    policy: str
    workload: str
    world: str
    seed: int
    jobs: int
    #: Jobs that ended; fewer than ``jobs`` only where a policy cannot run them.
    finished: int
    mean_jct_s: float
    p50_jct_s: float
    p99_jct_s: float
    makespan_s: float
    gpu_hours: float
    #: Finish-time fairness: the worst ratio but for one in a hundred, and the share above 1.
    p99_fairness: float
    unfair: float
    #: Shares of jobs in temporal and spatial merges, warm starts, and those that did harm.
    temporal: float
    spatial: float
    warm: float
    harmed: float
    switches_per_job: float
    mean_solver_s: float
    max_solver_s: float
    unproven: float


def simulate(
    *,
    jobs: Jobs,
    policy: str | Policy,
    world: World,
    seed: int,
    gpus: int = 240,
    noise: float = 0.0,
    same_data_merges: bool = True,
) -> MergingOutcome:
    """Run one policy on one workload.

    Rounds are a policy's interval apart; between them jobs end when they end and their
    GPUs stay idle until the next round, but for the target of a temporal pair, which goes
    on at once. Rounds in which nothing can change are skipped.

    Parameters
    ----------
    jobs : Jobs
        A day or a trace.
    policy : str or Policy
        A name of :data:`~scheduler.experiments.merging.policies.POLICIES`, or one made by
        hand.
    world : World
        What transfer is worth.
    seed : int
        Draws which tasks help each other; policies under one seed meet the same.
    gpus : int
        Of the cluster.
    noise : float
        Half-width of a relative error on predicted shares (figure 8).
    same_data_merges : bool
        Whether jobs on the very same data may merge.

    Raises
    ------
    ValueError
        For an unknown policy, or a job that asks for more than the cluster.
    """
    if isinstance(policy, str):
        if policy not in POLICIES:
            raise ValueError(f"no policy {policy!r}; choose one of {', '.join(sorted(POLICIES))}")
        policy = POLICIES[policy]
    if len(jobs) == 0 or int(jobs.asked.max()) > gpus:
        raise ValueError(f"jobs must ask for 1 to {gpus} GPUs, the size of the cluster")
    correlation = {
        "gradient": world.gradient_correlation, "probe": world.probe_correlation, "none": 0.0
    }[policy.scores]  # fmt: skip
    transfer = TransferShares(
        world, jobs.tasks, seed=seed, scaled=policy.scaled, correlation=correlation, noise=noise,
        same_data_merges=same_data_merges,
    )  # fmt: skip
    cluster = Cluster(jobs, gpus, transfer, switch_s=policy.switch_s, noticed=policy.noticed)
    cluster.left_s += policy.profile_s
    bank = Bank(jobs, np.random.default_rng([seed, 41]), policy.probes)
    crowd = [(0.0, 0.0)]
    times: list[float] = []
    unproven = 0
    while cluster.done < len(jobs):
        new = cluster.admit(cluster.now_s)
        if policy.warm_starts:
            bank.add(np.flatnonzero(np.isfinite(cluster.finish_s)))
            for job in new.tolist():
                donor = bank.best_donor(job, transfer)
                if donor is not None:
                    cluster.start_warm(job, donor)
        if not len(cluster.units):
            cluster.now_s = _round_at(jobs.arrive_s[cluster.arrived], policy.interval_s)
            continue
        view = cluster.view()
        plan = policy.decide(view, transfer)
        cluster.apply(view, plan)
        if plan.solver_s > 0:
            times.append(plan.solver_s)
            unproven += not plan.proven
        until = cluster.now_s + policy.interval_s
        if policy.lasting:
            comes = jobs.arrive_s[cluster.arrived] if cluster.arrived < len(jobs) else np.inf
            event = min(float(comes), cluster.soonest_end_s())
            until = max(until, _round_at(event, policy.interval_s))
        crowd.append((cluster.now_s, float(view.members.sum())))
        cluster.advance(until)
    return _outcome(cluster, policy, world, seed, crowd, times, unproven)


class Bank:
    """Finished jobs that new ones may start from.

    The very data of a finished job is found by its hash. Otherwise the newest jobs of at
    most ``probes`` tasks, drawn at random, are probed, and the best is taken if it is
    predicted to help.
    """

    def __init__(self, jobs: Jobs, rng: np.random.Generator, probes: int) -> None:
        self._tasks = jobs.tasks
        self._rng = rng
        self._probes = probes
        self._by_data: dict[int, int] = {}
        self._by_task: dict[int, int] = {}
        self._order: list[int] = []

    def add(self, finished: NDArray[np.int64]) -> None:
        """Put in jobs that ended."""
        for job in finished.tolist():
            task, data = int(self._tasks.task[job]), int(self._tasks.data[job])
            if task not in self._by_task:
                self._order.append(task)
            self._by_task[task] = job
            self._by_data[data] = job

    def best_donor(self, job: int, transfer: TransferShares) -> int | None:
        """The finished job to start from, if any is predicted to help."""
        same = self._by_data.get(int(self._tasks.data[job]))
        if same is not None:
            return same
        if not self._order:
            return None
        count = min(self._probes, len(self._order))
        picks = self._rng.choice(len(self._order), count, replace=False)
        donors = np.array([self._by_task[self._order[int(i)]] for i in picks], np.int64)
        said = transfer.predicted_shares(donors, np.full(count, job))
        best = int(np.argmin(said))
        return int(donors[best]) if said[best] < 1.0 else None


def _round_at(time_s: float, interval_s: float) -> float:
    """The first round at or after a time."""
    return float(np.ceil(time_s / interval_s - 1e-9)) * interval_s


def _outcome(
    cluster: Cluster,
    policy: Policy,
    world: World,
    seed: int,
    crowd: list[tuple[float, float]],
    times: list[float],
    unproven: int,
) -> MergingOutcome:
    jobs = cluster.jobs
    jct = cluster.finish_s - jobs.arrive_s
    p50, p99 = np.percentile(jct, [50, 99])
    ratios = finish_time_ratio(jct, _isolated_s(cluster, crowd))
    count = len(jobs)
    return MergingOutcome(
        policy=policy.name,
        workload=jobs.name,
        world=world.name,
        seed=seed,
        jobs=count,
        finished=cluster.done,
        mean_jct_s=float(jct.mean()),
        p50_jct_s=float(p50),
        p99_jct_s=float(p99),
        makespan_s=float(cluster.finish_s.max()),
        gpu_hours=cluster.busy_gpu_s / 3600.0,
        p99_fairness=float(np.percentile(ratios, 99)),
        unfair=compute_unfair_share(ratios),
        temporal=float(cluster.temporal.mean()),
        spatial=float(cluster.spatial.mean()),
        warm=cluster.warm / count,
        harmed=cluster.harmed / count,
        switches_per_job=cluster.switches / count,
        mean_solver_s=float(np.mean(times)) if times else 0.0,
        max_solver_s=max(times, default=0.0),
        unproven=unproven / max(len(times), 1),
    )


def _isolated_s(cluster: Cluster, crowd: list[tuple[float, float]]) -> Floats:
    """Run time from the base with an equal share of the GPUs to itself.

    The share is that of the mean number of jobs in the cluster while the job was in it,
    as Shockwave computes it, and no more than its owner asks for; below one GPU the job
    takes its turns on one.
    """
    jobs = cluster.jobs
    at, count = np.array(crowd).T
    area = np.r_[0.0, np.cumsum(count[:-1] * np.diff(at))]

    def until(time_s: Floats) -> Floats:
        place = np.clip(np.searchsorted(at, time_s, side="right") - 1, 0, None)
        return area[place] + count[place] * (time_s - at[place])

    span = cluster.finish_s - jobs.arrive_s
    mean = np.maximum((until(cluster.finish_s) - until(jobs.arrive_s)) / span, 1.0)
    share = np.minimum(cluster.gpus / mean, jobs.asked)
    speed = np.where(share >= 1.0, speed_up(jobs.loss, np.maximum(share, 1.0)), share)
    return jobs.work_s / speed
