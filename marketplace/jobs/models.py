"""Data sets, jobs, and everything that happened to them."""

from __future__ import annotations

from typing import Any

import pgtrigger
from django.conf import settings
from django.contrib.postgres.indexes import GinIndex
from django.db import models
from django.db.models import Q
from django.db.models.functions import Now

from marketplace.common.ids import new_id
from marketplace.common.models import IdField


def job_id() -> str:
    """``ftjob-`` as clients of other fine-tuning services know it."""
    return new_id("ftjob").replace("_", "-", 1)


class JobStatus(models.TextChoices):
    #: Waits for its next cell.
    QUEUED = "queued", "Queued"
    RUNNING = "running", "Running"
    #: Off one node, not yet on another.
    MOVING = "moving", "Moving"
    SUCCEEDED = "succeeded", "Succeeded"
    FAILED = "failed", "Failed"
    CANCELLED = "cancelled", "Cancelled"


class SliceStatus(models.TextChoices):
    #: The lease is current.
    OPEN = "open", "Open"
    FINISHED = "finished", "Finished"
    PAUSED = "paused", "Paused"
    FAILED = "failed", "Failed"
    #: The node went silent or let the lease run out.
    LOST = "lost", "Lost"
    #: The market took it back: the job was cancelled or has failed.
    REVOKED = "revoked", "Revoked"


class FaultOf(models.TextChoices):
    USER = "user", "The owner's input"
    SYSTEM = "system", "The house"


class EventKind(models.TextChoices):
    """The closed list of what can happen to a job."""

    OPENED = "opened", "Opened"
    STARTED = "started", "Started on a node"
    PAUSED = "paused", "Paused until its next slot"
    MOVING = "moving", "Leaving a node for another"
    NODE_LOST = "node_lost", "Node lost"
    FAULT = "fault", "Failed on a node"
    CHECKPOINTED = "checkpointed", "Checkpoint stored"
    REPLAN_WANTED = "replan_wanted", "Needs a new plan"
    REPLANNED = "replanned", "New plan"
    ADAPTER_STORED = "adapter_stored", "Adapter stored"
    SUCCEEDED = "succeeded", "Succeeded"
    FAILED = "failed", "Failed"
    CANCELLED = "cancelled", "Cancelled"
    SETTLED = "settled", "Settled"
    REFUNDED = "refunded", "Refunded"


def dataset_path(dataset: Dataset, _filename: str) -> str:
    return f"datasets/{dataset.organisation_id}/{dataset.pk}"


def checkpoint_path(checkpoint: Checkpoint, _filename: str) -> str:
    return f"jobs/{checkpoint.job_id}/checkpoints/{checkpoint.pk}.safetensors"


def artifact_path(artifact: Artifact, _filename: str) -> str:
    return f"jobs/{artifact.job_id}/adapters/{artifact.pk}.zip"


class Dataset(models.Model):
    """An uploaded file that was read line by line."""

    id = IdField(prefix="ds")
    organisation = models.ForeignKey(
        "accounts.Organisation", on_delete=models.PROTECT, related_name="datasets"
    )
    uploaded_by = models.ForeignKey(
        settings.AUTH_USER_MODEL, on_delete=models.PROTECT, null=True, related_name="+"
    )
    name = models.CharField(max_length=255)
    file = models.FileField(upload_to=dataset_path, max_length=255)
    sha256 = models.CharField(max_length=64)
    bytes = models.PositiveBigIntegerField()
    #: ``workers.protocol.messages.DataFormat``.
    format = models.CharField(max_length=16)
    #: Usable rows.
    rows = models.PositiveIntegerField()
    #: Counted with the tokenizer of ``zone``, over the usable rows.
    tokens = models.PositiveBigIntegerField()
    longest_row_tokens = models.PositiveIntegerField()
    zone = models.ForeignKey(
        "fleet.Zone", on_delete=models.PROTECT, null=True, blank=True, related_name="+"
    )
    faulty = models.PositiveIntegerField(default=0)
    #: Line numbers, from 1, that training leaves out.
    faulty_lines = models.JSONField(default=list)
    #: The first faults: ``LineError`` as JSON.
    errors = models.JSONField(default=list)
    created_at = models.DateTimeField()

    organisation_id: str
    zone_id: str | None

    class Meta:
        constraints = [
            models.CheckConstraint(condition=Q(rows__gt=0), name="jobs_dataset_has_rows"),
        ]
        indexes = [models.Index(fields=["organisation", "-created_at"], name="jobs_dataset_of")]

    def __str__(self) -> str:
        return self.name


class DatasetTokens(models.Model):
    """A data set's tokens, counted with another zone's tokenizer than that of its upload."""

    dataset = models.ForeignKey(Dataset, on_delete=models.CASCADE, related_name="counts")
    zone = models.ForeignKey("fleet.Zone", on_delete=models.PROTECT, related_name="+")
    tokens = models.PositiveBigIntegerField()
    longest_row_tokens = models.PositiveIntegerField()

    dataset_id: str

    class Meta:
        constraints = [
            models.UniqueConstraint(fields=["dataset", "zone"], name="jobs_dataset_tokens_once")
        ]

    def __str__(self) -> str:
        return f"{self.dataset_id} {self.tokens}"


