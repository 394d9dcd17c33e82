"""Vendors, and what they offer to which zone."""

from __future__ import annotations

from datetime import datetime

from django.conf import settings
from django.db import models
from django.db.models import F, Q

from marketplace.common.models import IdField
from marketplace.vendors.availability import HOURS_A_DAY, Availability
from marketplace.vendors.quoting import QuoteFunction
from marketplace.vendors.skills import describe_skills

#: Rows that people take of one data set.
PEOPLES_ROWS_MAX = 20_000


class VendorKind(models.TextChoices):
    """Who sees the data: an owner says which kinds may."""

    #: A program of this market on its own machines; no person reads the data.
    AUTOMATIC = "automatic", "Automatic"
    #: People of another organisation, in this market's console; the data stay here.
    HUMAN = "human", "People"
    #: Another organisation's systems; the data leave this market.
    OUTSIDE = "outside", "Outside systems"

    @property
    def rows_max(self) -> int | None:
        """Rows of one data set that it takes; ``None``: any number. People look at each."""
        return PEOPLES_ROWS_MAX if self is VendorKind.HUMAN else None

    @property
    def is_listed_by_all(self) -> bool:
        """Whether any organisation may list one; else the market alone."""
        return self is not VendorKind.AUTOMATIC

    @property
    def is_reviewed(self) -> bool:
        """Whether the owner may take time to look at a delivery."""
        return self is not VendorKind.AUTOMATIC

    @property
    def has_secret(self) -> bool:
        """Whether messages both ways are signed with a secret, whatever its address."""
        return self is VendorKind.OUTSIDE


class Vendor(models.Model):
    """An organisation that prepares data, with the function that its quotes are made from."""

    organisation_id: str

    id = IdField(prefix="vnd")
    organisation = models.ForeignKey(
        "accounts.Organisation", on_delete=models.PROTECT, related_name="vendors"
    )
    name = models.CharField(max_length=64)
    kind = models.CharField(max_length=12, choices=VendorKind.choices)
    #: Values of ``Skill``.
    skills = models.JSONField(default=list)

    minimum_micros = models.PositiveBigIntegerField()
    micros_per_1000_rows = models.PositiveBigIntegerField(default=0)
    micros_per_1000_tokens = models.PositiveBigIntegerField(default=0)
    base_s = models.PositiveIntegerField()
    s_per_1000_rows = models.PositiveIntegerField(default=0)
    #: Quotes are made until then; null: until changed.
    valid_until = models.DateTimeField(null=True, blank=True)
    #: Weekdays on which it works, Monday is 0, and hours of these days in UTC. No day: all days.
    days = models.JSONField(default=list)
    from_hour = models.PositiveSmallIntegerField(default=0, db_default=0)
    to_hour = models.PositiveSmallIntegerField(default=HOURS_A_DAY, db_default=HOURS_A_DAY)
    #: What it loses of its price when it delivers in the second of its delays, in percent.
    late_percent = models.PositiveSmallIntegerField(default=0, db_default=0)

    #: Where it gets requests for quotes and work; empty: its stored function is its quote.
    endpoint = models.CharField(max_length=300, default="", db_default="", blank=True)
    #: Signs messages both ways; shown to its organisation.
    endpoint_secret = models.CharField(max_length=80, default="", db_default="", blank=True)

    created_at = models.DateTimeField()
    #: Until then it gets no work: a vendor sees the data.
    approved_at = models.DateTimeField(null=True, blank=True)
    approved_by = models.ForeignKey(
        settings.AUTH_USER_MODEL, on_delete=models.PROTECT, null=True, blank=True, related_name="+"
    )
    #: Since when it takes no new work, by its own choice or an operator's.
    paused_at = models.DateTimeField(null=True, blank=True)
    #: Whether an operator paused it: then only an operator lets it go on.
    is_suspended = models.BooleanField(default=False, db_default=False)

    class Meta:
        constraints = [
            models.UniqueConstraint(fields=["organisation", "name"], name="vendors_vendor_name"),
            models.CheckConstraint(
                condition=Q(from_hour__lt=F("to_hour"), to_hour__lte=HOURS_A_DAY),
                name="vendors_vendor_hours",
            ),
            models.CheckConstraint(
                condition=Q(late_percent__lte=100), name="vendors_vendor_late_percent"
            ),
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

    @property
    def availability(self) -> Availability:
        return Availability(tuple(self.days), self.from_hour, self.to_hour)

    @property
    def skill_words(self) -> list[str]:
        return describe_skills(self.skills)

    @property
    def facts(self) -> VendorKind:
        """Its kind, with what is true of all of it."""
        return VendorKind(self.kind)


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


class AnswerKind(models.TextChoices):
    """What became of one request for a quote to a vendor's endpoint."""

    GOOD = "good", "Good"
    #: Not there within the limit.
    SLOW = "slow", "Too slow"
    #: Not reached, not signed, or not of the agreed form.
    WRONG = "wrong", "Wrong"
    #: Against its own stored function, its capacity, or a quote that it had said to hold.
    CONTRADICTORY = "contradictory", "Contradictory"


class EndpointCount(models.Model):
    """How many answers of each kind a vendor's endpoint gave on a day."""

    vendor = models.ForeignKey(Vendor, on_delete=models.CASCADE, related_name="endpoint_counts")
    day = models.DateField()
    kind = models.CharField(max_length=14, choices=AnswerKind.choices)
    count = models.PositiveIntegerField(default=0)

    class Meta:
        constraints = [
            models.UniqueConstraint(fields=["vendor", "day", "kind"], name="vendors_count_once")
        ]

    def __str__(self) -> str:
        return f"{self.count} {self.kind}"
