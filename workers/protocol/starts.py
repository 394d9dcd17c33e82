"""What a job begins with, if not with fresh weights."""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum


class StartKind(StrEnum):
    #: The owner chose an adapter of theirs to continue.
    CONTINUED = "continued"
    #: The market offered a warm start: with the owner's own adapter, or another organisation's.
    OWN = "own"
    DONOR = "donor"


class Drop(StrEnum):
    """Why a job does without the adapter that it was sold with, at the same price."""

    #: It was withdrawn before the job began.
    WITHDRAWN = "withdrawn"
    #: Nodes failed again and again before the first checkpoint.
    UNUSABLE = "unusable"
    #: The job did all of its steps and was above its target loss: it begins again.
    FELL_BEHIND = "fell_behind"


@dataclass(frozen=True, slots=True)
class Resumption:
    """Where a job goes on that its owner had paused: it is that job, from a checkpoint of it on."""

    #: The job that was paused.
    job_id: str
    #: Empty: it had none yet, and all steps are sold.
    checkpoint_id: str = ""
    #: Of the checkpoint: only the steps after it are sold.
    step: int = 0


@dataclass(frozen=True, slots=True)
class Start:
    """The adapter that a job begins with, as it stands in bids and jobs."""

    kind: StartKind
    artifact_id: str
    #: The job that made the adapter.
    job_id: str
    #: Its second matrices are multiplied by this.
    scale: float = 1.0
    #: Of a warm start: the steps that were sold, and the validation loss at which they are enough.
    #: 0: all steps of the job.
    steps: int = 0
    target_loss: float | None = None
    #: The warm start's offer; empty where the owner chose.
    offer_id: str = ""
    #: Work units of the job without the warm start.
    cold_units: int = 0
    #: What the donor's owner gets of the price.
    royalty_micros: int = 0
    #: Set: the job begins with fresh weights and does all of its steps.
    dropped: Drop | None = None

    @property
    def sold_steps(self) -> int:
        """Steps after which the job may be done by its target loss; 0: it does all of them."""
        return 0 if self.dropped else self.steps
