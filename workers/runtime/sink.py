"""What a running job tells, and whom."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Protocol

from workers.protocol.messages import Fault, ProgressEvent, RowOutlier


@dataclass(frozen=True, slots=True)
class JobSummary:
    """Where a job stands; the numbers of a ``SliceResult``."""

    job_id: str
    step: int
    total_steps: int
    samples_done: int
    first_train_loss: float | None = None
    last_train_loss: float | None = None
    valid_loss_before: float | None = None
    valid_loss_after: float | None = None
    trained_tokens: int = 0
    peak_memory_gb: float | None = None
    outliers: tuple[RowOutlier, ...] = ()
    #: The newest whole checkpoint on this node's disk.
    checkpoint_path: Path | None = None
    checkpoint_step: int | None = None


class JobSink(Protocol):
    """Called from the loop's thread; must not block.

    A job ends with exactly one of ``paused``, ``finished`` and ``failed``, unless it was
    detached without a checkpoint: then with none.
    """

    def progress(self, event: ProgressEvent) -> None: ...

    def checkpointed(self, path: Path, step: int) -> None: ...

    def paused(self, summary: JobSummary) -> None: ...

    def finished(self, adapter_dir: Path, summary: JobSummary) -> None: ...

    def failed(self, fault: Fault, reason: str, summary: JobSummary) -> None: ...
