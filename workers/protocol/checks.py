"""Spot checks: a node trains steps again that another one reported, or measures its result."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass

from workers.protocol.job_spec import CheckpointRef, JobSpec

#: Steps of a check at most: it takes the time of other jobs.
STEPS_MAX = 8
#: Two devices that train the same step agree within this: bfloat16, and sums in another order.
RELATIVE, ABSOLUTE = 0.05, 0.02


@dataclass(frozen=True, slots=True)
class CheckTask:
    """Steps to train again; the job's id is the check's own."""

    job: JobSpec
    #: The last step that is compared: a checkpoint or the adapter that the other node stored.
    until_step: int
    #: ``None``: from fresh weights.
    resume_from: CheckpointRef | None = None
    #: The checker tells its weights after ``until_step`` as ``weight_sketch`` makes them with it;
    #: empty: losses alone are compared.
    sketch_seed: str = ""
    #: Train nothing; tell the loss on the held-out rows of the weights in ``job.warm_start``.
    scores_start: bool = False


@dataclass(frozen=True, slots=True)
class StepLoss:
    step: int
    loss: float


@dataclass(frozen=True, slots=True)
class CheckResult:
    #: Training loss of each step that was trained again.
    losses: tuple[StepLoss, ...] = ()
    #: Of the weights after the last step; empty: it was not asked for, or not come to.
    sketch: tuple[float, ...] = ()
    #: Loss on the held-out rows; ``None``: it was not asked for, or could not be measured.
    score: float | None = None


def losses_agree(claimed: Mapping[int, float], found: Mapping[int, float]) -> bool | None:
    """Whether two accounts of the same steps agree; ``None`` without a step in both.

    They disagree where more than half of the steps in both do: one step may fall on a batch whose
    loss is hard to compute.
    """
    both = sorted(claimed.keys() & found.keys())
    if not both:
        return None
    apart = sum(not _agrees(claimed[step], found[step]) for step in both)
    return 2 * apart <= len(both)


def _agrees(claimed: float, found: float) -> bool:
    if not (math.isfinite(claimed) and math.isfinite(found)):
        return False
    return abs(claimed - found) <= ABSOLUTE + RELATIVE * abs(found)


def score_agrees(claimed: float, found: float | None) -> bool | None:
    """Whether weights are as good as was said, within what devices differ by.

    Weights that are better than was said do no harm. ``None``: nothing was measured.
    """
    if found is None or not math.isfinite(found):
        return None
    return found <= claimed + ABSOLUTE + RELATIVE * abs(found)
