"""A job's files as its owner gets them, whole or in part."""

from __future__ import annotations

from datetime import datetime

from marketplace.common.downloads import FileDownload
from marketplace.common.errors import Conflict, NotFound
from marketplace.jobs.models import Artifact, Checkpoint, Job
from marketplace.jobs.services import note_adapter_use
from marketplace.jobs.services.uploads import CHECKPOINTS_KEPT


def get_artifact(job: Job) -> Artifact:
    """The adapter of a job that has succeeded.

    Raises
    ------
    NotFound
        ``no_adapter``.
    """
    artifact = Artifact.objects.filter(job=job).first()
    if artifact is None:
        raise NotFound(
            "no_adapter",
            f"The job is {job.status}; its adapter is here once it has succeeded.",
            extra={"status": job.status},
        )
    return artifact


def get_checkpoint(job: Job, checkpoint_id: str) -> Checkpoint:
    """A checkpoint whose file is kept.

    Raises
    ------
    NotFound
        ``unknown_checkpoint``.
    Conflict
        ``checkpoint_replaced``.
    """
    found = job.checkpoints.filter(pk=checkpoint_id.replace("\0", "")).first()
    if found is None:
        raise NotFound("unknown_checkpoint", "The job has no such checkpoint.")
    if not found.file:
        raise Conflict(
            "checkpoint_replaced",
            f"Of a job's checkpoints the newest {CHECKPOINTS_KEPT} are kept, and that of step "
            f"{found.step} is not among them any more. GET /api/jobs/{job.pk}/checkpoints lists "
            "those there are; without a checkpoint, it is the finished adapter.",
        )
    return found


def open_adapter(
    artifact: Artifact, *, name: str, range_header: str | None, now: datetime
) -> FileDownload:
    """A zip that ``peft`` reads once unpacked; to take it is to use it."""
    note_adapter_use(job_ids=[artifact.job_id], now=now)
    return FileDownload(
        artifact.file.open("rb"),
        size=artifact.bytes,
        sha256=artifact.sha256,
        range_header=range_header,
        content_type="application/zip",
        name=f"{name}-adapter.zip",
    )


def open_checkpoint(
    checkpoint: Checkpoint, *, name: str, range_header: str | None, now: datetime
) -> FileDownload:
    """An adapter as it was at a step; to take it is to use the job's result."""
    note_adapter_use(job_ids=[checkpoint.job_id], now=now)
    return FileDownload(
        checkpoint.file.open("rb"),
        size=checkpoint.bytes,
        sha256=checkpoint.sha256,
        range_header=range_header,
        name=f"{name}-step-{checkpoint.step}.safetensors",
    )
