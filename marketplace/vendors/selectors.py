"""What may be asked about preparations; nothing here writes."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import Any

from django.db.models import Count, Exists, F, OuterRef, Q, QuerySet, Sum

from marketplace.accounts.models import Organisation
from marketplace.common.errors import UserError
from marketplace.fleet.models import Zone
from marketplace.fleet.selectors import slot_at, slot_starts_at
from marketplace.jobs.models import Dataset, Job
from marketplace.vendors.agreement import Agreement, count_vendor_agreement
from marketplace.vendors.endpoints import ask_for_quotes
from marketplace.vendors.models import (
    DataAccess,
    DataReport,
    Dispute,
    EndpointCount,
    Listing,
    Preparation,
    PreparationStatus,
    RowOpinion,
    Vendor,
    VendorKind,
)
from marketplace.vendors.offers import collect_offers
from marketplace.vendors.quoting import VendorOffer
from workers.protocol.job_terms import PreparationWish


def exclude_open(jobs: QuerySet[Job]) -> QuerySet[Job]:
    """Jobs without a preparation, and jobs whose preparation is concluded."""
    is_open = Preparation.objects.filter(job=OuterRef("pk"), concluded_at__isnull=True)
    return jobs.exclude(Exists(is_open))


@dataclass(frozen=True, slots=True)
class ShownOffer:
    """What one vendor would do with a data set, and for how much."""

    vendor: Vendor
    offer: VendorOffer
    #: From when on training may use the data.
    ready_at: datetime
    #: Share of its work so far that the vendor delivered in time; ``None`` before its first.
    reliability: float | None

    @property
    def price_micros(self) -> int:
        return self.offer.price_micros


def list_offers(
    *, zone: Zone, dataset: Dataset, wish: PreparationWish, now: datetime
) -> list[ShownOffer]:
    """What each vendor that may see the data would ask for a data set, the cheapest first."""
    try:
        answers = ask_for_quotes(zone=zone, dataset=dataset, wish=wish, now=now, remembers=True)
        offers = collect_offers(zone=zone, dataset=dataset, wish=wish, answers=answers, now=now)
    except UserError:
        return []
    vendors = Vendor.objects.in_bulk([offer.vendor_id for offer in offers])
    reliability = measure_reliability(vendors)
    shown = [
        ShownOffer(
            vendors[offer.vendor_id],
            offer,
            ready_at=slot_starts_at(zone, slot_at(zone, now) + 1 + offer.delay_slots),
            reliability=reliability[offer.vendor_id],
        )
        for offer in offers
    ]
    return sorted(shown, key=lambda one: one.price_micros)


def find_kinds(zone: Zone) -> set[str]:
    """Kinds of vendor that take work in a zone now."""
    listed = Listing.objects.filter(
        zone=zone,
        rows_per_slot__gt=0,
        vendor__approved_at__isnull=False,
        vendor__paused_at__isnull=True,
    )
    return set(listed.values_list("vendor__kind", flat=True))


@dataclass(frozen=True, slots=True)
class VendorSummary:
    """A vendor with how it does."""

    vendor: Vendor
    listings: Sequence[Listing]
    #: Share of its work that it delivered in time.
    reliability: float | None
    accepted: int
    missed: int
    #: How second opinions agree with its deliveries.
    agreement: Agreement
    #: Answers of its own system in the last days, by kind.
    answers: dict[str, int]


#: Answers older than this say little of a vendor's system now.
ANSWERS_SHOWN = timedelta(days=7)


def summarize_vendor(vendor: Vendor, *, now: datetime) -> VendorSummary:
    """What a vendor offers and how it has done."""
    since = (now - ANSWERS_SHOWN).date()
    counts = EndpointCount.objects.filter(vendor=vendor, day__gte=since)
    return VendorSummary(
        vendor=vendor,
        listings=list(
            Listing.objects.filter(vendor=vendor, rows_per_slot__gt=0).select_related("zone")
        ),
        reliability=measure_reliability([vendor.pk])[vendor.pk],
        accepted=Preparation.objects.filter(
            vendor=vendor, status=PreparationStatus.ACCEPTED
        ).count(),
        missed=Preparation.objects.filter(missed__contains=[{"vendor": vendor.pk}]).count(),
        agreement=count_vendor_agreement(vendor.pk),
        answers=dict(counts.values_list("kind").annotate(Sum("count"))),
    )


#: Preparations of a vendor that its page names, the last first.
WORK_LISTED = 50


def list_work(organisation: Organisation) -> list[Preparation]:
    """Work of an organisation's vendors: what waits for them first, then what is done."""
    found = (
        Preparation.objects.filter(vendor__organisation=organisation)
        .exclude(vendor__kind=VendorKind.AUTOMATIC)
        .select_related("vendor", "source")
    )
    waiting = found.filter(status=PreparationStatus.WORKING).order_by("due_at")
    done = found.exclude(status=PreparationStatus.WORKING).order_by("-created_at")
    return [*waiting, *done[:WORK_LISTED]]


def list_disputes() -> list[Dispute]:
    """Disputes that wait for an operator, the oldest first."""
    waiting = Dispute.objects.filter(decided_at__isnull=True).order_by("opened_at")
    return list(waiting.select_related("preparation__job__organisation", "vendor__organisation"))


