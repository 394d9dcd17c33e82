"""Keys of services that follow experiments, and the runs there that jobs of the market have."""

from __future__ import annotations

from django.contrib.postgres.fields import ArrayField
from django.db import models

from marketplace.common.encryption import SealedTextField
from marketplace.common.models import IdField


class TrackingService(models.TextChoices):
    """Where measurements are sent."""

    WANDB = "wandb", "Weights & Biases"
    MLFLOW = "mlflow", "MLflow"


class TrackingKey(models.Model):
    """An organisation's key of a service. No node ever sees it."""

    organisation = models.ForeignKey(
        "accounts.Organisation", on_delete=models.CASCADE, related_name="+"
    )
    service = models.CharField(max_length=10, choices=TrackingService)
    #: The organisation's own server; empty: the one that the market's operator chose.
    address = models.CharField(max_length=500, blank=True)
    #: Encrypted; empty: the server asks for none.
    key = SealedTextField(blank=True)
    set_by = models.ForeignKey("accounts.User", on_delete=models.PROTECT, related_name="+")
    set_at = models.DateTimeField()

    organisation_id: str
    set_by_id: str

    class Meta:
        constraints = [
            models.UniqueConstraint(fields=["organisation", "service"], name="tracking_key_once")
        ]

    def __str__(self) -> str:
        return f"{TrackingService(self.service).label} of {self.organisation_id}"


class TrackedRun(models.Model):
    """A job's run at a service, and how much of the job was sent to it."""

    id = IdField(prefix="run")
    #: Of the job's bid: the run is wanted before there is a job.
    bid_id = models.CharField(max_length=40)
    service = models.CharField(max_length=10, choices=TrackingService)
    organisation = models.ForeignKey(
        "accounts.Organisation", on_delete=models.CASCADE, related_name="+"
    )
    #: MLflow's word is experiment.
    project = models.CharField(max_length=200)
    #: Of Weights & Biases; empty: what the key's owner has as default.
    entity = models.CharField(max_length=200, blank=True)
    name = models.CharField(max_length=200, blank=True)
    tags = ArrayField(models.CharField(max_length=200), default=list)
    created_at = models.DateTimeField()
    #: The last measurement that was sent, and the last step.
    sent_point = models.BigIntegerField(default=0)
    sent_step = models.BigIntegerField(default=-1)
    #: Where the run is; empty before the first of it was sent.
    url = models.CharField(max_length=500, blank=True)
    #: Why the last try failed.
    reason = models.CharField(max_length=300, blank=True)
    #: All was sent, or nothing more is tried.
    ended_at = models.DateTimeField(null=True)

    organisation_id: str

    class Meta:
        constraints = [
            models.UniqueConstraint(fields=["bid_id", "service"], name="tracking_run_once")
        ]
        indexes = [
            models.Index(fields=["organisation", "-created_at"], name="tracking_runs_of_owner"),
        ]

    def __str__(self) -> str:
        return f"{self.service} {self.project} {self.bid_id}"
