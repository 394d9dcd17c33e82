"""What runs a lane: the paper's algorithms, the chosen plan, and an INFless-like autoscaler."""

from __future__ import annotations

from collections import deque
from collections.abc import Mapping
from dataclasses import dataclass, field

import numpy as np

from scheduler.experiments.prompts.cluster import PooledCluster
from scheduler.experiments.prompts.cold_pool import grow_pools
from scheduler.experiments.prompts.repairs import REPAIRED, Repairs
from scheduler.experiments.prompts.warm_pool import allocate_warm
from scheduler.prompts.admission import admit_job
from scheduler.prompts.floor import compute_newsvendor_floor
from scheduler.prompts.jobs import TuningJob, find_fewest_gpus
from scheduler.prompts.planning import Promise, Round, keep_promises, plan_round, predict_course
from scheduler.prompts.pools import WarmPool
from scheduler.prompts.reclaim import count_reclaimable
from scheduler.prompts.rules import LaneRules


@dataclass(slots=True, kw_only=True)
class TuningLane:
    """What all lanes have: the queue, the floor and the return of idle GPUs."""

    rules: LaneRules = field(default_factory=LaneRules)
    #: Warm GPUs of each base model at the beginning and at the least.
    least_floor: int = 0
    pending: dict[str, TuningJob] = field(default_factory=dict[str, TuningJob])
    #: Deadlines certified, by job; only a lane that admits has any.
    certified_due_s: dict[str, float] = field(default_factory=dict[str, float])
    refused: int = 0

    def receive(self, job: TuningJob, cluster: PooledCluster) -> None:
        """Take a job into the queue."""
        self.pending[job.id] = job

    def decide(self, cluster: PooledCluster) -> None:
        """Hold a round: start jobs, move GPUs between the pools."""
        raise NotImplementedError

    def floor_of(self, base_model: str) -> int:
        """Warm GPUs that stay."""
        return self.least_floor

    def next_expiry_s(self, cluster: PooledCluster) -> float | None:
        """When the next idle GPU above the floor has been idle for the whole window."""
        times = [
            pool.idle_since_s[0] + self.rules.reclaim_s
            for name, pool in cluster.pools.items()
            if pool.idle_since_s and pool.warm > self.floor_of(name)
        ]
        return min((at_s for at_s in times if at_s > cluster.now_s), default=None)

    def _view(self, cluster: PooledCluster) -> dict[str, WarmPool]:
        return {name: cluster.view(name, self.rules.round_s) for name in cluster.pools}

    def _reclaim(self, cluster: PooledCluster, claimed: Mapping[str, int]) -> None:
        for name, pool in cluster.pools.items():
            count = count_reclaimable(
                pool.idle_since_s,
                warm=pool.warm,
                floor=self.floor_of(name),
                claimed=claimed.get(name, 0),
                now_s=cluster.now_s,
                reclaim_s=self.rules.reclaim_s,
            )
            cluster.release(name, count)


@dataclass(slots=True, kw_only=True)
class PaperLane(TuningLane):
    """Algorithms 1 and 2, as printed or with some of their errors repaired."""

    repairs: Repairs = REPAIRED
    #: Whether DelaySchedulable is asked at all.
    delays: bool = True

    def decide(self, cluster: PooledCluster) -> None:
        for name, pool in cluster.pools.items():
            found = allocate_warm(
                [job for job in self.pending.values() if job.base_model == name],
                len(pool.idle_since_s),
                cluster.now_s,
                rules=self.rules,
                repairs=self.repairs,
            )
            for one in found:
                # As printed, a job may be given a GPU that is not there; it waits.
                if one.gpus <= len(pool.idle_since_s):
                    cluster.start(one.job, one.gpus, one.course, self.rules)
                    del self.pending[one.job.id]
        growths = grow_pools(
            list(self.pending.values()),
            self._view(cluster),
            cluster.cold,
            cluster.now_s,
            rules=self.rules,
            repairs=self.repairs,
            delays=self.delays,
        )
        for growth in growths:
            cluster.boot(growth.base_model, growth.gpus)
        self._reclaim(cluster, {})


#: Seconds between two looks at the demand, and how many are remembered: ten minutes.
SAMPLE_S, SAMPLES = 10.0, 60


def _histories() -> dict[str, deque[int]]:
    return {}


