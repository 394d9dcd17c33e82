"""Jobs for the simulator, after the paper's section 6.1.

The paper's traces are not published. What it prints is kept: how many jobs of each base
model come in 20 minutes, minutes with five times the mean rate, and durations from a few
seconds to several minutes. So are SLOs of the duration times S plus the start-up of a GPU, and
by how much the bank shortens a run. What it does not print is ours: the spread of durations,
the sizes of gangs and the start-up of each model. It stands in :class:`WorkloadRules` and was
chosen once, so that the paper's repaired rules cost and violate at medium load what the paper
says. See ``docs/algorithms/prompts.md``.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

import numpy as np

from scheduler.prompts.jobs import TuningJob


@dataclass(frozen=True, slots=True)
class BaseModel:
    """One hosted base model."""

    name: str
    #: T_cold, seconds.
    boot_s: float
    #: GPU seconds of one lookup at 50 clusters of 3,000 candidates (figure 10b).
    lookup_gpu_s: float
    #: The least and largest factor by which a lookup shortens a run (figure 9b and
    #: section 4.4.3).
    gains: tuple[float, float]


MODELS = (
    BaseModel("gpt2-base", 10.0, 5.3, (1.8, 2.8)),
    BaseModel("gpt2-large", 20.0, 6.1, (1.38, 4.7)),
    BaseModel("vicuna-7b", 40.0, 9.2, (1.28, 4.7)),
)
#: Minutes in which the paper's jobs arrive, and its jobs of each base model in them.
PAPER_MINUTES = 20
LOADS: Mapping[str, tuple[int, int, int]] = {
    "low": (41, 55, 42),
    "medium": (77, 71, 65),
    "high": (99, 85, 76),
}


@dataclass(frozen=True, slots=True)
class WorkloadRules:
    """How jobs are drawn."""

    #: Minutes of arrivals; fewer minutes bring fewer jobs, in proportion.
    minutes: int = PAPER_MINUTES
    #: Shape of the gamma law of rates by minute: the busiest minute has five to six times
    #: the mean (section 2.2: five).
    burstiness: float = 0.4
    #: Median and spread of the lognormal law of durations, and its bounds, seconds.
    median_s: float = 18.0
    spread: float = 0.9
    bounds_s: tuple[float, float] = (4.0, 400.0)
    #: Sizes of gangs in the trace and their shares.
    gangs: Mapping[int, float] = field(default_factory=lambda: {1: 0.4, 2: 0.25, 4: 0.25, 8: 0.1})


@dataclass(frozen=True, slots=True)
class DrawnJob:
    """A job and what the scheduler does not know of it."""

    job: TuningJob
    #: By how much a lookup will shorten its run.
    gain: float


def draw_jobs(
    *, load: str, slo: float, seed: int, rules: WorkloadRules | None = None
) -> tuple[DrawnJob, ...]:
    """Draw 20 minutes of jobs.

    Parameters
    ----------
    load : str
        A name of :data:`LOADS`.
    slo : float
        S: the SLO is the job's duration in the trace times S, plus the start-up of a GPU.
    seed : int
        The same seed gives the same jobs bit for bit; S changes their SLOs only.
    rules : WorkloadRules, optional
        What differs from the defaults.

    Returns
    -------
    tuple of Drawn
        In order of submission.

    Raises
    ------
    ValueError
        For an unknown load or an S that is not above zero.
    """
    if load not in LOADS:
        raise ValueError(f"no load {load!r}; choose one of {', '.join(LOADS)}")
    if not slo > 0:
        raise ValueError(f"S must be above zero, got {slo}")
    if seed < 0:
        raise ValueError(f"a seed must not be below zero, got {seed}")
    rules = rules or WorkloadRules()
    drawn: list[DrawnJob] = []
    for index, (model, count) in enumerate(zip(MODELS, LOADS[load], strict=True)):
        rng = np.random.default_rng([seed, index])
        drawn.extend(_draw_model(model, count * rules.minutes // PAPER_MINUTES, slo, rng, rules))
    return tuple(sorted(drawn, key=lambda one: (one.job.submitted_s, one.job.id)))


def _draw_model(
    model: BaseModel, count: int, slo: float, rng: np.random.Generator, rules: WorkloadRules
) -> list[DrawnJob]:
    weights = rng.gamma(rules.burstiness, size=rules.minutes)
    minute = rng.choice(rules.minutes, size=count, p=weights / weights.sum())
    submitted = np.sort(60.0 * (minute + rng.random(count)))
    duration = np.clip(
        rules.median_s * np.exp(rules.spread * rng.standard_normal(count)), *rules.bounds_s
    )
    gangs = rng.choice(list(rules.gangs), size=count, p=list(rules.gangs.values()))
    low, high = model.gains
    gain = low * (high / low) ** rng.random(count)
    return [
        DrawnJob(
            TuningJob(
                id=f"{model.name}-{k:03d}",
                base_model=model.name,
                submitted_s=float(submitted[k]),
                slo_s=float(duration[k]) * slo + model.boot_s,
                work_gpu_s=float(duration[k]) * int(gangs[k]),
                lookup_gpu_s=model.lookup_gpu_s,
            ),
            float(gain[k]),
        )
        for k in range(count)
    ]
