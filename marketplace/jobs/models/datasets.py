"""Data sets, read line by line when they were uploaded."""

from __future__ import annotations

from typing import Any

from django.conf import settings
from django.contrib.postgres.indexes import HashIndex
from django.db import models
from django.db.models import Q

from marketplace.common.models import IdField


def dataset_path(dataset: Dataset, _filename: str) -> str:
    return f"datasets/{dataset.organisation_id}/{dataset.pk}"


class OwnDatasets(models.Manager[Any]):
    """Data sets that their owners may use."""

    def get_queryset(self) -> models.QuerySet[Any]:
        return super().get_queryset().filter(is_withheld=False, deleted_at=None)


class Dataset(models.Model):
    """An uploaded file that was read line by line."""

    id = IdField(prefix="ds")
    organisation = models.ForeignKey(
        "accounts.Organisation", on_delete=models.PROTECT, related_name="datasets", db_index=False
    )
    uploaded_by = models.ForeignKey(
        settings.AUTH_USER_MODEL, on_delete=models.PROTECT, null=True, related_name="+"
    )
    name = models.CharField(max_length=255)
    #: Empty once it is deleted.
    file = models.FileField(upload_to=dataset_path, max_length=255, blank=True)
    sha256 = models.CharField(max_length=64)
    bytes = models.PositiveBigIntegerField()
    #: ``workers.protocol.job_spec.DataFormat``.
    format = models.CharField(max_length=16)
    #: Nothing trains on it as it is. Rows and tokens are those that the program which prepares
    #: data finds in it, and ``faulty`` counts the rows that it cannot repair.
    needs_preparation = models.BooleanField(default=False, db_default=False)
    #: What its columns hold, as its owner said when it was uploaded.
    roles = models.JSONField(default=dict)
    #: Tokens of its rows as that program repairs them, none left out; 0 where nothing is faulty.
    repaired_tokens = models.PositiveBigIntegerField(default=0, db_default=0)
    #: Usable rows.
    rows = models.PositiveIntegerField()
    #: Counted with the tokenizer of ``zone``, over the usable rows.
    tokens = models.PositiveBigIntegerField()
    longest_row_tokens = models.PositiveIntegerField()
    zone = models.ForeignKey(
        "fleet.Zone",
        on_delete=models.PROTECT,
        null=True,
        blank=True,
        related_name="+",
        db_index=False,
    )
    faulty = models.PositiveIntegerField(default=0)
    #: Line numbers, from 1, that training leaves out.
    faulty_lines = models.JSONField(default=list)
    #: The faults: ``LineError`` as JSON.
    errors = models.JSONField(default=list)
    #: Keys of usable rows that training does not read: ``IgnoredKey`` as JSON.
    ignored_keys = models.JSONField(default=list)
    #: Rows that training with ``zone``'s longest sequence cuts, and the lines of the first of them.
    long_rows = models.PositiveIntegerField(default=0)
    long_lines = models.JSONField(default=list)
    #: Lines among ``faulty_lines`` whose rows are too long, left out by choice.
    left_out_long = models.PositiveIntegerField(default=0)
    #: A vendor's delivery that is not accepted yet: it is not listed, shown or bid with.
    is_withheld = models.BooleanField(default=False, db_default=False)
    created_at = models.DateTimeField()
    #: Nobody may use it any more; its content goes once nothing needs it (``accounts.erasure``).
    deleted_at = models.DateTimeField(null=True, editable=False)

    organisation_id: str
    zone_id: str | None

    #: Withheld and deleted ones as well.
    everything = models.Manager()
    objects = OwnDatasets()

    class Meta:
        default_manager_name = "objects"
        constraints = [
            models.CheckConstraint(condition=Q(rows__gt=0), name="jobs_dataset_has_rows"),
        ]
        indexes = [
            models.Index(
                fields=["organisation", "-created_at"],
                condition=Q(deleted_at__isnull=True),
                name="jobs_dataset_of",
            ),
            models.Index(
                fields=["zone", "created_at"],
                condition=Q(deleted_at__isnull=True),
                name="jobs_dataset_of_zone",
            ),
            # What an organisation has stored: deleted ones count until their content is gone.
            models.Index(
                fields=["organisation"],
                include=["bytes"],
                condition=Q(is_withheld=False) & ~Q(file=""),
                name="jobs_dataset_stored",
            ),
            # Those with the same rows.
            HashIndex(fields=["sha256"], name="jobs_dataset_same"),
        ]

    def __str__(self) -> str:
        return self.name


def upload_path(upload: Upload, _filename: str) -> str:
    return f"uploads/{upload.organisation_id}/{upload.pk}"


class UploadStatus(models.TextChoices):
    #: Stored, and not read yet.
    WAITING = "waiting", "Waiting"
    READING = "reading", "Being read"
    #: Read; something is to be chosen before it is a data set.
    UNDECIDED = "undecided", "To be decided"
    REFUSED = "refused", "Refused"
    STORED = "stored", "Stored"


