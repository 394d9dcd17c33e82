"""Workloads: jobs a run is given, from our own generators."""

from __future__ import annotations

import math
from dataclasses import dataclass, replace

import numpy as np
from numpy.typing import NDArray

from scheduler.experiments.tiers.deadlines import compute_soft_deadlines_s
from scheduler.experiments.tiers.state import JOB, Records, records
from scheduler.experiments.tiers.supply import SupplyRules, boot_times

Floats = NDArray[np.float64]
Ints = NDArray[np.int64]


@dataclass(frozen=True, slots=True)
class Workload:
    """Jobs in order of arrival."""

    name: str
    #: Seconds since the first arrival.
    arrive_s: Floats
    #: Run time without queueing, of a job that runs to its end.
    duration_s: Floats
    gpus: Ints
    #: Deadlines the owners gave, on the clock of ``arrive_s``; NaN where none was, and
    #: nothing at all when no job has one.
    given_due_s: Floats | None = None

    def __len__(self) -> int:
        return len(self.arrive_s)

    @property
    def gpu_hours(self) -> float:
        return float((self.duration_s * self.gpus).sum() / 3600.0)

    @property
    def span_s(self) -> float:
        """From the first arrival to when the last job would end without waiting."""
        return float((self.arrive_s + self.duration_s).max())

    def one_gpu_each(self) -> Workload:
        """The same jobs on one GPU, as in the paper's evaluation."""
        return replace(self, gpus=np.ones_like(self.gpus))


def calibrated_burst(*, seed: int, jobs: int = 200, span_s: float = 3600.0) -> Workload:
    """The paper's 200-job burst, calibrated to the totals it prints.

    Its all-serverless bill (2.95 x $236.69 at $2.10 per hour) makes 332 GPU hours,
    70 % of the jobs end within ten minutes and the median is near 2.86 minutes.
    Short jobs are log-uniform on 7.6-600 s, long ones on 600-95000 s: mean 5690 s,
    median 172 s. Figure 10 shows all arrivals within the first hour.
    """
    rng = np.random.default_rng([seed, 1])
    arrive = np.sort(rng.uniform(0.0, span_s, jobs))
    return Workload("burst", arrive - arrive[0], _skewed(rng, jobs), np.ones(jobs, np.int64))


def steady_state(*, seed: int, jobs: int = 10_000, load_gpus: float = 20.0) -> Workload:
    """Poisson arrivals of the burst's jobs that keep ``load_gpus`` GPUs busy on average."""
    rng = np.random.default_rng([seed, 2])
    duration = _skewed(rng, jobs)
    gaps = rng.exponential(duration.mean() / load_gpus, jobs)
    arrive = np.cumsum(gaps)
    return Workload("steady", arrive - arrive[0], duration, np.ones(jobs, np.int64))


def _skewed(rng: np.random.Generator, jobs: int) -> Floats:
    # Stratified: every seed has the same mix of short and long, so that seeds differ
    # in order and detail but not in total work by a factor.
    rank = (rng.permutation(jobs) + rng.random(jobs)) / jobs
    short = 7.6 * (600.0 / 7.6) ** (rank / 0.7)
    long = 600.0 * (95000.0 / 600.0) ** ((rank - 0.7) / 0.3)
    return np.where(rank < 0.7, short, long)


#: Share of GPU jobs of Seren that end within 2**k seconds (Acme, NSDI 24, figure of
#: GPU job durations; k = 0 .. 21).
SEREN_SHARES = (
    0.0218, 0.0278, 0.0562, 0.1176, 0.2338, 0.3171, 0.3712, 0.4891,
    0.6563, 0.7921, 0.8803, 0.9294, 0.9599, 0.9753, 0.9844, 0.9919,
    0.9964, 0.9983, 0.9993, 0.9998, 1.0000, 1.0000,
)  # fmt: skip
#: GPUs of a job and their shares, after the same paper.
SEREN_GPUS = ((1, 0.60), (2, 0.06), (4, 0.07), (8, 0.22), (16, 0.03), (32, 0.015), (64, 0.005))


