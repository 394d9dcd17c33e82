"""Where messages go, each message with what became of it, and notices to people."""

from __future__ import annotations

from typing import Any

from django.conf import settings
from django.contrib.postgres.fields import ArrayField
from django.db import models

from marketplace.common.encryption import SealedTextField
from marketplace.common.models import IdField


class MessageForm(models.TextChoices):
    """Who reads the messages of an endpoint."""

    STANDARD = "standard", "A program (Standard Webhooks)"
    SLACK = "slack", "A Slack channel"
    TEAMS = "teams", "A Microsoft Teams channel"


class WebhookEndpoint(models.Model):
    """An address of an organisation that the market calls with events."""

    id = IdField(prefix="we")
    organisation = models.ForeignKey(
        "accounts.Organisation", on_delete=models.CASCADE, related_name="+"
    )
    created_by = models.ForeignKey("accounts.User", on_delete=models.PROTECT, related_name="+")
    url = models.CharField(max_length=500)
    form = models.CharField(
        max_length=8,
        choices=MessageForm.choices,
        default=MessageForm.STANDARD,
        db_default="standard",
    )
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
        constraints = [
            models.CheckConstraint(
                name="webhooks_form_known", condition=models.Q(form__in=MessageForm.values)
            )
        ]
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


class Notice(models.Model):
    """Something that one person is to know, in the app and perhaps by mail."""

    id = IdField(prefix="note")
    # Indexes below begin with it.
    user = models.ForeignKey(
        settings.AUTH_USER_MODEL, on_delete=models.CASCADE, related_name="+", db_index=False
    )
    organisation = models.ForeignKey(
        "accounts.Organisation", on_delete=models.CASCADE, related_name="+"
    )
    #: Of ``news.NOTICE_KINDS``.
    kind = models.CharField(max_length=60)
    #: What it is about: a person gets one notice of a kind about it.
    about = models.CharField(max_length=120)
    title = models.CharField(max_length=200)
    text = models.CharField(max_length=1000)
    #: Of the page that says more.
    path = models.CharField(max_length=200)
    created_at = models.DateTimeField(db_index=True)
    read_at = models.DateTimeField(null=True)
    #: When a mail was begun; it is not begun again.
    mailing_at = models.DateTimeField(null=True)
    mailed_at = models.DateTimeField(null=True)

    user_id: str
    organisation_id: str

    class Meta:
        constraints = [
            # What bids are refused for is not of one organisation.
            models.UniqueConstraint(
                fields=["user", "organisation", "kind", "about"], name="webhooks_notice_once"
            )
        ]
        indexes = [
            models.Index(fields=["user", "organisation", "-id"], name="webhooks_notices_of"),
            models.Index(
                fields=["user", "organisation"],
                condition=models.Q(read_at__isnull=True),
                name="webhooks_notices_unread",
            ),
        ]

    def __str__(self) -> str:
        return self.title


class NoticeChoice(models.Model):
    """Which kinds of an organisation's notices a person has mailed; without a row, the usual."""

    user = models.ForeignKey(settings.AUTH_USER_MODEL, on_delete=models.CASCADE, related_name="+")
    organisation = models.ForeignKey(
        "accounts.Organisation", on_delete=models.CASCADE, related_name="+"
    )
    mailed = ArrayField(models.CharField(max_length=60), default=list)

    user_id: str
    organisation_id: str

    class Meta:
        constraints = [
            models.UniqueConstraint(
                fields=["user", "organisation"], name="webhooks_notice_choice_once"
            )
        ]

    def __str__(self) -> str:
        return f"{self.user_id} in {self.organisation_id}"
