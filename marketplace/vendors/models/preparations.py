"""Preparations of admitted bids: the work, its delivery, and disputes about it."""

from __future__ import annotations

from datetime import datetime, timedelta
from typing import Any

from django.conf import settings
from django.db import models
from django.db.models import Q

from marketplace.common.brief_json import BriefJSONField
from marketplace.common.models import IdField
from marketplace.jobs.models import Dataset
from marketplace.jobs.usual_terms import USUAL_WISH
from marketplace.vendors.models.vendors import Vendor

#: After the rule accepted a delivery; the vendor is not paid out before.
DISPUTABLE_FOR = timedelta(days=3)


class PreparationStatus(models.TextChoices):
    #: A vendor has the work.
    WORKING = "working", "At the vendor"
    #: What was delivered waits for its owner.
    DELIVERED = "delivered", "To be accepted"
    #: Its owner says that the delivery is not what was ordered; an operator decides.
    DISPUTED = "disputed", "Disputed"
    #: The prepared set is what the job trains on.
    ACCEPTED = "accepted", "Accepted"
    #: No vendor delivered; the job's payment went back.
    FAILED = "failed", "Failed"
    #: The job ended first.
    WITHDRAWN = "withdrawn", "Withdrawn"


#: The only objection that an owner's own words are the measure of, not the data.
KNOWN_ANSWERS_FAIL = "Too few rows whose answers the owner knows are as they should be."


class Preparation(models.Model):
    """What becomes of one job's data before it trains."""

    job_id: str
    vendor_id: str
    source_id: str
    replaced_for_id: str | None
    prepared_id: str | None
    held_out_id: str | None

    id = IdField(prefix="prep")
    job = models.OneToOneField("jobs.Job", on_delete=models.PROTECT, related_name="preparation")
    #: The auction is above this app, so no foreign key.
    bid_id = models.CharField(max_length=40, unique=True)
    #: ``PreparationWish`` as JSON.
    wish: Any = BriefJSONField(usual=USUAL_WISH)
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
    #: The vendor's part of what the owner paid; the market pays what a next vendor asks beyond it.
    sold_micros = models.PositiveBigIntegerField(db_default=0)
    #: The organisation whose vendor failed, so that another has the work, and since when.
    replaced_for = models.ForeignKey(
        "accounts.Organisation", on_delete=models.PROTECT, null=True, blank=True, related_name="+"
    )
    replaced_at = models.DateTimeField(null=True, blank=True)
    #: First slot that training may use.
    ready_slot = models.BigIntegerField()
    due_at = models.DateTimeField()
    #: Offers made with the bid, ``VendorOffer.to_json``, of vendors not tried yet.
    other_offers: Any = models.JSONField(default=list)
    #: Vendors that had the work and did not deliver, with the reason: for their reliability.
    missed: Any = models.JSONField(default=list)

    #: When the rows were ready for people, or the data for an outside vendor.
    handed_over_at = models.DateTimeField(null=True, blank=True)
    #: The raw rows with their ids for an outside vendor, masked where its owner asked.
    copy = models.FileField(upload_to="preparations", max_length=255, blank=True)
    #: When its vendor first looked at the data.
    begun_at = models.DateTimeField(null=True, blank=True)
    #: What people or an outside vendor handed in, until it is checked.
    submission = models.FileField(upload_to="preparations", max_length=255, blank=True)
    submitted_at = models.DateTimeField(null=True, blank=True)
    #: Deliveries that were refused, ``{"at", "reason"}`` each.
    refusals: Any = models.JSONField(default=list)

    #: Why the vendor will not deliver; empty while it may.
    problem = models.CharField(max_length=500, default="", blank=True)

    #: Rises with each piece of durable work about it; what an earlier one makes does not count.
    turn = models.PositiveIntegerField(default=1)

    #: The vendor's own account of what it did; empty before.
    report: Any = models.JSONField(default=dict)
    #: Every change with its reason, one JSON object a line.
    changes = models.FileField(upload_to="preparations", max_length=255, blank=True)
    #: The id of each delivered row, its place in the owner's file from 1, one JSON object a line.
    origins = models.FileField(upload_to="preparations", max_length=255, blank=True)
    rows_in = models.PositiveIntegerField(null=True)
    rows_out = models.PositiveIntegerField(null=True)
    rows_held_out = models.PositiveIntegerField(null=True)
    created_at = models.DateTimeField()
    delivered_at = models.DateTimeField(null=True)
    #: ``workers.preparation.Comparison`` of the raw and the delivered data, as JSON.
    comparison: Any = models.JSONField(null=True)
    #: Why the rule does not accept what was delivered; empty where it does. Then its owner may
    #: accept it all the same.
    objection = models.CharField(max_length=500, default="", db_default="", blank=True)
    #: Until then its owner may decide about a delivery; afterwards it is accepted, or refused where
    #: the rule objects.
    accept_by = models.DateTimeField(null=True, blank=True)
    accepted_at = models.DateTimeField(null=True)
    #: The hold of the charge that its vendor was paid from; empty before.
    paid_from = models.CharField(max_length=200, default="", db_default="", blank=True)
    #: When what follows from it was done: the plan cut, the vendor paid, the rest refunded.
    concluded_at = models.DateTimeField(null=True)
    #: Given back for cells that the prepared data do not need, and for a vendor that cost less.
    refund_micros = models.PositiveBigIntegerField(default=0)
    #: The price of those cells. Less of it goes back where the vendor is the owner's own.
    spared_micros = models.PositiveBigIntegerField(default=0, db_default=0)
    #: Of that, the rent that waits for those cells to be sold again; it goes back after the job.
    waits_micros = models.PositiveBigIntegerField(default=0, db_default=0)
    #: Of that price, the rent that went back at once though its cells begin soon.
    unsold_rent_micros = models.PositiveBigIntegerField(default=0, db_default=0)

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
            ),
            models.Index(
                fields=["vendor"],
                condition=Q(status__in=["working", "delivered", "disputed"]),
                name="vendors_preparation_held",
            ),
        ]

    def __str__(self) -> str:
        return f"{self.pk} ({self.status})"

    @property
    def is_handed_in(self) -> bool:
        """Whether what its vendor handed in is being checked, and is paid for if it passes."""
        is_submitted = self.submitted_at is not None and not self.problem
        return self.status == PreparationStatus.WORKING and is_submitted

    @property
    def work_key(self) -> str:
        """Names the durable work about it."""
        return f"{self.pk}:{self.turn}"

    @property
    def is_refused_by_rule(self) -> bool:
        """Whether it counts as refused unless its owner accepts it, and no operator decides."""
        return self.objection not in ("", KNOWN_ANSWERS_FAIL)

    @property
    def disputable_until(self) -> datetime | None:
        """Until when its owner may ask for the price of a delivery back that the rule accepted.

        ``None``: the delivery was not paid, or the owner had to accept it.
        """
        if not self.paid_from or self.accepted_at is None or self.accept_by is not None:
            return None
        return self.accepted_at + DISPUTABLE_FOR if self.price_micros else None


