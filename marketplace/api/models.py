"""What the API itself remembers: answers to requests that may be sent again, and what OpenAI's
clients give beside a bid."""

from __future__ import annotations

from typing import Any

from django.contrib.postgres.indexes import GinIndex
from django.db import models

from marketplace.common.encryption import SealedTextField


class IdempotencyRecord(models.Model):
    """The answer to the first request with a key, for 24 hours."""

    organisation = models.ForeignKey(
        "accounts.Organisation", on_delete=models.CASCADE, related_name="+"
    )
    #: Method and path: one key may serve different addresses.
    address = models.CharField(max_length=255)
    key = models.CharField(max_length=255)
    request_hash = models.CharField(max_length=64)
    #: ``None`` while the first request is being worked on.
    status = models.PositiveSmallIntegerField(null=True)
    body = models.JSONField(null=True)
    #: The body as sealed JSON, in place of ``body``, where it holds a secret that is shown once.
    sealed_body = SealedTextField(default="", blank=True)
    #: Response headers worth repeating.
    headers = models.JSONField(default=dict)
    started_at = models.DateTimeField()

    class Meta:
        constraints = [
            models.UniqueConstraint(
                fields=["organisation", "address", "key"], name="api_idempotency_one_per_key"
            )
        ]
        indexes = [models.Index(fields=["started_at"], name="api_idempotency_age")]

    def __str__(self) -> str:
        return f"{self.address} {self.key}"


class FineTuningRequest(models.Model):
    """What a job was asked for with over ``/v1`` that a bid has no place for."""

    bid = models.OneToOneField(
        "auction.Bid", primary_key=True, on_delete=models.CASCADE, related_name="+"
    )
    organisation = models.ForeignKey(
        "accounts.Organisation", on_delete=models.CASCADE, related_name="+"
    )
    suffix = models.CharField(max_length=64, blank=True)
    #: Null: none was given.
    metadata: Any = models.JSONField(null=True)
    #: ``supervised`` or ``dpo``.
    method = models.CharField(max_length=12)
    #: As they were asked for, ``auto`` among them.
    hyperparameters: Any = models.JSONField(default=dict)
    integrations: Any = models.JSONField(default=list)

    bid_id: str

    class Meta:
        indexes = [
            GinIndex(
                fields=["metadata"], opclasses=["jsonb_path_ops"], name="api_fine_tuning_metadata"
            )
        ]

    def __str__(self) -> str:
        return self.bid_id