def has_open_dispute(preparation: Preparation) -> bool:
    return Dispute.objects.filter(preparation=preparation, decided_at__isnull=True).exists()


def can_be_disputed(preparation: Preparation, *, now: datetime) -> bool:
    """Whether its owner may still ask for the price of an accepted delivery back."""
    until = preparation.disputable_until
    if until is None or until <= now:
        return False
    return not has_spoken(preparation)


def has_spoken(preparation: Preparation) -> bool:
    """Whether a delivery's owner has disputed it, or got its price back already.

    Second opinions dispute it too, and an earlier vendor's delivery is another one.
    """
    given = RowOpinion.objects.filter(preparation=preparation, given_by__isnull=False)
    is_theirs = ~Q(opened_by__in=given.values("given_by")) | Q(is_for_owner=True)
    mine = Dispute.objects.filter(preparation=preparation, vendor=preparation.vendor_id)
    return mine.filter(is_theirs).exists()


def list_accesses(preparation: Preparation) -> list[DataAccess]:
    """Who saw an owner's data, the first first."""
    found = DataAccess.objects.filter(preparation=preparation).order_by("at", "pk")
    return list(found.select_related("vendor", "person"))


def measure_reliability(vendor_ids: Collection[str]) -> dict[str, float | None]:
    """Share of each vendor's work that it delivered in time; ``None`` before its first.

    Work is missed that went to another vendor or got a second delay, and so is work whose price
    an operator gave back to its owner.
    """
    lost = Dispute.objects.filter(
        preparation=OuterRef("pk"), vendor=OuterRef("vendor"), is_for_owner=True
    )
    accepted = Preparation.objects.filter(
        vendor__in=vendor_ids, status=PreparationStatus.ACCEPTED, delivered_at__lte=F("due_at")
    ).annotate(is_lost=Exists(lost))
    counts = accepted.values("vendor").annotate(
        kept=Count("pk", filter=Q(is_lost=False)), lost=Count("pk", filter=Q(is_lost=True))
    )
    found = {row["vendor"]: (row["kept"], row["lost"]) for row in counts}
    missed = Preparation.objects.exclude(missed=[]).aggregate(
        **{
            vendor_id: Count("pk", filter=Q(missed__contains=[{"vendor": vendor_id}]))
            for vendor_id in vendor_ids
        }
    )
    shares: dict[str, float | None] = {}
    for vendor_id in vendor_ids:
        kept, given_back = found.get(vendor_id, (0, 0))
        whole = kept + given_back + missed[vendor_id]
        shares[vendor_id] = kept / whole if whole else None
    return shares


def sum_extra_pay(*, organisation_id: str, since: datetime) -> int:
    """What the market pays beyond the owners' part where an organisation's vendors failed."""
    replaced = Preparation.objects.filter(
        replaced_for=organisation_id, replaced_at__gte=since, price_micros__gt=F("sold_micros")
    ).exclude(status__in=[PreparationStatus.FAILED, PreparationStatus.WITHDRAWN])
    extra = replaced.aggregate(total=Sum(F("price_micros") - F("sold_micros")))
    return extra["total"] or 0


def sum_unsold_rent(*, organisation_id: str, since: datetime) -> int:
    """What went back at once for cells that an organisation's vendors spared as they were to begin.

    Nobody may have bought them: the market took nothing for them.
    """
    spared = Preparation.objects.filter(
        vendor__organisation=organisation_id, concluded_at__gte=since, unsold_rent_micros__gt=0
    )
    return spared.aggregate(total=Sum("unsold_rent_micros"))["total"] or 0


def is_held_up_by_owner(job: Job, *, at: datetime) -> bool:
    """Whether by ``at`` its owner's dispute kept a job from its data beyond its first slot.

    One that the owner won did not; one that waits for an operator does, until it is decided.
    """
    preparation = find_preparation(job)
    if preparation is None or preparation.accept_by is None:
        return False
    # Not those about pay only, once the data were there.
    until = preparation.accepted_at or at
    disputes = Dispute.objects.filter(preparation=preparation, opened_at__lt=until)
    unfounded = disputes.exclude(is_for_owner=True)
    ends = unfounded.values_list("decided_at", flat=True)
    return any(min(end or at, at) > preparation.accept_by for end in ends)


def list_failed_vendors(job: Job) -> list[str]:
    """Organisations whose vendors had a job's data and did not deliver them in time."""
    missed = Preparation.objects.filter(job=job).values_list("missed", flat=True).first() or []
    vendors = Vendor.objects.filter(pk__in=[one["vendor"] for one in missed])
    return list(vendors.values_list("organisation_id", flat=True)) if missed else []


def find_report(dataset: Dataset) -> dict[str, Any] | None:
    """What a preparation would find in a data set; ``None`` while it is not known."""
    found = DataReport.objects.filter(dataset=dataset).values_list("report", flat=True).first()
    return found or None


def find_preparation(job: Job) -> Preparation | None:
    found = Preparation.objects.filter(job=job)
    return found.select_related("vendor", "source", "prepared", "held_out").first()