class Dispute(models.Model):
    """An owner's claim that a delivery is not what was ordered, and an operator's decision."""

    preparation_id: str
    vendor_id: str

    id = IdField(prefix="dispute")
    preparation = models.ForeignKey(Preparation, on_delete=models.PROTECT, related_name="disputes")
    #: The delivery that it is about.
    vendor = models.ForeignKey(Vendor, on_delete=models.PROTECT, related_name="disputes")
    #: In the owner's words, after what second opinions say where they opened it.
    reason = models.CharField(max_length=2000)
    opened_by = models.ForeignKey(
        settings.AUTH_USER_MODEL, on_delete=models.PROTECT, related_name="+"
    )
    opened_at = models.DateTimeField()
    decided_by = models.ForeignKey(
        settings.AUTH_USER_MODEL, on_delete=models.PROTECT, null=True, blank=True, related_name="+"
    )
    decided_at = models.DateTimeField(null=True, blank=True)
    #: Who was right; null while open.
    is_for_owner = models.BooleanField(null=True, blank=True)
    #: The operator's words to both.
    words = models.CharField(max_length=1000, default="", blank=True)

    class Meta:
        constraints = [
            models.UniqueConstraint(
                fields=["preparation"],
                condition=Q(decided_at__isnull=True),
                name="vendors_dispute_open_once",
            )
        ]

    def __str__(self) -> str:
        return f"{self.pk} about {self.preparation_id}"


class DataAccess(models.Model):
    """That a vendor saw an owner's data: shown to the owner, never changed afterwards."""

    class Kind(models.TextChoices):
        ROWS = "rows", "Opened rows in the console"
        LINK = "link", "Got a link to the data"
        DOWNLOAD = "download", "Downloaded the data"

    # An index below begins with it.
    preparation = models.ForeignKey(
        Preparation, on_delete=models.PROTECT, related_name="accesses", db_index=False
    )
    vendor = models.ForeignKey(Vendor, on_delete=models.PROTECT, related_name="+")
    kind = models.CharField(max_length=8, choices=Kind.choices)
    #: The person; null for a program.
    person = models.ForeignKey(
        settings.AUTH_USER_MODEL, on_delete=models.PROTECT, null=True, blank=True, related_name="+"
    )
    #: From where, of a download.
    address = models.CharField(max_length=64, default="", blank=True)
    is_masked = models.BooleanField(default=False)
    at = models.DateTimeField()

    class Meta:
        indexes = [models.Index(fields=["preparation", "at"], name="vendors_access_at")]

    def __str__(self) -> str:
        return f"{self.kind} of {self.preparation}"
