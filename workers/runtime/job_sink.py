"""What a running job tells, and whom."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Protocol

from workers.protocol.reports import Fault, JobFigures, ProgressEvent


@dataclass(frozen=True, slots=True, kw_only=True)
class JobSummary(JobFigures):
    """Where a job on this node stands, and what of it is on disk."""

    job_id: str
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
