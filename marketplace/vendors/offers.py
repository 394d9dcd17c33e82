"""Collecting quotes when a bid arrives, and what vendors can do in a slot."""

from __future__ import annotations

import math
from collections.abc import Collection, Mapping, Sequence
from datetime import datetime, timedelta
from fractions import Fraction
from typing import Any

from marketplace.common.errors import UserError
from marketplace.fleet.models import Zone
from marketplace.jobs.models import Dataset
from marketplace.vendors.endpoint_quotes import EndpointQuote
from marketplace.vendors.models import Listing, Vendor
from marketplace.vendors.plans import find_sold_plan
from marketplace.vendors.quoting import DataSize, VendorOffer, VendorTime, build_offer, make_offer
from marketplace.vendors.wishes import parse_wish
from scheduler.types import LaborVendor
from workers.protocol.job_terms import PreparationWish


def measure_raw_data(dataset: Dataset) -> DataSize:
    """The size of a data set as it is: every line counts as a row that may become usable."""
    rows = _count_raw_rows(dataset)
    return DataSize(rows=rows, tokens=math.ceil(dataset.tokens * measure_growth(dataset)))


def find_rows_bound(dataset: Dataset, wish: PreparationWish) -> int:
    """Rows that a job on prepared data is sold for: by its plan, or all of the file's."""
    plan = find_sold_plan(wish, dataset=dataset)
    return measure_raw_data(dataset).rows if plan is None else plan.rows


def check_gold(wish: PreparationWish, *, dataset: Dataset) -> None:
    """Refuse known answers to rows that a data set does not have.

    Raises
    ------
    UserError
        ``invalid_preparation``.
    """
    rows = _count_raw_rows(dataset)
    if any(int(number) > rows for number in wish.gold):
        raise UserError(
            "invalid_preparation",
            f"gold names rows that the file does not have; it has {rows:,}.",
            param="preparation.gold",
        )


def measure_growth(dataset: Dataset) -> Fraction:
    """How much larger a data set is once all of it is usable, 1 or more: an upper bound.

    A line that cannot be read yet counts as many tokens as the average of the others, or as the
    repairing program's total implies, whichever is more.
    """
    by_rows = Fraction(_count_raw_rows(dataset), dataset.rows)
    if not dataset.tokens:
        return by_rows
    return max(by_rows, Fraction(dataset.repaired_tokens, dataset.tokens))


def _count_raw_rows(dataset: Dataset) -> int:
    """Rows of the file, with those that its owner left out for their length: a vendor gets all."""
    return dataset.rows + dataset.faulty + dataset.left_out_long


def collect_offers(
    *,
    zone: Zone,
    dataset: Dataset,
    wish: PreparationWish,
    answers: Mapping[str, EndpointQuote],
    now: datetime,
) -> list[VendorOffer]:
    """The offers of all vendors that the owner lets see the data, by vendor.

    Parameters
    ----------
    answers
        What vendors' own systems quoted, by vendor; one that has such a system and is not among
        them makes no offer.

    Raises
    ------
    UserError
        ``no_vendor``: there is none.
    """
    size = measure_raw_data(dataset)
    offers = [
        _make_offer(listing, size, wish, answers=answers, now=now)
        for listing in list_listings(zone=zone, wish=wish)
    ]
    found = [offer for offer in offers if offer is not None]
    if not found:
        raise UserError(
            "no_vendor",
            "No vendor prepares such data in this zone now. Bid without preparation, or allow "
            "other kinds of vendor.",
            param="preparation",
        )
    return found


def list_listings(*, zone: Zone, wish: PreparationWish) -> list[Listing]:
    """Vendors that may be given the work in a zone, in the order of their ids."""
    listings = Listing.objects.filter(
        zone=zone,
        vendor__kind__in=wish.kinds,
        vendor__skills__contains=list(wish.skills),
        vendor__approved_at__isnull=False,
        vendor__paused_at__isnull=True,
    )
    return list(listings.select_related("vendor", "zone").order_by("vendor_id"))


def _make_offer(
    listing: Listing,
    size: DataSize,
    wish: PreparationWish,
    *,
    answers: Mapping[str, EndpointQuote],
    now: datetime,
) -> VendorOffer | None:
    vendor = listing.vendor
    most = vendor.facts.rows_max
    if most is not None and size.rows > most:
        return None
    time = build_vendor_time(listing, wish)
    if not vendor.endpoint:
        return make_offer(vendor.quote_function, size, vendor_id=vendor.pk, time=time, now=now)
    answer = answers.get(vendor.pk)
    if answer is None:
        return None
    return build_offer(
        size,
        vendor_id=vendor.pk,
        price_micros=answer.price_micros,
        work_s=answer.work_s,
        time=time,
        now=now,
    )


def compute_due_at(
    *, vendor: Vendor, wish: Mapping[str, Any], ready_at: datetime, slot_s: int
) -> datetime:
    """Until when a vendor must deliver, so that the owner's time to look ends before training."""
    slots = compute_review_slots(vendor, parse_wish(wish), slot_s=slot_s)
    return ready_at - timedelta(seconds=slots * slot_s)


def compute_review_slots(vendor: Vendor, wish: PreparationWish, *, slot_s: int) -> int:
    """Slots that the owner has to refuse a delivery; a program's is accepted by rule."""
    return -(-wish.review_s // slot_s) if vendor.facts.is_reviewed else 0


def build_vendor_time(listing: Listing, wish: PreparationWish) -> VendorTime:
    """How a vendor's work fits into a zone's slots, with the owner's time to look at it."""
    vendor, slot_s = listing.vendor, listing.zone.slot_s
    return VendorTime(
        slot_s=slot_s,
        rows_per_slot=listing.rows_per_slot,
        availability=vendor.availability,
        review_slots=compute_review_slots(vendor, wish, slot_s=slot_s),
    )


def find_capacities(*, zone: Zone, vendor_ids: Collection[str]) -> dict[str, int]:
    """Rows that each of these vendors takes in a slot of a zone now; 0 where it takes none."""
    if not vendor_ids:
        return {}
    listings = Listing.objects.filter(
        zone=zone,
        vendor__in=vendor_ids,
        vendor__approved_at__isnull=False,
        vendor__paused_at__isnull=True,
    )
    known = dict(listings.values_list("vendor_id", "rows_per_slot"))
    return {vendor_id: known.get(vendor_id, 0) for vendor_id in sorted(vendor_ids)}


def read_offers(offers: Sequence[Sequence[Any]]) -> tuple[LaborVendor, ...]:
    """Offers as they are stored with a bid, as the scheduler's values."""
    return tuple(
        LaborVendor(vendor_id, float(price_micros), delay_slots, load)
        for vendor_id, price_micros, delay_slots, load in offers
    )
