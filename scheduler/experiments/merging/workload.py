"""Fine-tuning jobs of a day, or of a trace: when they come, their work, what they are about."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from scheduler.experiments.merging.transfer import Tasks
from scheduler.experiments.tiers.workload import Workload

Floats = NDArray[np.float64]
Ints = NDArray[np.int64]
Bools = NDArray[np.bool_]

#: Share of the cluster that a load of 1 asks for, on one GPU each.
LOAD_SHARE = 0.7
#: GPU hours of a job and how often, after the generator of Pollux that the paper follows.
SIZES_GPU_H = ((0.1, 1.0, 0.72), (1.0, 10.0, 0.20), (10.0, 40.0, 0.08))
#: GPUs that owners ask for, by size, where the policy does not choose.
ASKED = ((1,), (1, 2, 4), (4, 8, 16))
#: Work lost per added GPU: speed-up ``a / (1 + loss (a - 1))``.
LEAST_LOSS, MOST_LOSS = 0.02, 0.08
#: Epochs of a job.
EPOCHS = (3, 10)
#: Standard deviation of the logarithm of the error of a job's estimated iterations: a mean
#: error of 8 %, as in table 2.
ITERATION_ERROR = 0.1


@dataclass(frozen=True, slots=True)
class Mix:
    """What jobs are about."""

    #: Share of jobs from the families below; the others are about a task of their own.
    related: float = 1.0
    families: int = 3
    tasks_per_family: int = 3
    #: Share of jobs that use the very data of an earlier job of their task.
    same_data: float = 0.1
    #: Share of jobs that run on whole servers only.
    pipeline: float = 0.0


@dataclass(frozen=True, slots=True)
class Jobs:
    """Jobs in order of arrival, ``[N]`` each."""

    name: str
    arrive_s: Floats
    #: Seconds on one GPU from the base.
    work_s: Floats
    #: GPUs the owner asks for.
    asked: Ints
    loss: Floats
    pipeline: Bools
    epochs: Ints
    #: Estimated over true iterations.
    error: Floats
    tasks: Tasks

    def __len__(self) -> int:
        return len(self.arrive_s)


def fine_tuning_day(
    *, seed: int, jobs: int, gpus: int, load: float = 1.0, mix: Mix | None = None
) -> Jobs:
    """Poisson arrivals of jobs of all sizes that ask for ``0.7 load`` of the cluster.

    Sizes are stratified: every seed has the same mix of small and large jobs.
    """
    rng = np.random.default_rng([seed, 21])
    rank = (rng.permutation(jobs) + rng.random(jobs)) / jobs
    work_h, asked = np.empty(jobs), np.empty(jobs, np.int64)
    begin = 0.0
    for (low, high, share), choices in zip(SIZES_GPU_H, ASKED, strict=True):
        here = (rank >= begin) & (rank < begin + share + 1e-12)
        work_h[here] = low * (high / low) ** ((rank[here] - begin) / share)
        asked[here] = rng.choice(np.array(choices), int(here.sum()))
        begin += share
    span_s = 3600.0 * float(work_h.sum()) / (LOAD_SHARE * load * gpus)
    arrive = np.sort(rng.uniform(0.0, span_s, jobs))
    return _jobs(f"day x{load:g}", rng, arrive - arrive[0], 3600.0 * work_h, asked, mix or Mix())


def jobs_of_trace(workload: Workload, *, seed: int, gpus: int, mix: Mix | None = None) -> Jobs:
    """Arrivals, run times and gangs of a trace; what the jobs are about is drawn.

    Gangs wider than the cluster get the cluster.
    """
    rng = np.random.default_rng([seed, 22])
    asked = np.minimum(workload.gpus, gpus)
    jobs = _jobs(workload.name, rng, workload.arrive_s, workload.duration_s, asked, mix or Mix())
    # Run times are those on the GPUs asked for.
    work = jobs.work_s * speed_up(jobs.loss, asked)
    return Jobs(
        jobs.name, jobs.arrive_s, work, asked, jobs.loss, jobs.pipeline, jobs.epochs, jobs.error,
        jobs.tasks,
    )  # fmt: skip


def speed_up(loss: Floats, gpus: Ints | Floats) -> Floats:
    """How many times faster than on one GPU; 0 on none."""
    return gpus / (1.0 + loss * np.maximum(gpus - 1.0, 0.0))


def _jobs(
    name: str, rng: np.random.Generator, arrive: Floats, work: Floats, asked: Ints, mix: Mix
) -> Jobs:
    count = len(arrive)
    pipeline = rng.random(count) < mix.pipeline
    return Jobs(
        name=name,
        arrive_s=arrive,
        work_s=work,
        asked=np.where(pipeline, -(-asked // 4) * 4, asked),
        loss=rng.uniform(LEAST_LOSS, MOST_LOSS, count),
        pipeline=pipeline,
        epochs=rng.integers(EPOCHS[0], EPOCHS[1] + 1, count),
        error=np.exp(ITERATION_ERROR * rng.standard_normal(count)),
        tasks=_tasks(rng, count, mix),
    )


def _tasks(rng: np.random.Generator, count: int, mix: Mix) -> Tasks:
    common = mix.families * mix.tasks_per_family
    alone = rng.random(count) >= mix.related
    task = np.where(alone, common + np.arange(count), rng.integers(0, max(common, 1), count))
    family = np.where(alone, mix.families + np.arange(count), task // mix.tasks_per_family)
    data = np.arange(count)
    again = rng.random(count) < mix.same_data
    picks = rng.random(count)
    earlier: dict[int, list[int]] = {}
    for i in range(count):
        before = earlier.setdefault(int(task[i]), [])
        if again[i] and before:
            data[i] = data[before[int(picks[i] * len(before))]]
        before.append(i)
    return Tasks(task, family, data)
