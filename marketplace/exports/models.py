"""Adapters in other forms, made by nodes, and what was pushed to a hub."""

from __future__ import annotations

from django.conf import settings
from django.db import models
from django.db.models import Q

from marketplace.common.encryption import SealedTextField
from marketplace.common.models import IdField
from marketplace.jobs.models import Errand, ErrandState
from workers.protocol.exports import F16, MERGED, Q8_0

#: Of the references of holds for exports.
REFERENCE_PREFIX = "export:"


class ExportForm(models.TextChoices):
    MERGED = MERGED, "Merged weights (safetensors)"
    GGUF_F16 = F16, "GGUF, F16"
    GGUF_Q8_0 = Q8_0, "GGUF, Q8_0"


class ExportStatus(models.TextChoices):
    """What an export's owner sees of it."""

    #: No node has been asked yet.
    WAITING = "waiting", "Waiting"
    ASKED = "asked", "Being made"
    READY = "ready", "Ready"
    FAILED = "failed", "Failed"
    #: Its file is deleted.
    EXPIRED = "expired", "Expired"


class Export(Errand):
    """One adapter in one form: a file that a node makes, paid when it is there.

    ``file`` is empty until it is ready, and once it is deleted.
    """

    organisation = models.ForeignKey(
        "accounts.Organisation", on_delete=models.PROTECT, related_name="+"
    )
    asked_by = models.ForeignKey(
        settings.AUTH_USER_MODEL, on_delete=models.PROTECT, null=True, related_name="+"
    )
    job = models.ForeignKey("jobs.Job", on_delete=models.PROTECT, related_name="exports")
    #: Which of the job's: the finished one or a checkpoint's.
    artifact = models.ForeignKey("jobs.Artifact", on_delete=models.PROTECT, related_name="+")
    form = models.CharField(max_length=12, choices=ExportForm.choices)
    #: Held when it was asked for, and paid when it is ready.
    price_micros = models.BigIntegerField()

    organisation_id: str
    asked_by_id: str | None
    job_id: str

    def __str__(self) -> str:
        return f"{self.job_id} as {self.form}"

    @property
    def status(self) -> ExportStatus:
        if self.state == ErrandState.DONE:
            return ExportStatus.READY if self.file else ExportStatus.EXPIRED
        return ExportStatus(self.state)

    @property
    def hold_reference(self) -> str:
        return f"{REFERENCE_PREFIX}{self.id}"


class PushStatus(models.TextChoices):
    WAITING = "waiting", "Waiting"
    PUSHED = "pushed", "Pushed"
    FAILED = "failed", "Failed"


class HubPush(models.Model):
    """An adapter on its way to a repository of its owner's on a model hub."""

    id = IdField(prefix="push")
    organisation = models.ForeignKey(
        "accounts.Organisation", on_delete=models.PROTECT, related_name="+"
    )
    asked_by = models.ForeignKey(
        settings.AUTH_USER_MODEL, on_delete=models.PROTECT, null=True, related_name="+"
    )
    job = models.ForeignKey("jobs.Job", on_delete=models.PROTECT, related_name="pushes")
    #: The file that is pushed; null: the adapter itself.
    export = models.ForeignKey(Export, on_delete=models.PROTECT, null=True, related_name="+")
    #: ``name/repository``.
    repository = models.CharField(max_length=200)
    is_private = models.BooleanField(default=True)
    #: Of the hub, encrypted; empty once it is not needed any more.
    token = SealedTextField(default="", blank=True)
    status = models.CharField(max_length=8, choices=PushStatus.choices, default=PushStatus.WAITING)
    url = models.CharField(max_length=500, default="", blank=True)
    reason = models.CharField(max_length=500, default="", blank=True)
    created_at = models.DateTimeField()
    finished_at = models.DateTimeField(null=True)

    organisation_id: str
    job_id: str
    export_id: str | None

    class Meta:
        constraints = [
            models.CheckConstraint(
                condition=Q(status="waiting") | Q(token=""), name="exports_token_is_forgotten"
            ),
        ]

    def __str__(self) -> str:
        return f"{self.job_id} to {self.repository}"