@dataclass(slots=True, kw_only=True)
class ChosenLane(TuningLane):
    """One plan for warm and cold GPUs, a floor that follows demand, a short window above it."""

    #: Most warm GPUs that the newsvendor rule may hold under a base model.
    most_floor: int = 6
    #: Dollars that a missing GPU costs over those that an idle one does.
    shortage_ratio: float = 1.0
    #: Whether jobs are admitted: certified their SLO or a later one, or refused.
    admits: bool = False
    _held: dict[str, Promise] = field(default_factory=dict[str, Promise])
    _floors: dict[str, int] = field(default_factory=dict[str, int])
    _demand: dict[str, deque[int]] = field(default_factory=_histories)
    _sample_s: float = 0.0

    def receive(self, job: TuningJob, cluster: PooledCluster) -> None:
        if not self.admits:
            self.pending[job.id] = job
            return
        found = admit_job(
            job,
            self._held,
            self._view(cluster),
            cluster.cold,
            cluster.now_s,
            rules=self.rules,
        )
        if found.promise is None or found.plan is None:
            self.refused += 1
            return
        for growth in found.plan.growths:
            cluster.boot(growth.base_model, growth.gpus)
        self._held = {one.job.id: one for one in found.plan.promises}
        self.pending[job.id] = found.promise.job
        self.certified_due_s[job.id] = found.promise.job.due_s

    def decide(self, cluster: PooledCluster) -> None:
        found = self._plan(cluster)
        for one in found.starts:
            cluster.start(one.job, one.gpus, one.course, self.rules)
            del self.pending[one.job.id]
        if self.admits:
            self._held = {one.job.id: one for one in found.promises if one.job.id in self.pending}
        for growth in found.growths:
            cluster.boot(growth.base_model, growth.gpus)
        idle = {name: len(pool.idle_since_s) for name, pool in cluster.pools.items()}
        self._reclaim(
            cluster, {name: idle[name] - count for name, count in found.unclaimed.items()}
        )
        waiting = dict.fromkeys(cluster.pools, 0)
        for promise in found.promises:
            if promise.job.id in self.pending:
                waiting[promise.job.base_model] += promise.gpus
        self._watch(cluster, waiting)

    def _plan(self, cluster: PooledCluster) -> Round:
        pools, cold, now_s = self._view(cluster), cluster.cold, cluster.now_s
        if self.admits:
            return keep_promises(self._held.values(), pools, cold, now_s, rules=self.rules)
        return plan_round(list(self.pending.values()), pools, cold, now_s, rules=self.rules)

    def floor_of(self, base_model: str) -> int:
        return self._floors.get(base_model, self.least_floor)

    def next_expiry_s(self, cluster: PooledCluster) -> float | None:
        expiry_s = TuningLane.next_expiry_s(self, cluster)
        return self._sample_s if expiry_s is None else min(expiry_s, self._sample_s)

    def _watch(self, cluster: PooledCluster, waiting: Mapping[str, int]) -> None:
        """Remember the demand of this moment and set the floors by it."""
        if cluster.now_s < self._sample_s:
            return
        self._sample_s = cluster.now_s + SAMPLE_S
        for name, pool in cluster.pools.items():
            history = self._demand.setdefault(name, deque(maxlen=SAMPLES))
            history.append(pool.busy + waiting[name])
            self._floors[name] = compute_newsvendor_floor(
                history,
                shortage=self.shortage_ratio,
                idle=1.0,
                least=self.least_floor,
                most=self.most_floor,
            )


@dataclass(slots=True, kw_only=True)
class InflessLane(TuningLane):
    """An autoscaler of inference instances, with gangs and the bank added to it.

    First come, first served, and each base model on its own. A job claims as many warm
    instances as it needs to meet its SLO. Those that are missing are started at once, each
    with its own start-up time, and the gang waits for its slowest. Idle instances stay for
    the window. No job waits for GPUs that others will release.
    """

    rng: np.random.Generator
    #: Spread of the lognormal law of start-up times.
    boot_spread: float = 0.3

    def decide(self, cluster: PooledCluster) -> None:
        claimed = dict.fromkeys(cluster.pools, 0)
        for job in list(self.pending.values()):
            pool = cluster.pools[job.base_model]
            course = predict_course(job, True, self.rules, shared=False)
            gpus = max(1, find_fewest_gpus(course, job.slo_s, [0.0] * cluster.gpus, self.rules))
            if not claimed[job.base_model] and len(pool.idle_since_s) >= gpus:
                cluster.start(job, gpus, course, self.rules)
                del self.pending[job.id]
                continue
            coming = len(pool.idle_since_s) + len(pool.ready_s) - claimed[job.base_model]
            missing = min(max(0, gpus - coming), cluster.cold)
            spread = np.exp(self.boot_spread * self.rng.standard_normal(missing))
            cluster.boot(job.base_model, missing, [pool.model.boot_s * float(x) for x in spread])
            claimed[job.base_model] += gpus
        idle = {name: len(pool.idle_since_s) for name, pool in cluster.pools.items()}
        self._reclaim(cluster, {name: min(count, idle[name]) for name, count in claimed.items()})
