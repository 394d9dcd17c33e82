"""The GPUs of a simulated lane: who runs on what, until when, and what it costs."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from scheduler.experiments.prompts.workload import BaseModel
from scheduler.prompts.jobs import Course, TuningJob, run_s
from scheduler.prompts.pools import WarmPool
from scheduler.prompts.rules import LaneRules


@dataclass(slots=True)
class RunningGang:
    """A job on its gang."""

    job: TuningJob
    gpus: int
    #: When the scheduler believes it ends, and when it does.
    predicted_end_s: float
    end_s: float


@dataclass(slots=True)
class Pool:
    """One base model's warm GPUs."""

    model: BaseModel
    #: Since when each idle GPU has had no work, longest first.
    idle_since_s: list[float] = field(default_factory=list[float])
    #: When each booting GPU is ready.
    ready_s: list[float] = field(default_factory=list[float])
    running: dict[str, RunningGang] = field(default_factory=dict[str, RunningGang])

    @property
    def busy(self) -> int:
        return sum(one.gpus for one in self.running.values())

    @property
    def warm(self) -> int:
        return len(self.idle_since_s) + len(self.ready_s) + self.busy


class PooledCluster:
    """Cold pool, warm pools and the bill.

    GPUs of the cold pool cost nothing (section 4.4); all others are paid by the second,
    from the request on.
    """

    def __init__(self, models: Sequence[BaseModel], gpus: int, gains: Mapping[str, float]) -> None:
        self.pools = {model.name: Pool(model) for model in models}
        self.gpus = gpus
        self.now_s = 0.0
        #: GPU seconds paid for, by what the GPU did.
        self.busy_s = self.idle_s = self.boot_s = 0.0
        #: When each finished job ended.
        self.ended_s: dict[str, float] = {}
        #: Seconds each lookup took.
        self.lookups_s: dict[str, float] = {}
        self._gains = gains

    @property
    def cold(self) -> int:
        return self.gpus - sum(pool.warm for pool in self.pools.values())

    def warm_up(self, floor: int) -> None:
        """Begin with ``floor`` idle GPUs under each base model, their start paid."""
        for pool in self.pools.values():
            self.boot_s += floor * pool.model.boot_s
            pool.idle_since_s.extend([0.0] * floor)

    def is_at_work(self) -> bool:
        """Whether any job runs or any GPU boots."""
        return any(pool.running or pool.ready_s for pool in self.pools.values())

    def advance(self, now_s: float) -> None:
        """Bill the time since the last call, then let jobs end and GPUs become ready.

        Call at every moment of :meth:`next_change_s`, so that nothing changes in between.
        """
        passed = now_s - self.now_s
        for pool in self.pools.values():
            self.busy_s += passed * pool.busy
            self.idle_s += passed * len(pool.idle_since_s)
            self.boot_s += passed * len(pool.ready_s)
        self.now_s = now_s
        for pool in self.pools.values():
            for one in [one for one in pool.running.values() if one.end_s <= now_s]:
                self.ended_s[one.job.id] = one.end_s
                del pool.running[one.job.id]
                pool.idle_since_s.extend([now_s] * one.gpus)
            ready = [at_s for at_s in pool.ready_s if at_s <= now_s]
            if ready:
                pool.ready_s = [at_s for at_s in pool.ready_s if at_s > now_s]
                pool.idle_since_s.extend(ready)

    def next_change_s(self) -> float | None:
        """When the next job ends or GPU is ready."""
        times = [
            at_s
            for pool in self.pools.values()
            for at_s in (*(one.end_s for one in pool.running.values()), *pool.ready_s)
        ]
        return min(times, default=None)

    def start(self, job: TuningJob, gpus: int, course: Course, rules: LaneRules) -> None:
        """Start a job on idle GPUs, those idle longest last.

        ``course`` is the prediction; the run takes the true gain where it looks up.
        """
        pool = self.pools[job.base_model]
        if gpus > len(pool.idle_since_s):
            raise ValueError(f"{job.id} needs {gpus} idle GPUs, {len(pool.idle_since_s)} are there")
        del pool.idle_since_s[len(pool.idle_since_s) - gpus :]
        true = course
        if course.looks_up:
            shared_s = job.lookup_gpu_s if course.fixed_s == 0.0 else 0.0
            work = job.work_gpu_s / self._gains[job.id] + shared_s
            true = Course(True, work, course.fixed_s)
            self.lookups_s[job.id] = course.fixed_s or job.lookup_gpu_s / gpus
        pool.running[job.id] = RunningGang(
            job,
            gpus,
            self.now_s + run_s(course, gpus, rules),
            self.now_s + run_s(true, gpus, rules),
        )

    def boot(self, base_model: str, gpus: int, times_s: Sequence[float] = ()) -> None:
        """Move GPUs from the cold pool to a warm one; they are ready after T_cold.

        Unless ``times_s`` gives each its own time.
        """
        if gpus > self.cold:
            raise ValueError(f"{gpus} GPUs asked of the cold pool, {self.cold} are there")
        pool = self.pools[base_model]
        for k in range(gpus):
            pool.ready_s.append(self.now_s + (times_s[k] if times_s else pool.model.boot_s))

    def release(self, base_model: str, gpus: int) -> None:
        """Return the GPUs idle longest to the cold pool."""
        del self.pools[base_model].idle_since_s[:gpus]

    def view(self, base_model: str, round_s: float) -> WarmPool:
        """The pool as the algorithms see it; a job that is overdue ends by the next round."""
        pool = self.pools[base_model]
        busy = [
            max(one.predicted_end_s, self.now_s + round_s)
            for one in pool.running.values()
            for _ in range(one.gpus)
        ]
        times = (*([self.now_s] * len(pool.idle_since_s)), *busy, *pool.ready_s)
        return WarmPool(base_model, pool.model.boot_s, tuple(sorted(times)))
