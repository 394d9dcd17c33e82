"""Vendors, what they ask, and the preparations of admitted bids."""

from __future__ import annotations

from datetime import datetime
from typing import Any

from django.conf import settings
from django.db import models
from django.db.models import Q

from marketplace.common.models import IdField
from marketplace.jobs.models import Dataset
from marketplace.vendors.quoting import QuoteFunction


class VendorKind(models.TextChoices):
    """Who sees the data: an owner says which kinds may."""

    #: A program of this market on its own machines; no person reads the data.
    AUTOMATIC = "automatic", "Automatic"
    #: People of another organisation.
    HUMAN = "human", "People"


class Vendor(models.Model):
    """An organisation that prepares data, with the function that its quotes are made from."""

    organisation_id: str

    id = IdField(prefix="vnd")
    organisation = models.ForeignKey(
        "accounts.Organisation", on_delete=models.PROTECT, related_name="vendors"
    )
    name = models.CharField(max_length=64)
    kind = models.CharField(max_length=12, choices=VendorKind.choices)
    #: What it does, in words for owners.
    skills = models.JSONField(default=list)

    minimum_micros = models.PositiveBigIntegerField()
    micros_per_1000_rows = models.PositiveBigIntegerField(default=0)
    micros_per_1000_tokens = models.PositiveBigIntegerField(default=0)
    base_s = models.PositiveIntegerField()
    s_per_1000_rows = models.PositiveIntegerField(default=0)
    #: Quotes are made until then; null: until changed.
    valid_until = models.DateTimeField(null=True, blank=True)

    created_at = models.DateTimeField()
    #: Until then it gets no work: a vendor sees the data.
    approved_at = models.DateTimeField(null=True, blank=True)
    approved_by = models.ForeignKey(
        settings.AUTH_USER_MODEL, on_delete=models.PROTECT, null=True, blank=True, related_name="+"
    )
    #: Since when it takes no new work, by its own choice or an operator's.
    paused_at = models.DateTimeField(null=True, blank=True)

    class Meta:
        constraints = [
            models.UniqueConstraint(fields=["organisation", "name"], name="vendors_vendor_name")
        ]

    def __str__(self) -> str:
        return self.name

    @property
    def quote_function(self) -> QuoteFunction:
        valid_until: datetime | None = self.valid_until
        return QuoteFunction(
            minimum_micros=self.minimum_micros,
            micros_per_1000_rows=self.micros_per_1000_rows,
            micros_per_1000_tokens=self.micros_per_1000_tokens,
            base_s=self.base_s,
            s_per_1000_rows=self.s_per_1000_rows,
            valid_until=valid_until,
        )


class Listing(models.Model):
    """A vendor's offer of work to one zone."""

    vendor_id: str
    zone_id: str

    vendor = models.ForeignKey(Vendor, on_delete=models.PROTECT, related_name="listings")
    zone = models.ForeignKey("fleet.Zone", on_delete=models.PROTECT, related_name="+")
    #: Rows that it does in one slot of the zone, all data sets together.
    rows_per_slot = models.PositiveIntegerField()

    class Meta:
        constraints = [
            models.UniqueConstraint(fields=["vendor", "zone"], name="vendors_listing_once")
        ]

    def __str__(self) -> str:
        return f"{self.vendor_id} in {self.zone_id}"


class DataReport(models.Model):
    """What a preparation would find in a data set; made once, free, soon after the upload."""

    dataset_id: str

    dataset = models.OneToOneField(
        Dataset, primary_key=True, on_delete=models.CASCADE, related_name="report"
    )
    #: ``workers.preparation.Inspection`` as JSON; null while it is made, and where it cannot be.
    report: Any = models.JSONField(null=True)
    begun_at = models.DateTimeField()

    def __str__(self) -> str:
        return f"report of {self.dataset_id}"


class PreparationStatus(models.TextChoices):
    #: A vendor has the work.
    WORKING = "working", "At the vendor"
    #: What was delivered waits for its owner.
    DELIVERED = "delivered", "To be accepted"
    #: The prepared set is what the job trains on.
    ACCEPTED = "accepted", "Accepted"
    #: No vendor delivered; the job's payment went back.
    FAILED = "failed", "Failed"
    #: The job ended first.
    WITHDRAWN = "withdrawn", "Withdrawn"


class Preparation(models.Model):
    """What becomes of one job's data before it trains."""

    job_id: str
    vendor_id: str
    source_id: str
    prepared_id: str | None
    held_out_id: str | None

    id = IdField(prefix="prep")
    job = models.OneToOneField("jobs.Job", on_delete=models.PROTECT, related_name="preparation")
    #: The auction is above this app, so no foreign key.
    bid_id = models.CharField(max_length=40, unique=True)
    #: ``PreparationWish`` as JSON.
    wish: Any = models.JSONField()
    #: The data as their owner uploaded them.
    source = models.ForeignKey(Dataset, on_delete=models.PROTECT, related_name="+")
    prepared = models.ForeignKey(
        Dataset, on_delete=models.PROTECT, null=True, blank=True, related_name="+"
    )
    held_out = models.ForeignKey(
        Dataset, on_delete=models.PROTECT, null=True, blank=True, related_name="+"
    )
    status = models.CharField(
        max_length=12, choices=PreparationStatus.choices, default=PreparationStatus.WORKING
    )
    #: Rows that the job's work was measured on; a delivery has no more.
    rows_bound = models.PositiveIntegerField()

    #: Who has, or had, the work, at what price, and until when.
    vendor = models.ForeignKey(Vendor, on_delete=models.PROTECT, related_name="preparations")
    price_micros = models.PositiveBigIntegerField()
    #: First slot that training may use.
    ready_slot = models.BigIntegerField()
    due_at = models.DateTimeField()
    #: Offers made with the bid, ``Offer.to_json``, of vendors not tried yet.
    other_offers: Any = models.JSONField(default=list)
    #: Vendors that had the work and did not deliver, with the reason: for their reliability.
    missed: Any = models.JSONField(default=list)

    #: Why the vendor will not deliver; empty while it may.
    problem = models.CharField(max_length=500, default="", blank=True)

    #: Names the worker that prepares; a result counts only under the current one.
    claim = models.CharField(max_length=40, default="", blank=True)
    claimed_at = models.DateTimeField(null=True)
    attempts = models.PositiveIntegerField(default=0)

    #: The vendor's own account of what it did; empty before.
    report: Any = models.JSONField(default=dict)
    #: Every change with its reason, one JSON object a line.
    changes = models.FileField(upload_to="preparations", max_length=255, blank=True)
    rows_in = models.PositiveIntegerField(null=True)
    rows_out = models.PositiveIntegerField(null=True)
    rows_held_out = models.PositiveIntegerField(null=True)
    created_at = models.DateTimeField()
    delivered_at = models.DateTimeField(null=True)
    accepted_at = models.DateTimeField(null=True)
    #: When what follows from it was done: the plan cut, the vendor paid, the rest refunded.
    concluded_at = models.DateTimeField(null=True)
    #: Given back for cells that the prepared data do not need.
    refund_micros = models.PositiveBigIntegerField(default=0)

    class Meta:
        constraints = [
            models.CheckConstraint(
                condition=~Q(status="accepted")
                | Q(prepared__isnull=False, accepted_at__isnull=False),
                name="vendors_preparation_accepted_has_data",
            )
        ]
        indexes = [
            models.Index(
                fields=["due_at"],
                condition=Q(concluded_at__isnull=True),
                name="vendors_preparation_open",
            )
        ]

    def __str__(self) -> str:
        return f"{self.pk} ({self.status})"
