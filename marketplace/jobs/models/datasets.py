"""Data sets, read line by line when they were uploaded."""

from __future__ import annotations

from django.conf import settings
from django.db import models
from django.db.models import Q

from marketplace.common.models import IdField


def dataset_path(dataset: Dataset, _filename: str) -> str:
    return f"datasets/{dataset.organisation_id}/{dataset.pk}"


class Dataset(models.Model):
    """An uploaded file that was read line by line."""

    id = IdField(prefix="ds")
    organisation = models.ForeignKey(
        "accounts.Organisation", on_delete=models.PROTECT, related_name="datasets"
    )
    uploaded_by = models.ForeignKey(
        settings.AUTH_USER_MODEL, on_delete=models.PROTECT, null=True, related_name="+"
    )
    name = models.CharField(max_length=255)
    file = models.FileField(upload_to=dataset_path, max_length=255)
    sha256 = models.CharField(max_length=64)
    bytes = models.PositiveBigIntegerField()
    #: ``workers.protocol.messages.DataFormat``.
    format = models.CharField(max_length=16)
    #: Usable rows.
    rows = models.PositiveIntegerField()
    #: Counted with the tokenizer of ``zone``, over the usable rows.
    tokens = models.PositiveBigIntegerField()
    longest_row_tokens = models.PositiveIntegerField()
    zone = models.ForeignKey(
        "fleet.Zone", on_delete=models.PROTECT, null=True, blank=True, related_name="+"
    )
    faulty = models.PositiveIntegerField(default=0)
    #: Line numbers, from 1, that training leaves out.
    faulty_lines = models.JSONField(default=list)
    #: The first faults: ``LineError`` as JSON.
    errors = models.JSONField(default=list)
    #: Keys of usable rows that training does not read: ``IgnoredKey`` as JSON.
    ignored_keys = models.JSONField(default=list)
    created_at = models.DateTimeField()

    organisation_id: str
    zone_id: str | None

    class Meta:
        constraints = [
            models.CheckConstraint(condition=Q(rows__gt=0), name="jobs_dataset_has_rows"),
        ]
        indexes = [models.Index(fields=["organisation", "-created_at"], name="jobs_dataset_of")]

    def __str__(self) -> str:
        return self.name


class DatasetTokens(models.Model):
    """A data set's tokens, counted with another zone's tokenizer than that of its upload."""

    dataset = models.ForeignKey(Dataset, on_delete=models.CASCADE, related_name="counts")
    zone = models.ForeignKey("fleet.Zone", on_delete=models.PROTECT, related_name="+")
    tokens = models.PositiveBigIntegerField()
    longest_row_tokens = models.PositiveIntegerField()

    dataset_id: str

    class Meta:
        constraints = [
            models.UniqueConstraint(fields=["dataset", "zone"], name="jobs_dataset_tokens_once")
        ]

    def __str__(self) -> str:
        return f"{self.dataset_id} {self.tokens}"
