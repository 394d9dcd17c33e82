"""Fault checks: a node trains steps again after which another one blamed the job's input."""

from __future__ import annotations

from dataclasses import dataclass

from workers.protocol.job_spec import CheckpointRef, JobSpec


@dataclass(frozen=True, slots=True)
class FaultCheckTask:
    """Steps to train again; the job's id is the check's own."""

    job: JobSpec
    #: The fault shows after this step at the latest, or not at all.
    until_step: int
    #: ``None``: from what the job begins with.
    resume_from: CheckpointRef | None = None


@dataclass(frozen=True, slots=True)
class FaultCheckResult:
    #: The sentence by which the input is at fault here, too; empty: the steps can be trained.
    fault: str = ""
    #: The last step that could be trained before the fault; ``None``: it is not said.
    step: int | None = None
