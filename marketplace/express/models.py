"""The prompt bank: who lends prompts, which there are, and what lookups found."""

from __future__ import annotations

from typing import Any

from django.conf import settings
from django.db import models
from django.db.models import Q

from marketplace.common.models import IdField


class Sharing(models.TextChoices):
    """Who may start from the prompts that an organisation tunes."""

    NOBODY = "nobody", "Nobody: no prompt is stored"
    PRIVATE = "private", "Your own jobs"
    EVERYBODY = "everybody", "Everybody's jobs on the same base model"


class BankConsent(models.Model):
    """What an organisation agreed to; without a row, nothing."""

    organisation = models.OneToOneField(
        "accounts.Organisation", primary_key=True, on_delete=models.PROTECT, related_name="+"
    )
    sharing = models.CharField(max_length=12, choices=Sharing.choices, default=Sharing.NOBODY)
    given_by = models.ForeignKey(
        settings.AUTH_USER_MODEL, on_delete=models.PROTECT, null=True, related_name="+"
    )
    given_at = models.DateTimeField()

    organisation_id: str

    def __str__(self) -> str:
        return f"{self.organisation_id}: {self.sharing}"


class BankPrompt(models.Model):
    """One tuned prompt that jobs may start from: its numbers, and no text of its owner."""

    id = IdField(prefix="prompt")
    organisation = models.ForeignKey(
        "accounts.Organisation", on_delete=models.PROTECT, related_name="+", db_index=False
    )
    #: The job that tuned it.
    job_id = models.CharField(max_length=40, unique=True)
    #: Source and revision of the base model: zones with the same one share the bank.
    base_model = models.CharField(max_length=400)
    is_shared = models.BooleanField()
    virtual_tokens = models.PositiveIntegerField()
    width = models.PositiveIntegerField()
    #: ``float32[virtual_tokens, width]``, little-endian; empty once withdrawn.
    values = models.BinaryField()
    #: SHA-256 of the values.
    sha256 = models.CharField(max_length=64)
    #: ``float32[task_features.WIDTH]``: what its task is about.
    features = models.BinaryField()
    created_at = models.DateTimeField()
    withdrawn_at = models.DateTimeField(null=True)

    #: Jobs it was a candidate of, and jobs that started from it.
    offered = models.PositiveIntegerField(default=0)
    hits = models.PositiveIntegerField(default=0)
    #: Sum over its hits of the loss that the job's own prompt had more.
    gain = models.FloatField(default=0.0)

    organisation_id: str

    class Meta:
        indexes = [
            models.Index(
                fields=["base_model", "virtual_tokens", "is_shared"],
                condition=Q(withdrawn_at__isnull=True),
                name="express_prompt_candidates",
            ),
            models.Index(fields=["organisation", "-created_at"], name="express_prompt_of"),
        ]
        constraints = [
            models.UniqueConstraint(
                fields=["base_model", "sha256"],
                condition=Q(withdrawn_at__isnull=True),
                name="express_prompt_once",
            ),
        ]

    def __str__(self) -> str:
        return self.id


class LookupRecord(models.Model):
    """What the bank did for one finished soft-prompt job, and what the job gave to the bank."""

    job_id = models.CharField(max_length=40, primary_key=True)
    #: ``workers.protocol.LookupFigures`` as JSON; null: nothing was looked up.
    lookup: Any = models.JSONField(null=True)
    #: The prompt that the job started from, if it was one of the bank's.
    started_from = models.ForeignKey(
        BankPrompt, on_delete=models.PROTECT, null=True, related_name="records"
    )
    #: Why its own prompt is not in the bank; empty where it is.
    left_out = models.CharField(max_length=200, default="", blank=True)
    recorded_at = models.DateTimeField()

    started_from_id: str | None

    def __str__(self) -> str:
        return f"lookup of {self.job_id}"
