"""Consents, donors, probes and offers."""

from __future__ import annotations

from typing import Any

from django.db import models
from django.db.models import Q

from marketplace.common.models import ID_LENGTH, IdField
from marketplace.jobs.models import Errand


class Consent(models.Model):
    """What an organisation allows of warm starts, unless a data set or an adapter says otherwise.

    Without a row nothing is allowed.
    """

    organisation_id: str

    organisation = models.OneToOneField(
        "accounts.Organisation", primary_key=True, on_delete=models.PROTECT, related_name="+"
    )
    #: Jobs may begin with adapters of others.
    uses_donors = models.BooleanField(default=False)
    #: Jobs of others may begin with its adapters.
    gives_adapters = models.BooleanField(default=False)
    changed_at = models.DateTimeField()

    def __str__(self) -> str:
        return self.organisation_id


class DatasetConsent(models.Model):
    """What the owner of a data set says otherwise for it; null: as the organisation."""

    dataset_id: str

    dataset = models.OneToOneField(
        "jobs.Dataset", primary_key=True, on_delete=models.CASCADE, related_name="+"
    )
    uses_donors = models.BooleanField(null=True)
    gives_adapters = models.BooleanField(null=True)

    def __str__(self) -> str:
        return self.dataset_id


class DatasetEmbedding(models.Model):
    """What a data set's text is like; computed once."""

    dataset = models.OneToOneField(
        "jobs.Dataset", primary_key=True, on_delete=models.CASCADE, related_name="+"
    )
    #: ``float32[embeddings.WIDTH]``, a unit vector.
    vector = models.BinaryField()

    def __str__(self) -> str:
        return str(self.pk)


class PresentDonors(models.Manager[Any]):
    """Donors whose adapters are there."""

    def get_queryset(self) -> models.QuerySet[Any]:
        return super().get_queryset().filter(artifact__deleted_at=None)


class Donor(models.Model):
    """A finished adapter that jobs may begin with: its owner's own, and others' by consent."""

    organisation_id: str
    zone_id: str
    artifact_id: str
    job_id: str

    artifact = models.OneToOneField(
        "jobs.Artifact", primary_key=True, on_delete=models.CASCADE, related_name="+"
    )
    job = models.ForeignKey("jobs.Job", on_delete=models.PROTECT, related_name="+")
    organisation = models.ForeignKey(
        "accounts.Organisation", on_delete=models.PROTECT, related_name="+"
    )
    zone = models.ForeignKey("fleet.Zone", on_delete=models.PROTECT, related_name="+")
    #: What adapters must share for one to begin with the other; see ``donors.name_shape``.
    shape = models.CharField(max_length=64)
    #: Of its training data.
    data_sha256 = models.CharField(max_length=64)
    vector = models.BinaryField()
    #: Validation loss before and after its own training.
    loss_before = models.FloatField()
    loss_after = models.FloatField()
    #: The scan found text of its rows in it: only its owner's jobs may start with it.
    has_memorised = models.BooleanField()
    #: It came of somebody else's adapter, which is not its owner's to give.
    builds_on_others = models.BooleanField(default=False)
    #: Starts of several other organisations fell behind with it and began again.
    did_harm = models.BooleanField(default=False)
    #: What its owner says for this adapter; null: as for its data set.
    is_given = models.BooleanField(null=True)
    created_at = models.DateTimeField()

    #: Those of deleted adapters as well.
    everything = models.Manager()
    objects = PresentDonors()

    class Meta:
        default_manager_name = "objects"
        indexes = [models.Index(fields=["zone", "shape"], name="warm_donor_shape")]

    def __str__(self) -> str:
        return self.job_id


class Probe(Errand):
    """A warm node was asked for losses on a few rows of a data set; and its answer."""

    dataset_id: str

    dataset = models.ForeignKey("jobs.Dataset", on_delete=models.CASCADE, related_name="+")
    shape = models.CharField(max_length=64)
    #: Artifacts probed, nearest first.
    artifact_ids: Any = models.JSONField()
    base_loss = models.FloatField(null=True)
    #: As ``artifact_ids``; null where one could not be measured.
    losses: Any = models.JSONField(default=list)
    #: Seconds it took on the node.
    seconds = models.FloatField(null=True)

    class Meta:
        indexes = [models.Index(fields=["dataset", "shape"], name="warm_probe_of_dataset")]

    def __str__(self) -> str:
        return self.pk