class Upload(models.Model):
    """A file that arrived and is read by a worker; in the end a data set, or a refusal."""

    id = IdField(prefix="up")
    organisation = models.ForeignKey(
        "accounts.Organisation", on_delete=models.PROTECT, related_name="uploads"
    )
    uploaded_by = models.ForeignKey(
        settings.AUTH_USER_MODEL, on_delete=models.PROTECT, null=True, related_name="+"
    )
    name = models.CharField(max_length=255)
    #: Empty once it is a data set, or refused.
    file = models.FileField(upload_to=upload_path, max_length=255, blank=True)
    sha256 = models.CharField(max_length=64)
    bytes = models.PositiveBigIntegerField()
    #: The zone whose tokenizer counts and whose longest sequence decides which rows are long.
    zone = models.ForeignKey("fleet.Zone", on_delete=models.PROTECT, null=True, related_name="+")
    #: ``UploadChoices`` as JSON.
    choices = models.JSONField(default=dict)
    #: A request's idempotency key: sent again, it is the same upload.
    key = models.CharField(max_length=300, null=True)
    status = models.CharField(
        max_length=12, choices=UploadStatus.choices, default=UploadStatus.WAITING
    )
    rows_read = models.PositiveIntegerField(default=0)
    #: Of the file, from 0 to 1.
    share_read = models.FloatField(default=0.0)
    #: ``Reading`` as JSON, once it is read.
    reading = models.JSONField(null=True)
    #: Code, message and more of the refusal.
    error = models.JSONField(null=True)
    dataset = models.ForeignKey(Dataset, on_delete=models.SET_NULL, null=True, related_name="+")
    created_at = models.DateTimeField()

    organisation_id: str
    dataset_id: str | None

    class Meta:
        constraints = [
            models.UniqueConstraint(fields=["organisation", "key"], name="jobs_upload_key_once")
        ]
        indexes = [models.Index(fields=["status", "created_at"], name="jobs_upload_waiting")]

    def __str__(self) -> str:
        return self.name


def part_path(part: UploadPart, _filename: str) -> str:
    return f"uploads/{part.upload.organisation_id}/{part.upload_id}/{part.pk}"


class PartedStatus(models.TextChoices):
    PENDING = "pending", "Pending"
    #: A process puts the parts together, under a claim.
    JOINING = "joining", "Joining"
    COMPLETED = "completed", "Completed"
    CANCELLED = "cancelled", "Cancelled"
    EXPIRED = "expired", "Expired"


class PartedUpload(models.Model):
    """A file that arrives in parts; once it is whole, an ``Upload`` like any other."""

    #: Announced and not completed.
    OPEN = (PartedStatus.PENDING, PartedStatus.JOINING)

    id = IdField(prefix="upload")
    organisation = models.ForeignKey(
        "accounts.Organisation", on_delete=models.PROTECT, related_name="+"
    )
    created_by = models.ForeignKey(
        settings.AUTH_USER_MODEL, on_delete=models.PROTECT, null=True, related_name="+"
    )
    name = models.CharField(max_length=255)
    #: As announced; the parts must add up to it.
    bytes = models.PositiveBigIntegerField()
    status = models.CharField(
        max_length=9, choices=PartedStatus.choices, default=PartedStatus.PENDING
    )
    #: Of the parts in their order, once it is completed; forgotten with its ``Upload``.
    whole = models.ForeignKey(Upload, on_delete=models.SET_NULL, null=True, related_name="+")
    #: Names the process that puts the parts together; its file counts only under the current one.
    claim = models.CharField(max_length=40, default="", db_default="", blank=True)
    claimed_at = models.DateTimeField(null=True)
    created_at = models.DateTimeField()
    expires_at = models.DateTimeField()

    organisation_id: str
    whole_id: str | None
    parts: models.Manager[UploadPart]

    class Meta:
        indexes = [
            models.Index(
                fields=["expires_at"],
                condition=Q(status__in=["pending", "joining"]),
                name="jobs_parted_pending",
            )
        ]

    def __str__(self) -> str:
        return self.name


class UploadPart(models.Model):
    """Some bytes of a file."""

    id = IdField(prefix="part")
    upload = models.ForeignKey(PartedUpload, on_delete=models.CASCADE, related_name="parts")
    file = models.FileField(upload_to=part_path, max_length=255)
    bytes = models.PositiveBigIntegerField()
    created_at = models.DateTimeField()

    upload_id: str

    def __str__(self) -> str:
        return self.pk


class HeldOutCheck(models.Model):
    """What was found when validation data were compared with data to train on."""

    dataset = models.ForeignKey(Dataset, on_delete=models.CASCADE, related_name="+")
    held_out = models.ForeignKey(
        Dataset, on_delete=models.CASCADE, related_name="+", db_index=False
    )
    #: Why the one cannot validate the other; empty where it can.
    problem = models.CharField(max_length=500, default="", blank=True)

    class Meta:
        constraints = [
            models.UniqueConstraint(fields=["held_out", "dataset"], name="jobs_held_out_once")
        ]

    def __str__(self) -> str:
        return self.problem or "fits"


class DatasetTokens(models.Model):
    """A data set's tokens, counted with a zone's tokenizer and chat template."""

    # An index below begins with it.
    dataset = models.ForeignKey(
        Dataset, on_delete=models.CASCADE, related_name="counts", db_index=False
    )
    zone = models.ForeignKey("fleet.Zone", on_delete=models.PROTECT, related_name="+")
    tokens = models.PositiveBigIntegerField()
    #: Of its longest sequence.
    longest_row_tokens = models.PositiveIntegerField()
    #: ``token_runs.TokenRuns``, packed: what its work is counted from.
    runs = models.BinaryField()

    dataset_id: str

    class Meta:
        constraints = [
            models.UniqueConstraint(fields=["dataset", "zone"], name="jobs_dataset_tokens_once")
        ]

    def __str__(self) -> str:
        return f"{self.dataset_id} {self.tokens}"
