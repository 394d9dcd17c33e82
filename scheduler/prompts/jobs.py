"""A prompt-tuning job and how long it runs on a gang of GPUs.

What a round makes for each of hundreds of jobs is a named tuple: five times cheaper to make
than a frozen dataclass, and as immutable.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from operator import attrgetter
from typing import NamedTuple

from scheduler.prompts.rules import LaneRules

#: Two times closer than this are one: sums of floats differ in their last bits.
TOLERANCE_S = 1e-9


@dataclass(frozen=True, slots=True)
class TuningJob:
    """One prompt-tuning job (i in the paper)."""

    id: str
    base_model: str
    submitted_s: float
    #: T_slo, seconds from submission.
    slo_s: float
    #: GPU seconds it runs at most: remaining iterations times the time of one, on one GPU,
    #: from the prompt its owner gave.
    work_gpu_s: float
    #: GPU seconds of one lookup in the prompt bank of its base model; none without a bank.
    lookup_gpu_s: float = 0.0
    #: The deadline; stored, since a round sorts by it.
    due_s: float = field(init=False)

    def __post_init__(self) -> None:
        if not (math.isfinite(self.submitted_s) and 0 < self.slo_s < math.inf):
            raise ValueError(
                f"job {self.id}: an SLO is a finite number of seconds above zero, got {self.slo_s}"
            )
        if not 0 < self.work_gpu_s < math.inf:
            raise ValueError(f"job {self.id}: work_gpu_s must be above zero, got {self.work_gpu_s}")
        if not 0 <= self.lookup_gpu_s < math.inf:
            raise ValueError(f"job {self.id}: lookup_gpu_s must not be below zero")
        object.__setattr__(self, "due_s", self.submitted_s + self.slo_s)


class Course(NamedTuple):
    """How a job will run: with or without a lookup, and for how long at most."""

    looks_up: bool
    #: GPU seconds that a gang shares.
    work_gpu_s: float
    #: Seconds that it does not share.
    fixed_s: float


class Allocation(NamedTuple):
    """A job that starts now."""

    job: TuningJob
    gpus: int
    course: Course


def order_by_deadline(jobs: Iterable[TuningJob]) -> list[TuningJob]:
    """Earliest deadline first; equal deadlines in order of submission, then by id."""
    return sorted(jobs, key=attrgetter("due_s", "submitted_s", "id"))


def compute_tuning_s(work_gpu_s: float, gpus: int, rules: LaneRules) -> float:
    """Seconds of work on a gang: a nearly linear speed-up (section 2.2).

    Parameters
    ----------
    work_gpu_s : float
        Seconds on one GPU.
    gpus : int
        Size of the gang; from two on it must connect and exchange gradients.
    rules : LaneRules
        ``connect_s`` and ``exchange_share``.
    """
    if gpus == 1:
        return work_gpu_s
    return rules.connect_s + work_gpu_s * (1.0 + rules.exchange_share) / gpus


def run_s(course: Course, gpus: int, rules: LaneRules) -> float:
    """Seconds from the moment a gang is free to the end of the job."""
    if gpus == 1:
        return course.fixed_s + course.work_gpu_s
    return course.fixed_s + compute_tuning_s(course.work_gpu_s, gpus, rules)


def find_fewest_gpus(
    course: Course, until_s: float, free_at_s: Sequence[float], rules: LaneRules
) -> int:
    """Find the smallest gang that ends in time, as soon as that many GPUs are free.

    Parameters
    ----------
    course : Course
        How the job will run.
    until_s : float
        Deadline, on the clock of ``free_at_s``.
    free_at_s : sequence of float
        E: when the first, second, ... GPU is free, rising.
    rules : LaneRules
        ``max_gpus`` and the cost of a gang.

    Returns
    -------
    int
        0 when no gang ends in time.

    Notes
    -----
    A gang of k ends at ``E_k + fixed + T(k)``. Since E rises, a gang that needs k GPUs when
    they are free at ``E_j <= E_k`` needs at least as many later; so the size demanded at E_j
    is a lower bound, and the bounds rise to the smallest gang without trying every size.
    """
    most = len(free_at_s)
    most = rules.max_gpus if most > rules.max_gpus else most
    _, work_gpu_s, fixed_s = course
    size = 1
    while size <= most:
        left_s = until_s - free_at_s[size - 1] - fixed_s + TOLERANCE_S
        if (work_gpu_s if size == 1 else compute_tuning_s(work_gpu_s, size, rules)) <= left_s:
            return size
        shared_s = left_s - rules.connect_s
        if shared_s <= 0:
            return 0
        needed = math.ceil(work_gpu_s * (1.0 + rules.exchange_share) / shared_s - 1e-9)
        size = needed if needed > size + 1 else size + 1
    return 0
