"""What nodes send back as files: checkpoints and the finished adapter."""

from __future__ import annotations

from typing import Any

from django.db import models
from django.db.models import Q

from marketplace.common.models import IdField
from marketplace.jobs.models.job import Job
from marketplace.jobs.models.slices import Slice


def checkpoint_path(checkpoint: Checkpoint, _filename: str) -> str:
    return f"jobs/{checkpoint.job_id}/checkpoints/{checkpoint.pk}.safetensors"


def artifact_path(artifact: Artifact, _filename: str) -> str:
    return f"jobs/{artifact.job_id}/adapters/{artifact.pk}.zip"


class Checkpoint(models.Model):
    """Adapter, optimizer and data position after a step: where the job can go on."""

    id = IdField(prefix="ckpt")
    # An index below begins with it.
    job = models.ForeignKey(
        Job, on_delete=models.PROTECT, related_name="checkpoints", db_index=False
    )
    # An index below begins with it.
    slice = models.ForeignKey(
        Slice, on_delete=models.PROTECT, related_name="checkpoints", db_index=False
    )
    step = models.PositiveIntegerField()
    #: Empty once a newer checkpoint made it superfluous.
    file = models.FileField(upload_to=checkpoint_path, max_length=255, blank=True)
    sha256 = models.CharField(max_length=64)
    bytes = models.PositiveBigIntegerField()
    train_loss = models.FloatField(null=True)
    valid_loss = models.FloatField(null=True)
    created_at = models.DateTimeField()

    job_id: str
    slice_id: str

    class Meta:
        constraints = [
            models.UniqueConstraint(fields=["slice", "step"], name="jobs_checkpoint_once")
        ]
        indexes = [models.Index(fields=["job", "-step"], name="jobs_checkpoint_newest")]

    def __str__(self) -> str:
        return f"{self.job_id} step {self.step}"


class FinishedArtifacts(models.Manager[Any]):
    """Finished adapters that were not deleted."""

    def get_queryset(self) -> models.QuerySet[Any]:
        return super().get_queryset().filter(checkpoint=None, deleted_at=None)


class Artifact(models.Model):
    """The finished adapter of a job, or that of a checkpoint, as one zip of its directory."""

    id = IdField(prefix="art")
    job = models.ForeignKey(Job, on_delete=models.PROTECT, related_name="artifacts")
    #: Whose adapter it is; null: the finished one.
    checkpoint = models.ForeignKey(
        Checkpoint, on_delete=models.PROTECT, null=True, related_name="artifacts"
    )
    slice = models.ForeignKey(Slice, on_delete=models.PROTECT, related_name="+")
    #: Empty once it is deleted.
    file = models.FileField(upload_to=artifact_path, max_length=255, blank=True)
    sha256 = models.CharField(max_length=64)
    #: Of names and values alone: a copy is found however its file is laid out.
    weights_sha256 = models.CharField(max_length=64, default="", db_index=True)
    bytes = models.PositiveBigIntegerField()
    created_at = models.DateTimeField()
    #: When somebody last asked it, began a job with it, took it or had it exported; to the hour.
    used_at = models.DateTimeField(null=True, editable=False)
    #: When a model server was first given a copy.
    served_at = models.DateTimeField(null=True, editable=False)
    #: Nobody may use it any more; its content goes once nothing needs it (``accounts.erasure``).
    deleted_at = models.DateTimeField(null=True, editable=False)

    job_id: str
    checkpoint_id: str | None
    slice_id: str

    #: Deleted ones and those of checkpoints as well.
    everything = models.Manager()
    objects = FinishedArtifacts()

    class Meta:
        default_manager_name = "objects"
        constraints = [
            models.UniqueConstraint(
                fields=["job"], condition=Q(checkpoint=None), name="jobs_artifact_once"
            )
        ]
        indexes = [models.Index(fields=["created_at"], name="jobs_artifact_newest")]

    def __str__(self) -> str:
        return f"adapter of {self.job_id}"
