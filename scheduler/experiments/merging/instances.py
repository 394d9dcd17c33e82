"""Drawn instances of the task merger, to time the solver on."""

from __future__ import annotations

import numpy as np

from scheduler.experiments.merging.estimates import list_allocations
from scheduler.experiments.merging.instance import Instance

#: Median seconds of a job on one GPU, and the standard deviation of the logarithm.
JOB_S, JOB_SPREAD = 1800.0, 1.2


def draw_instance(*, jobs: int, gpus: int, fresh: float, seed: int) -> Instance:
    """Jobs of which a share has never run, with a prediction for every pair there can be.

    Fresh jobs hold nothing and may be merged with any job; the others hold one GPU, as
    240 jobs on 240 GPUs do. Half of the pairs are predicted to help.
    """
    rng = np.random.default_rng([seed, 51])
    allocations = list_allocations(gpus)
    work = JOB_S * np.exp(JOB_SPREAD * rng.standard_normal(jobs))
    loss = rng.uniform(0.02, 0.08, jobs)
    times = work[:, None] * (1.0 + loss[:, None] * (allocations - 1)) / allocations
    new = np.sort(rng.permutation(jobs)[: round(fresh * jobs)])
    donor, target = (x.ravel() for x in np.meshgrid(np.arange(jobs), new, indexing="ij"))
    donor, target = donor[donor != target], target[donor != target]
    one, other = (x.ravel() for x in np.meshgrid(new, new, indexing="ij"))
    one, other = one[one < other], other[one < other]
    share = np.exp(0.4 * rng.standard_normal(len(donor)))
    joint = 1.2 * np.exp(0.3 * rng.standard_normal(len(one)))
    held = np.ones(jobs, np.int64)
    held[new] = 0
    return Instance(
        gpus=gpus,
        allocations=allocations,
        times_s=times,
        members=np.ones(jobs, np.int64),
        held=held,
        waited_s=np.where(held == 0, rng.uniform(0.0, 120.0, jobs), 0.0),
        first=np.r_[donor, one],
        second=np.r_[target, other],
        spatial=np.r_[np.zeros(len(donor), np.bool_), np.ones(len(one), np.bool_)],
        pair_s=np.r_[share[:, None] * times[target], joint[:, None] * (times[one] + times[other])],
        wait_s=1800.0,
        switch_s=20.0,
    )