class Job(models.Model):
    """An admitted bid's work: its plan, where it stands, and how it ended."""

    id = models.CharField(primary_key=True, max_length=40, default=job_id, editable=False)
    #: The bid it came from; the auction is above this app, so no foreign key.
    bid_id = models.CharField(max_length=40, unique=True)
    organisation = models.ForeignKey(
        "accounts.Organisation", on_delete=models.PROTECT, related_name="jobs"
    )
    created_by = models.ForeignKey(
        settings.AUTH_USER_MODEL, on_delete=models.PROTECT, null=True, related_name="+"
    )
    zone = models.ForeignKey("fleet.Zone", on_delete=models.PROTECT, related_name="jobs")
    dataset = models.ForeignKey(Dataset, on_delete=models.PROTECT, related_name="jobs")
    validation_dataset = models.ForeignKey(
        Dataset, on_delete=models.PROTECT, null=True, blank=True, related_name="+"
    )
    name = models.CharField(max_length=64)
    #: ``{"adapter": AdapterSpec, "training": TrainingSpec}`` as JSON.
    spec = models.JSONField()
    status = models.CharField(max_length=12, choices=JobStatus.choices, default=JobStatus.QUEUED)
    #: ``[[slot, node id], ...]`` in slot order, past ones included.
    cells = models.JSONField(default=list)
    deadline_at = models.DateTimeField()
    #: End of the last cell.
    finish_planned_at = models.DateTimeField()
    price_micros = models.BigIntegerField()

    #: Number of the last thing published about the job; rises by one.
    seq = models.PositiveBigIntegerField(default=0)
    step = models.PositiveIntegerField(default=0)
    #: Null until a node has said.
    total_steps = models.PositiveIntegerField(null=True)
    epoch = models.FloatField(default=0.0)
    samples_done = models.PositiveBigIntegerField(default=0)
    #: Step of the newest checkpoint: what a dead node cannot take away.
    checkpoint_step = models.PositiveIntegerField(default=0)
    first_train_loss = models.FloatField(null=True)
    train_loss = models.FloatField(null=True)
    valid_loss_before = models.FloatField(null=True)
    valid_loss = models.FloatField(null=True)
    learning_rate = models.FloatField(null=True)
    grad_norm = models.FloatField(null=True)
    tokens_per_s = models.FloatField(null=True)
    samples_per_s = models.FloatField(null=True)
    memory_gb = models.FloatField(null=True)
    trained_tokens = models.PositiveBigIntegerField(default=0)
    #: When the job will end at its present speed.
    eta_at = models.DateTimeField(null=True)
    progressed_at = models.DateTimeField(null=True)

    #: The auction should find it new cells.
    needs_replan = models.BooleanField(default=False)
    replan_reason = models.CharField(max_length=255, default="", blank=True)
    replan_wanted_at = models.DateTimeField(null=True)
    #: Slices lost or failed by the house's fault since the last progress beyond a checkpoint.
    system_faults = models.PositiveIntegerField(default=0)
    #: Who caused the failure; empty unless failed.
    fault = models.CharField(max_length=8, choices=FaultOf.choices, default="", blank=True)
    #: One sentence for the owner.
    failure_reason = models.CharField(max_length=1000, default="", blank=True)

    created_at = models.DateTimeField()
    started_at = models.DateTimeField(null=True)
    finished_at = models.DateTimeField(null=True)
    #: When its money was settled.
    settled_at = models.DateTimeField(null=True)

    ACTIVE = (JobStatus.QUEUED, JobStatus.RUNNING, JobStatus.MOVING)

    zone_id: str
    organisation_id: str
    dataset_id: str
    checkpoints: models.Manager[Checkpoint]
    slices: models.Manager[Slice]
    events: models.Manager[JobEvent]

    class Meta:
        constraints = [
            models.CheckConstraint(
                condition=Q(
                    status__in=["succeeded", "failed", "cancelled"], finished_at__isnull=False
                )
                | Q(status__in=["queued", "running", "moving"], finished_at__isnull=True),
                name="jobs_job_finished_when_ended",
            ),
            models.CheckConstraint(
                condition=Q(status="failed", fault__in=["user", "system"])
                | (~Q(status="failed") & Q(fault="")),
                name="jobs_job_failed_has_fault",
            ),
            models.CheckConstraint(
                condition=Q(settled_at__isnull=True) | Q(finished_at__isnull=False),
                name="jobs_job_settled_after_end",
            ),
        ]
        indexes = [
            # "Which jobs have a cell in this slot", asked every second.
            GinIndex(
                fields=["cells"],
                opclasses=["jsonb_path_ops"],
                condition=Q(status__in=["queued", "running", "moving"]),
                name="jobs_job_cells",
            ),
            models.Index(fields=["organisation", "-created_at"], name="jobs_job_of"),
            models.Index(fields=["zone"], condition=Q(needs_replan=True), name="jobs_job_replan"),
            models.Index(
                fields=["finished_at"],
                condition=Q(finished_at__isnull=False, settled_at__isnull=True),
                name="jobs_job_unsettled",
            ),
        ]

    def __str__(self) -> str:
        return self.name

    @property
    def is_active(self) -> bool:
        return self.status in self.ACTIVE

    @property
    def training(self) -> dict[str, Any]:
        return self.spec["training"]

    def node_in(self, slot: int) -> str | None:
        """The node of the job's cell in a slot."""
        return next((node for at, node in self.cells if at == slot), None)

    @property
    def last_slot(self) -> int | None:
        return self.cells[-1][0] if self.cells else None


