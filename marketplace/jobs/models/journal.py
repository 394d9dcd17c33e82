"""What happened to a job: its measurements and its events."""

from __future__ import annotations

from typing import Any

import pgtrigger
from django.db import models
from django.db.models import Q
from django.db.models.functions import Now

from marketplace.common.archive_files import ArchiveFile
from marketplace.jobs.models.job import Job
from marketplace.jobs.models.slices import Slice
from marketplace.jobs.models.states import EventKind


class MetricPoint(models.Model):
    """One progress event of a job, as its charts need it; in the end a part of a ``LossCurve``."""

    # An index below begins with it.
    job = models.ForeignKey(Job, on_delete=models.PROTECT, related_name="metrics", db_index=False)
    # An index below begins with it.
    slice = models.ForeignKey(
        Slice, on_delete=models.PROTECT, related_name="metrics", db_index=False
    )
    #: Of the progress event, per lease.
    seq = models.PositiveBigIntegerField()
    at = models.DateTimeField()
    step = models.PositiveIntegerField()
    epoch = models.FloatField()
    train_loss = models.FloatField(null=True)
    valid_loss = models.FloatField(null=True)
    learning_rate = models.FloatField(null=True)
    grad_norm = models.FloatField(null=True)
    tokens_per_s = models.FloatField(null=True)
    samples_per_s = models.FloatField(null=True)
    memory_gb = models.FloatField(null=True)
    #: Lines of the log stream.
    log = models.JSONField(default=list)

    job_id: str
    slice_id: str

    class Meta:
        constraints = [
            models.UniqueConstraint(fields=["slice", "seq"], name="jobs_metric_point_once")
        ]
        indexes = [models.Index(fields=["job", "id"], name="jobs_metric_series")]

    def __str__(self) -> str:
        return f"{self.job_id} step {self.step}"


class LossCurve(models.Model):
    """The measurements of a job whose money is settled: one compressed file in place of points."""

    job = models.OneToOneField(Job, on_delete=models.PROTECT, primary_key=True)
    #: See ``jobs.loss_curves``.
    file = models.FileField(max_length=255)
    points = models.PositiveIntegerField()
    bytes = models.PositiveBigIntegerField()
    archived_at = models.DateTimeField()

    job_id: str

    def __str__(self) -> str:
        return f"loss curve of {self.job_id}"


class EventFile(ArchiveFile):
    """The events of some settled jobs, in a compressed file and no longer rows; append-only.

    See ``jobs.event_files``.
    """

    jobs = models.PositiveIntegerField()
    events = models.PositiveIntegerField()

    #: Part of the signed text, so that no signature made for something else is one of a file.
    FORMAT = "finetender-job-events-1"

    def __str__(self) -> str:
        return f"events of {self.jobs} jobs"

    def describe_content(self) -> dict[str, Any]:
        return {"format": self.FORMAT, "jobs": self.jobs, "events": self.events}


class JobEvent(models.Model):
    """Something that happened to a job. Append-only, by trigger.

    Those of jobs that were settled long ago are in files (``jobs.event_files``, which reads both).
    """

    # An index below begins with it.
    job = models.ForeignKey(Job, on_delete=models.PROTECT, related_name="events", db_index=False)
    #: Of the job's stream: rises, with gaps where progress was published.
    seq = models.PositiveBigIntegerField()
    at = models.DateTimeField()
    kind = models.CharField(max_length=24, choices=EventKind.choices)
    #: ``system``, or the id of the user or node that did it.
    actor = models.CharField(max_length=40, default="system")
    message = models.CharField(max_length=1000)
    data = models.JSONField(default=dict)
    recorded_at = models.DateTimeField(db_default=Now())

    job_id: str

    class Meta:
        constraints = [
            models.UniqueConstraint(fields=["job", "seq"], name="jobs_event_seq_once"),
            models.CheckConstraint(
                condition=Q(kind__in=EventKind.values), name="jobs_event_kind_known"
            ),
        ]
        triggers = [
            pgtrigger.Protect(name="append_only", operation=pgtrigger.Update | pgtrigger.Delete)
        ]

    def __str__(self) -> str:
        return f"{self.job_id} {self.kind}"
