"""Questions on their way to a node and back. They are forgotten soon after they were paid."""

from __future__ import annotations

from typing import Any

from django.conf import settings
from django.db import models
from django.db.models import Q

from marketplace.common.models import IdField

#: Of the references of holds for questions.
REFERENCE_PREFIX = "question:"


class QuestionStatus(models.TextChoices):
    #: No node has taken it yet.
    WAITING = "waiting", "Waiting"
    WRITING = "writing", "Being answered"
    ANSWERED = "answered", "Answered"
    #: By a node, or because its time was over.
    FAILED = "failed", "Failed"
    #: Its owner left.
    CANCELLED = "cancelled", "Cancelled"


class AskedQuestion(models.Model):
    """One text to be written, what was written of it, and what it costs."""

    OPEN = (QuestionStatus.WAITING, QuestionStatus.WRITING)

    id = IdField(prefix="qst")
    organisation = models.ForeignKey(
        "accounts.Organisation", on_delete=models.PROTECT, related_name="+"
    )
    asked_by = models.ForeignKey(
        settings.AUTH_USER_MODEL, on_delete=models.PROTECT, null=True, related_name="+"
    )
    zone = models.ForeignKey("fleet.Zone", on_delete=models.PROTECT, related_name="+")
    #: The adapter that answers; null: the base model.
    artifact = models.ForeignKey(
        "jobs.Artifact", on_delete=models.PROTECT, null=True, related_name="+"
    )
    #: Names it between market and node; only the node that took it knows it.
    token = models.CharField(max_length=64, unique=True)
    #: ``QuestionTerms`` as JSON.
    terms: Any = models.JSONField()
    status = models.CharField(
        max_length=12, choices=QuestionStatus.choices, default=QuestionStatus.WAITING
    )
    node = models.ForeignKey("fleet.Node", on_delete=models.PROTECT, null=True, related_name="+")
    #: The operator's model server answers it, and no node.
    is_forwarded = models.BooleanField(default=False, db_default=False)
    #: Nodes of verified providers only.
    verified_only = models.BooleanField(default=False, db_default=False)
    text = models.TextField(default="", blank=True)
    #: ``WrittenToken`` as JSON, where probabilities were asked for.
    tokens: Any = models.JSONField(default=list)
    #: Counted by the market.
    prompt_tokens = models.PositiveIntegerField()
    #: As the node counts them, at most as many as were asked for.
    answer_tokens = models.PositiveIntegerField(default=0)
    #: ``stop`` or ``length``; empty until it is answered.
    finish = models.CharField(max_length=8, default="", blank=True)
    #: Why it failed, for its owner.
    reason = models.CharField(max_length=1000, default="", blank=True)
    is_owners_fault = models.BooleanField(default=False)
    #: Micro-dollars for a million tokens, when it was asked.
    rate_micros = models.BigIntegerField()
    created_at = models.DateTimeField()
    #: Nothing is written after that.
    expires_at = models.DateTimeField()
    finished_at = models.DateTimeField(null=True)

    asked_by_id: str | None
    organisation_id: str
    zone_id: str
    artifact_id: str | None
    node_id: str | None

    class Meta:
        constraints = [
            models.CheckConstraint(
                condition=Q(status__in=["waiting", "writing"], finished_at__isnull=True)
                | Q(
                    status__in=["answered", "failed", "cancelled"],
                    finished_at__isnull=False,
                ),
                name="questions_finished_when_ended",
            )
        ]
        indexes = [
            models.Index(
                fields=["zone", "created_at"],
                condition=Q(status="waiting"),
                name="questions_waiting",
            ),
            models.Index(
                fields=["expires_at"],
                condition=Q(status__in=["waiting", "writing"]),
                name="questions_open",
            ),
        ]

    def __str__(self) -> str:
        return self.pk

    @property
    def hold_reference(self) -> str:
        """Name of the wallet's hold for it."""
        return f"{REFERENCE_PREFIX}{self.pk}"

    @property
    def is_open(self) -> bool:
        return self.status in self.OPEN
