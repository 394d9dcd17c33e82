"""Where messages go, and each message with what became of it."""

from __future__ import annotations

from typing import Any

from django.contrib.postgres.fields import ArrayField
from django.db import models

from marketplace.common.encryption import SealedTextField
from marketplace.common.models import IdField


class WebhookEndpoint(models.Model):
    """An address of an organisation that the market calls with events."""

    id = IdField(prefix="we")
    organisation = models.ForeignKey(
        "accounts.Organisation", on_delete=models.CASCADE, related_name="+"
    )
    created_by = models.ForeignKey("accounts.User", on_delete=models.PROTECT, related_name="+")
    url = models.CharField(max_length=500)
    #: Types of events, such as ``job.succeeded``.
    events = ArrayField(models.CharField(max_length=60))
    #: ``whsec_…``, encrypted.
    secret = SealedTextField()
    #: Signs beside the new one until the moment below.
    earlier_secret = SealedTextField(blank=True)
    earlier_secret_until = models.DateTimeField(null=True)
    created_at = models.DateTimeField()
    #: Nothing more is sent, for this reason.
    disabled_at = models.DateTimeField(null=True)
    disabled_reason = models.CharField(max_length=200, blank=True)

    organisation_id: str
    deliveries: models.Manager[WebhookMessage]

    class Meta:
        indexes = [models.Index(fields=["organisation"], name="webhooks_of_organisation")]

    def __str__(self) -> str:
        return self.url


class MessageStatus(models.TextChoices):
    PENDING = "pending", "Waiting"
    DELIVERED = "delivered", "Delivered"
    #: Every attempt failed, or the endpoint was disabled.
    FAILED = "failed", "Failed"


class WebhookMessage(models.Model):
    """One event for one endpoint: the outbox, and the log of deliveries."""

    id = IdField(prefix="msg")
    #: Without a constraint: an endpoint that is deleted at the same moment must not undo the
    #: transaction of a job. A message without its endpoint is never sent, and deleted by age.
    endpoint = models.ForeignKey(
        WebhookEndpoint,
        on_delete=models.CASCADE,
        related_name="deliveries",
        db_constraint=False,
    )
    type = models.CharField(max_length=60)
    #: As it is signed and sent, byte for byte.
    body = models.TextField()
    created_at = models.DateTimeField()
    status = models.CharField(
        max_length=10, choices=MessageStatus.choices, default=MessageStatus.PENDING
    )
    #: Of the next attempt, for the owner.
    due_at = models.DateTimeField()
    #: Newest last: ``at``, ``status`` (HTTP's, or null), ``error``, ``took_s``.
    log: Any = models.JSONField(default=list)

    endpoint_id: str

    class Meta:
        constraints = [
            models.CheckConstraint(
                name="webhooks_message_status_known",
                condition=models.Q(status__in=MessageStatus.values),
            )
        ]
        indexes = [
            models.Index(fields=["endpoint", "-id"], name="webhooks_newest"),
        ]

    def __str__(self) -> str:
        return f"{self.type} to {self.endpoint_id}"
