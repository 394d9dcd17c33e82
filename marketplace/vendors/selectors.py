"""What may be asked about preparations; nothing here writes."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Any

from django.db.models import Exists, F, OuterRef, QuerySet

from marketplace.common.errors import UserError
from marketplace.fleet.models import Zone
from marketplace.jobs.models import Dataset, Job
from marketplace.vendors.models import (
    DataReport,
    Preparation,
    PreparationStatus,
    Vendor,
    VendorKind,
)
from marketplace.vendors.offers import collect_offers
from marketplace.vendors.quoting import VendorOffer
from marketplace.vendors.wishes import PreparationWish


def exclude_open(jobs: QuerySet[Job]) -> QuerySet[Job]:
    """Those jobs whose preparation, if they have one, is concluded."""
    is_open = Preparation.objects.filter(job=OuterRef("pk"), concluded_at__isnull=True)
    return jobs.exclude(Exists(is_open))


@dataclass(frozen=True, slots=True)
class ShownOffer:
    """What one vendor would do with a data set, and for how much."""

    vendor: Vendor
    offer: VendorOffer

    @property
    def price_micros(self) -> int:
        return self.offer.price_micros


def list_offers(
    *, zone: Zone, dataset: Dataset, kinds: Sequence[VendorKind], now: datetime
) -> list[ShownOffer]:
    """What each vendor of these kinds would ask for a data set, the cheapest first."""
    try:
        wish = PreparationWish(kinds=tuple(kinds))
        offers = collect_offers(zone=zone, dataset=dataset, wish=wish, now=now)
    except UserError:
        return []
    vendors = Vendor.objects.in_bulk([offer.vendor_id for offer in offers])
    shown = [ShownOffer(vendors[offer.vendor_id], offer) for offer in offers]
    return sorted(shown, key=lambda one: one.price_micros)


def compute_reliability(vendor: Vendor) -> float | None:
    """Share of a vendor's work that it delivered in time; ``None`` before its first."""
    delivered = Preparation.objects.filter(
        vendor=vendor, status=PreparationStatus.ACCEPTED, accepted_at__lte=F("due_at")
    ).count()
    missed = Preparation.objects.filter(missed__contains=[{"vendor": vendor.pk}]).count()
    return delivered / (delivered + missed) if delivered + missed else None


def find_report(dataset: Dataset) -> dict[str, Any] | None:
    """What a preparation would find in a data set; ``None`` until it is known."""
    return DataReport.objects.filter(dataset=dataset).values_list("report", flat=True).first()


def find_preparation(job: Job) -> Preparation | None:
    found = Preparation.objects.filter(job=job)
    return found.select_related("vendor", "source", "prepared", "held_out").first()
