"""Plans of preparations, which owners see and confirm before anything is sold."""

from __future__ import annotations

from typing import Any

from django.conf import settings
from django.db import models

from marketplace.common.models import IdField
from marketplace.jobs.models import Dataset


class DataPlan(models.Model):
    """What a preparation would do to a data set, and what training on the result would take."""

    dataset_id: str
    zone_id: str

    id = IdField(prefix="plan")
    dataset = models.ForeignKey(Dataset, on_delete=models.CASCADE, related_name="plans")
    #: Whose tokenizer counts.
    zone = models.ForeignKey("fleet.Zone", on_delete=models.CASCADE, related_name="+")
    #: The members of a ``PreparationWish`` that change rows.
    asked: Any = models.JSONField()
    #: SHA-256 of them.
    asked_hash = models.CharField(max_length=64)
    #: ``workers.preparation.PreparationPlan`` as JSON; null while it is made.
    plan: Any = models.JSONField(null=True)
    #: Why it cannot be made; empty otherwise.
    problem = models.CharField(max_length=300, default="", blank=True)

    #: Rows that stay, held out or not, and their tokens as training reads them.
    rows = models.PositiveIntegerField(default=0)
    tokens = models.PositiveBigIntegerField(default=0)
    longest_row_tokens = models.PositiveIntegerField(default=0)
    format = models.CharField(max_length=20, default="", blank=True)
    #: ``TokenRuns``, packed.
    runs = models.BinaryField(default=b"")

    created_at = models.DateTimeField()
    confirmed_at = models.DateTimeField(null=True, blank=True)
    confirmed_by = models.ForeignKey(
        settings.AUTH_USER_MODEL, on_delete=models.PROTECT, null=True, blank=True, related_name="+"
    )

    class Meta:
        constraints = [
            models.UniqueConstraint(
                fields=["dataset", "zone", "asked_hash"], name="vendors_plan_once"
            )
        ]

    def __str__(self) -> str:
        return f"{self.pk} of {self.dataset_id}"
