"""The work of an admitted bid: its plan, where it stands, how it ended."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pgtrigger
from django.conf import settings
from django.contrib.postgres.indexes import GinIndex
from django.db import models
from django.db.models import Q

from marketplace.common.ids import new_id
from marketplace.common.models import ValueField
from marketplace.jobs.models.datasets import Dataset
from marketplace.jobs.models.states import FaultOf, JobStatus
from marketplace.jobs.usual_terms import USUAL_TERMS
from workers.protocol.job_terms import JobTerms
from workers.protocol.starts import Start

if TYPE_CHECKING:
    from marketplace.jobs.models.journal import JobEvent
    from marketplace.jobs.models.results import Checkpoint
    from marketplace.jobs.models.slices import Slice


def job_id() -> str:
    """``ftjob-`` as clients of other fine-tuning services know it."""
    return new_id("ftjob").replace("_", "-", 1)


class Job(models.Model):
    """An admitted bid's work: its plan, where it stands, and how it ended."""

    id = models.CharField(primary_key=True, max_length=40, default=job_id, editable=False)
    #: The bid it came from; the auction is above this app, so no foreign key.
    bid_id = models.CharField(max_length=40, unique=True)
    organisation = models.ForeignKey(
        "accounts.Organisation", on_delete=models.PROTECT, related_name="jobs", db_index=False
    )
    created_by = models.ForeignKey(
        settings.AUTH_USER_MODEL, on_delete=models.PROTECT, null=True, related_name="+"
    )
    zone = models.ForeignKey("fleet.Zone", on_delete=models.PROTECT, related_name="jobs")
    dataset = models.ForeignKey(Dataset, on_delete=models.PROTECT, related_name="jobs")
    validation_dataset = models.ForeignKey(
        Dataset, on_delete=models.PROTECT, null=True, blank=True, related_name="+"
    )
    #: A vendor prepares its data: no slice is opened before they are there.
    awaits_data = models.BooleanField(default=False, db_default=False)
    #: A node blamed its input: no slice is opened before a fault check has decided.
    awaits_fault_check = models.BooleanField(default=False, db_default=False)
    #: Its data and its adapter go to nodes of verified providers only.
    verified_only = models.BooleanField(default=False, db_default=False)
    #: The owner's paused job that it goes on with.
    resumed_job_id = models.CharField(max_length=40, null=True)
    name = models.CharField(max_length=64)
    #: What the job is. ``dataset``, ``validation_dataset``, ``verified_only`` and
    #: ``resumed_job_id`` follow from it, by ``derive_columns``; of prepared data,
    #: ``give_prepared_data``.
    terms: JobTerms = ValueField(kind=JobTerms, usual=USUAL_TERMS)
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
    #: It succeeded before its last step because it learnt no more.
    stopped_early = models.BooleanField(default=False, db_default=False)
    #: Step whose weights the adapter has, where early stopping chose them.
    best_step = models.PositiveIntegerField(null=True)
    #: When the job will end at its present speed.
    eta_at = models.DateTimeField(null=True)
    progressed_at = models.DateTimeField(null=True)

    #: The auction should find it new cells.
    needs_replan = models.BooleanField(default=False)
    replan_reason = models.CharField(max_length=255, default="", blank=True)
    replan_wanted_at = models.DateTimeField(null=True)
    #: Slices lost or failed by the market's fault since the last progress beyond a checkpoint.
    system_faults = models.PositiveIntegerField(default=0)
    #: Nodes that were gone when their cells came, or under which the plan ran out; oldest first.
    blamed_nodes = models.JSONField(default=list)
    #: Who caused the failure; empty unless failed.
    fault = models.CharField(max_length=8, choices=FaultOf.choices, default="", blank=True)
    #: One sentence for the owner.
    failure_reason = models.CharField(max_length=1000, default="", blank=True)

    created_at = models.DateTimeField()
    started_at = models.DateTimeField(null=True)
    finished_at = models.DateTimeField(null=True)
    #: When its money was settled.
    settled_at = models.DateTimeField(null=True)
    #: Has its events up to when they were archived; null: they are rows.
    event_file = models.ForeignKey(
        "jobs.EventFile", null=True, on_delete=models.PROTECT, related_name="+", db_index=False
    )
    #: Its deletion was asked for (``accounts.erasure``).
    deleted_at = models.DateTimeField(null=True, editable=False)

    ACTIVE = (JobStatus.QUEUED, JobStatus.RUNNING, JobStatus.MOVING)
    #: Ended at its owner's wish.
    STOPPED = (JobStatus.CANCELLED, JobStatus.PAUSED)
    ENDED = (JobStatus.SUCCEEDED, JobStatus.FAILED, *STOPPED)
    #: Waits for nothing but a cell.
    MAY_START = Q(awaits_data=False, awaits_fault_check=False)

    zone_id: str
    organisation_id: str
    created_by_id: str | None
    dataset_id: str
    validation_dataset_id: str | None
    event_file_id: int | None
    checkpoints: models.Manager[Checkpoint]
    slices: models.Manager[Slice]
    events: models.Manager[JobEvent]

    class Meta:
        constraints = [
            models.CheckConstraint(
                condition=Q(
                    status__in=["succeeded", "failed", "cancelled", "paused"],
                    finished_at__isnull=False,
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
            models.Index(fields=["organisation", "-id"], name="jobs_job_of"),
            models.Index(fields=["organisation", "finished_at"], name="jobs_job_finished"),
            models.Index(
                fields=["organisation"], condition=Q(settled_at__isnull=True), name="jobs_job_open"
            ),
            # What retention may delete, however much it did.
            models.Index(
                fields=["organisation", "finished_at"],
                condition=Q(deleted_at__isnull=True),
                name="jobs_job_kept",
            ),
            models.Index(
                fields=["zone", "finished_at"],
                condition=Q(deleted_at__isnull=True),
                name="jobs_job_kept_in_zone",
            ),
            models.Index(fields=["zone"], condition=Q(needs_replan=True), name="jobs_job_replan"),
            # The work a zone has now, however many jobs it has had, and what ended since.
            models.Index(
                fields=["zone"],
                condition=Q(status__in=["queued", "running", "moving"]),
                name="jobs_job_active",
            ),
            models.Index(
                fields=["zone", "finished_at"],
                condition=Q(finished_at__isnull=False),
                name="jobs_job_ended",
            ),
            models.Index(
                fields=["finished_at"],
                condition=Q(finished_at__isnull=False, settled_at__isnull=True),
                name="jobs_job_unsettled",
            ),
        ]
        triggers = [
            # Its events are nowhere else.
            pgtrigger.Protect(
                name="keep_event_file",
                operation=pgtrigger.Update,
                condition=pgtrigger.Condition(
                    "OLD.event_file_id IS NOT NULL"
                    " AND OLD.event_file_id IS DISTINCT FROM NEW.event_file_id"
                ),
            )
        ]

    def __str__(self) -> str:
        return self.name

    @property
    def is_active(self) -> bool:
        return self.status in self.ACTIVE

    @property
    def start(self) -> Start | None:
        """What it begins with, if not with fresh weights."""
        return self.terms.start

    @property
    def has_done_all_steps(self) -> bool:
        """Whether only its last evaluation, its samples and its adapter are missing."""
        return self.total_steps is not None and self.step >= self.total_steps > 0

    def node_in(self, slot: int) -> str | None:
        """The node of the job's cell in a slot."""
        return next((node for at, node in self.cells if at == slot), None)

    def has_cells_on(self, node_id: str, *, from_slot: int) -> bool:
        """Whether the job has a cell of a node in a slot or after it."""
        return any(at >= from_slot and node == node_id for at, node in self.cells)

    @property
    def last_slot(self) -> int | None:
        return self.cells[-1][0] if self.cells else None
