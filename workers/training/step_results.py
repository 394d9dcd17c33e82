"""What a round of the loop brings for a job: a step, its end, an evaluation."""

from __future__ import annotations

from dataclasses import dataclass

from workers.training.evaluation import Evaluation
from workers.training.faults import TrainingFault


@dataclass(frozen=True, slots=True)
class StepResult:
    """An optimizer step was made."""

    job_id: str
    #: Steps done, this one included.
    step: int
    loss: float
    grad_norm: float
    learning_rate: float
    tokens: int
    samples: int


@dataclass(frozen=True, slots=True)
class StepFailure:
    """The job is out of the loop; its neighbours are not touched."""

    job_id: str
    fault: TrainingFault


@dataclass(frozen=True, slots=True)
class EvaluationResult:
    """An evaluation is over."""

    job_id: str
    found: Evaluation