class Offer(models.Model):
    """A warm start as it was offered for a job, and what became of it."""

    organisation_id: str
    zone_id: str
    dataset_id: str
    donor_id: str
    job_id: str | None

    id = IdField(prefix="warm")
    organisation = models.ForeignKey(
        "accounts.Organisation", on_delete=models.PROTECT, related_name="+"
    )
    zone = models.ForeignKey("fleet.Zone", on_delete=models.PROTECT, related_name="+")
    dataset = models.ForeignKey("jobs.Dataset", on_delete=models.CASCADE, related_name="+")
    donor = models.ForeignKey(Donor, on_delete=models.PROTECT, related_name="offers")
    #: SHA-256 of the settings it holds for.
    settings_hash = models.CharField(max_length=64)
    #: ``workers.protocol.starts.StartKind`` and ``scheduler.merging.warm_starts.Likeness``.
    kind = models.CharField(max_length=12)
    likeness = models.CharField(max_length=12)
    scale = models.FloatField()
    target_loss = models.FloatField()
    #: Steps and work units sold, and those of the cold job.
    steps = models.PositiveIntegerField()
    total_steps = models.PositiveIntegerField()
    units = models.PositiveBigIntegerField()
    cold_units = models.PositiveBigIntegerField()
    royalty_micros = models.BigIntegerField()
    #: About what the market pays if the start falls behind to the cold job's end.
    risk_micros = models.BigIntegerField(default=0)
    made_at = models.DateTimeField()
    expires_at = models.DateTimeField()

    #: The bid that names it; one at a time. Null: it may be bid for.
    bid_id = models.CharField(max_length=ID_LENGTH, null=True, unique=True)
    #: The job that began with it; one at most.
    job = models.OneToOneField("jobs.Job", null=True, on_delete=models.PROTECT, related_name="+")
    #: Share of the cold work after which the job was at its target, 2 where it began again; null:
    #: not measured yet.
    needed_share = models.FloatField(null=True)
    measured_at = models.DateTimeField(null=True)
    #: What the donor's owner got, and what the job's owner saved.
    royalty_paid_micros = models.BigIntegerField(default=0)
    saved_micros = models.BigIntegerField(default=0)

    class Meta:
        indexes = [
            models.Index(
                fields=["organisation", "dataset", "zone", "settings_hash", "-made_at"],
                name="warm_offer_latest",
            ),
            models.Index(
                fields=["zone", "likeness", "-measured_at"],
                condition=Q(needed_share__isnull=False),
                name="warm_offer_measured",
            ),
            models.Index(
                fields=["organisation"],
                condition=Q(bid_id__isnull=False, measured_at=None),
                name="warm_offer_running",
            ),
        ]

    def __str__(self) -> str:
        return self.id

    @property
    def organisation_of_donor(self) -> str:
        return self.donor.organisation_id


class Overrun(models.Model):
    """What the market paid a provider for work of a warm start beyond that sold."""

    offer_id: str
    owner_id: str
    provider_id: str

    offer = models.ForeignKey(Offer, on_delete=models.PROTECT, related_name="+")
    #: Whose job it was.
    owner = models.ForeignKey(
        "accounts.Organisation", on_delete=models.PROTECT, related_name="+", db_index=False
    )
    #: Whose nodes did the work.
    provider = models.ForeignKey(
        "accounts.Organisation", on_delete=models.PROTECT, related_name="+", db_index=False
    )
    amount_micros = models.BigIntegerField()
    made_at = models.DateTimeField()

    class Meta:
        constraints = [
            models.UniqueConstraint(fields=["offer", "provider"], name="warm_overrun_once"),
        ]
        indexes = [
            models.Index(fields=["owner", "-made_at"], name="warm_overrun_of_owner"),
            models.Index(fields=["provider", "-made_at"], name="warm_overrun_of_provider"),
        ]

    def __str__(self) -> str:
        return f"{self.amount_micros} to {self.provider_id} for {self.offer_id}"
