"""Reports on raw data, made before any bid."""

from __future__ import annotations

from typing import Any

from django.db import models

from marketplace.jobs.models import Dataset


class DataReport(models.Model):
    """What a preparation would find in a data set; made once, free, soon after the upload."""

    dataset_id: str

    dataset = models.OneToOneField(
        Dataset, primary_key=True, on_delete=models.CASCADE, related_name="report"
    )
    #: ``workers.preparation.Inspection`` as JSON; empty where it cannot be made.
    report: Any = models.JSONField()

    def __str__(self) -> str:
        return f"report of {self.dataset_id}"