def seren_like(*, seed: int, jobs: int, days: float | None = None) -> Workload:
    """A synthetic trace of any size with Seren's durations, gangs, nights and bursts.

    Parameters
    ----------
    seed : int
        The same seed gives the same trace bit for bit.
    jobs : int
        How many; the paper counts 818,327.
    days : float, optional
        Covered time; by default at Seren's rate of 818,327 jobs in 184 days.

    Notes
    -----
    Durations are log-uniform between the powers of two of the published shares.
    Arrivals follow a day and a week cycle, and half of them come in bursts of a
    geometric number of jobs seconds apart, as array jobs and sweeps do.
    """
    rng = np.random.default_rng([seed, 3])
    span_s = 86400.0 * (days if days is not None else 184.0 * jobs / 818_327)
    rank = rng.random(jobs)
    shares = np.array((0.0, *SEREN_SHARES))
    powers = np.arange(-1.0, len(SEREN_SHARES))
    duration = np.maximum(1.0, 2.0 ** np.interp(rank, shares, powers))
    counts = np.array([count for count, _ in SEREN_GPUS], np.int64)
    weights = np.array([share for _, share in SEREN_GPUS])
    gpus = rng.choice(counts, size=jobs, p=weights / weights.sum())
    arrive = _cyclic_arrivals(rng, jobs, span_s)
    return Workload(f"seren_like_{jobs}", arrive, duration, gpus)


def _cyclic_arrivals(rng: np.random.Generator, jobs: int, span_s: float) -> Floats:
    burst_mean = 6.0
    in_bursts = jobs // 2
    sizes = rng.geometric(1.0 / burst_mean, in_bursts + 1)
    heads = int(np.searchsorted(np.cumsum(sizes), in_bursts)) + 1
    starts = _thinned(rng, heads, span_s)
    members = np.repeat(np.arange(heads), sizes[:heads])[:in_bursts]
    grouped = starts[members] + rng.exponential(20.0, in_bursts)
    alone = _thinned(rng, jobs - in_bursts, span_s)
    arrive = np.sort(np.concatenate([grouped, alone]))
    return arrive - arrive[0]


def _thinned(rng: np.random.Generator, count: int, span_s: float) -> Floats:
    """Times on the span with a rate that halves at night and on weekends."""
    kept = np.empty(0)
    while len(kept) < count:
        times = rng.uniform(0.0, span_s, 2 * count + 16)
        day, week = times / 86400.0 * 2 * math.pi, times / 604800.0 * 2 * math.pi
        rate = (1.0 + 0.35 * np.sin(day)) * (1.0 + 0.25 * np.sin(week)) / (1.35 * 1.25)
        kept = np.concatenate([kept, times[rng.random(len(times)) < rate]])
    return kept[:count]


@dataclass(frozen=True, slots=True)
class OwnerRules:
    """How owners behave; the deadline range is the paper's (section 5.1)."""

    #: Deadlines are uniform between these multiples of the predicted run time.
    deadline_factors: tuple[float, float] = (1.0, 10.0)
    #: Share of jobs that die before their end.
    die_early: float = 0.0
    #: Dying jobs end at a uniform share of their run ("uniform"), or soon, after an
    #: exponential time of this mean ("soon").
    dying: str = "uniform"
    soon_mean_s: float = 240.0

    def __post_init__(self) -> None:
        low, high = self.deadline_factors
        if not 0 < low <= high:
            raise ValueError(f"deadline factors must rise from above zero, got {low, high}")
        if not 0 <= self.die_early <= 1:
            raise ValueError(f"die_early is a share, got {self.die_early}")
        if self.dying not in ("uniform", "soon"):
            raise ValueError(f"dying is 'uniform' or 'soon', got {self.dying!r}")


def draw_jobs(*, workload: Workload, owners: OwnerRules, supply: SupplyRules, seed: int) -> Records:
    """The workload with deadlines (unless given), early deaths and start-up times drawn."""
    rng = np.random.default_rng([seed, 4])
    n = len(workload)
    low, high = owners.deadline_factors
    predicted = workload.duration_s
    due = compute_soft_deadlines_s(
        arrived_s=workload.arrive_s,
        predicted_s=predicted,
        factors=rng.uniform(low, high, n),
        given_s=workload.given_due_s,
    )
    boots = boot_times(rng, supply.serverless_boot_s, n)
    dies = rng.random(n) < owners.die_early
    if owners.dying == "uniform":
        end = rng.random(n) * predicted
    else:
        end = np.minimum(rng.exponential(owners.soon_mean_s, n), predicted)
    run = np.where(dies, np.maximum(1.0, np.minimum(end, predicted)), predicted)
    jobs = records(n, JOB)
    jobs["arrive_s"] = workload.arrive_s
    jobs["run_s"] = np.minimum(run, predicted)
    jobs["predicted_s"] = predicted
    jobs["due_s"] = due
    jobs["gpus"] = workload.gpus
    jobs["serverless_boot_s"] = boots
    return jobs
