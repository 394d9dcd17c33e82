"""Fair shares of GPUs and how far a schedule is from them (Ymir, sections 5.1 and 7.2)."""

from __future__ import annotations

import math

import numpy as np
from numpy.typing import NDArray

Floats = NDArray[np.float64]


def compute_fair_share(gpus: int, jobs: int) -> int:
    """GPUs of one job when all get the same: ``ceil(R / N)`` (section 5.1).

    Rounded up as printed, so the shares of all jobs may be more than there are; it is the
    yardstick of a slowdown, not an allocation.
    """
    return math.ceil(gpus / max(jobs, 1))


def finish_time_ratio(completion_s: Floats, isolated_s: Floats) -> Floats:
    """Finish-time fairness of each job: at most 1 when sharing did not hurt it.

    Parameters
    ----------
    completion_s : ndarray
        From submission to end, ``[N]``.
    isolated_s : ndarray
        Run time with the job's equal share of the cluster to itself, ``[N]``.
    """
    return completion_s / isolated_s


def compute_unfair_share(ratios: Floats) -> float:
    """Share of jobs that a private part of the cluster would have served sooner."""
    return float((ratios > 1.0 + 1e-9).mean())