class Checkpoint(models.Model):
    """Adapter, optimizer and data position after a step: where the job can go on."""

    id = IdField(prefix="ckpt")
    job = models.ForeignKey(Job, on_delete=models.PROTECT, related_name="checkpoints")
    slice = models.ForeignKey("Slice", on_delete=models.PROTECT, related_name="checkpoints")
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


class Slice(models.Model):
    """One job's share of one or more consecutive slots on one node, held under a lease."""

    id = IdField(prefix="slice")
    job = models.ForeignKey(Job, on_delete=models.PROTECT, related_name="slices")
    node = models.ForeignKey("fleet.Node", on_delete=models.PROTECT, related_name="slices")
    lease_token = models.CharField(max_length=64, unique=True)
    status = models.CharField(max_length=12, choices=SliceStatus.choices, default=SliceStatus.OPEN)
    first_slot = models.BigIntegerField()
    #: The latest slot it was given; consecutive cells on a node go on under one lease.
    last_slot = models.BigIntegerField()
    lease_expires_at = models.DateTimeField()
    #: Of the newest progress event taken in.
    last_seq = models.PositiveBigIntegerField(default=0)
    #: When the node first showed that it works on it.
    acknowledged_at = models.DateTimeField(null=True)
    #: Heartbeats in a row that did not name an acknowledged lease.
    heartbeats_missed = models.PositiveIntegerField(default=0)
    speed_observed_at = models.DateTimeField(null=True)
    opened_at = models.DateTimeField()
    closed_at = models.DateTimeField(null=True)
    #: ``SliceResult`` as JSON.
    result = models.JSONField(null=True)
    #: Why it ended, for the job's page.
    reason = models.CharField(max_length=1000, default="", blank=True)

    job_id: str
    node_id: str

    class Meta:
        constraints = [
            models.UniqueConstraint(
                fields=["job"], condition=Q(status="open"), name="jobs_slice_one_open_per_job"
            ),
            models.CheckConstraint(
                condition=Q(status="open", closed_at__isnull=True)
                | (~Q(status="open") & Q(closed_at__isnull=False)),
                name="jobs_slice_closed_when_ended",
            ),
        ]
        indexes = [
            models.Index(fields=["node"], condition=Q(status="open"), name="jobs_slice_open"),
            models.Index(
                fields=["lease_expires_at"], condition=Q(status="open"), name="jobs_slice_expiry"
            ),
        ]

    def __str__(self) -> str:
        return f"{self.job_id} on {self.node_id}"


class NodePlan(models.Model):
    """A ``SlotPlan`` as it was or will be sent to a node."""

    node = models.ForeignKey("fleet.Node", on_delete=models.PROTECT, related_name="plans")
    slot = models.BigIntegerField()
    #: From 1; a later one replaces those before it.
    revision = models.PositiveIntegerField()
    plan = models.JSONField()
    #: Lease tokens in the plan, sorted: whether a plan changed is seen from these.
    lease_tokens = models.JSONField()
    ends_at = models.DateTimeField()
    made_at = models.DateTimeField()
    sent_at = models.DateTimeField(null=True)

    node_id: str

    class Meta:
        constraints = [
            models.UniqueConstraint(fields=["node", "slot", "revision"], name="jobs_node_plan_once")
        ]
        indexes = [
            models.Index(
                fields=["made_at"], condition=Q(sent_at__isnull=True), name="jobs_plan_unsent"
            )
        ]

    def __str__(self) -> str:
        return f"{self.node_id} slot {self.slot}.{self.revision}"


class MetricPoint(models.Model):
    """One progress event of a job, as its charts need it."""

    job = models.ForeignKey(Job, on_delete=models.PROTECT, related_name="metrics")
    slice = models.ForeignKey(Slice, on_delete=models.PROTECT, related_name="metrics")
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


class Artifact(models.Model):
    """The finished adapter, as one zip of its directory."""

    id = IdField(prefix="art")
    job = models.OneToOneField(Job, on_delete=models.PROTECT, related_name="artifact")
    slice = models.ForeignKey(Slice, on_delete=models.PROTECT, related_name="+")
    file = models.FileField(upload_to=artifact_path, max_length=255)
    sha256 = models.CharField(max_length=64)
    bytes = models.PositiveBigIntegerField()
    created_at = models.DateTimeField()

    job_id: str
    slice_id: str

    def __str__(self) -> str:
        return f"adapter of {self.job_id}"


class JobEvent(models.Model):
    """Something that happened to a job. Append-only, by trigger."""

    job = models.ForeignKey(Job, on_delete=models.PROTECT, related_name="events")
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
