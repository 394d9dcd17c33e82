"""What one run of the prompt-tuning simulator measured."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from scheduler.prompts.jobs import TuningJob

#: Dollars per GPU hour: a p4de.24xlarge ($40.96) has eight GPUs. Storage for exchanged
#: gradients is left out: they are kilobytes.
GPU_USD_PER_H = 40.96 / 8


@dataclass(frozen=True, slots=True)
class TuningOutcome:
    """Figures of one policy on one trace."""

    policy: str
    load: str
    #: S.
    slo: float
    seed: int
    jobs: int
    #: Jobs that did not end by the SLO they came with; those refused are among them.
    violations: int
    #: Jobs that never ran, and those of them that were refused at once.
    never_run: int
    refused: int
    #: Jobs that were certified an SLO, their own or a later one, and broke it.
    broken_promises: int
    cost_usd: float
    #: GPU hours with a base model loaded, of them without work, and while it was loaded.
    warm_gpu_h: float
    idle_gpu_h: float
    cold_gpu_h: float
    lookups: int
    #: Seconds from the start of a job to the end of its lookup, mean.
    lookup_s: float
    #: Seconds from submission to end, mean over jobs that ended.
    jct_s: float
    end_s: float

    @property
    def violation_share(self) -> float:
        return self.violations / self.jobs


def summarize(
    jobs: Sequence[TuningJob],
    ended_s: Mapping[str, float],
    *,
    policy: str,
    load: str,
    slo: float,
    seed: int,
    gpu_s: Mapping[str, float],
    lookups_s: Sequence[float],
    end_s: float,
    certified_due_s: Mapping[str, float] | None = None,
    refused: int = 0,
) -> TuningOutcome:
    """Read the figures of a finished run.

    Parameters
    ----------
    jobs : sequence of TuningJob
        With the SLOs they came with.
    ended_s : mapping of str to float
        When each job that ran ended, by id.
    policy, load, slo, seed
        What was run.
    gpu_s : mapping of str to float
        GPU seconds paid for: ``busy``, ``idle`` and ``boot``.
    lookups_s : sequence of float
        Seconds of each lookup.
    end_s : float
        When the last job ended.
    certified_due_s : mapping of str to float, optional
        Deadlines that were promised, by id.
    refused : int
        Jobs that were refused.
    """
    done = [job for job in jobs if job.id in ended_s]
    promised = certified_due_s or {}
    return TuningOutcome(
        policy=policy,
        load=load,
        slo=slo,
        seed=seed,
        jobs=len(jobs),
        violations=len(jobs) - sum(ended_s[job.id] <= job.due_s for job in done),
        never_run=len(jobs) - len(done),
        refused=refused,
        broken_promises=sum(ended_s.get(name, np.inf) > due_s for name, due_s in promised.items()),
        cost_usd=sum(gpu_s.values()) / 3600.0 * GPU_USD_PER_H,
        warm_gpu_h=(gpu_s["busy"] + gpu_s["idle"]) / 3600.0,
        idle_gpu_h=gpu_s["idle"] / 3600.0,
        cold_gpu_h=gpu_s["boot"] / 3600.0,
        lookups=len(lookups_s),
        lookup_s=_mean(lookups_s),
        jct_s=_mean([ended_s[job.id] - job.submitted_s for job in done]),
        end_s=end_s,
    )


def _mean(values: Sequence[float]) -> float:
    return float(np.mean(values)) if values else 0.0
