"""What the API itself remembers: answers to requests that may be sent again."""

from __future__ import annotations

from django.db import models


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
