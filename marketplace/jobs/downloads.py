"""A job's files as its owner gets them, whole or in part."""

from __future__ import annotations

from datetime import datetime

from marketplace.common.downloads import FileDownload
from marketplace.common.errors import NotFound
from marketplace.jobs.models import Artifact, Checkpoint, Job
from marketplace.jobs.selectors import list_job_checkpoints
from marketplace.jobs.services import note_adapter_use


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
    """
    found = list_job_checkpoints(job).filter(pk=checkpoint_id.replace("\0", "")).first()
    if found is None:
        raise NotFound(
            "unknown_checkpoint",
            "The job has no such checkpoint, or a newer one has replaced it.",
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
