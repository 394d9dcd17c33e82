"""Spot checks: a node trains a few steps again that another one reported."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass

from workers.protocol.job_spec import CheckpointRef, JobSpec

#: POST under the node's bearer token.
PATH_CHECK_RESULT = "/internal/v1/checks"
#: Steps of a check at most: it takes the time of other jobs.
STEPS_MAX = 8
#: Two devices that train the same step agree within this: bfloat16, and sums in another order.
RELATIVE, ABSOLUTE = 0.05, 0.02


@dataclass(frozen=True, slots=True)
class CheckSpec:
    """Steps to train again; the job's id is the check's own, and its files are under ``token``."""

    token: str
    #: Unix seconds; an answer after that is not waited for.
    expires_at: float
    job: JobSpec
    #: The last step that is compared: a checkpoint or the adapter that the other node stored.
    until_step: int
    #: ``None``: from fresh weights.
    resume_from: CheckpointRef | None = None
    #: The checker tells its weights after ``until_step`` as ``weight_sketch`` makes them with it;
    #: empty: losses alone are compared.
    sketch_seed: str = ""


@dataclass(frozen=True, slots=True)
class StepLoss:
    step: int
    loss: float


@dataclass(frozen=True, slots=True)
class CheckResult:
    token: str
    #: Training loss of each step that was trained again; none: it could not be.
    losses: tuple[StepLoss, ...] = ()
    #: Why it could not be.
    reason: str = ""
    #: Of the weights after the last step; empty: it was not asked for, or not come to.
    sketch: tuple[float, ...] = ()


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
