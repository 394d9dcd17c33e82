"""Collecting quotes when a bid arrives, and what vendors can do in a slot."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from datetime import datetime
from typing import Any

from marketplace.common.errors import UserError
from marketplace.fleet.models import Zone
from marketplace.jobs.models import Dataset
from marketplace.vendors.models import Listing
from marketplace.vendors.quoting import DataSize, VendorOffer, make_offer
from marketplace.vendors.wishes import PreparationWish
from scheduler.types import LaborVendor


def measure_raw_data(dataset: Dataset) -> DataSize:
    """The size of a data set as it is: every line counts as a row that may become usable."""
    rows = dataset.rows + dataset.faulty
    # A line that cannot be read yet has as many tokens as the others have.
    return DataSize(rows=rows, tokens=-(-dataset.tokens * rows // dataset.rows))


def collect_offers(
    *, zone: Zone, dataset: Dataset, wish: PreparationWish, now: datetime
) -> list[VendorOffer]:
    """The offers of all vendors that the owner lets see the data, by vendor.

    Raises
    ------
    UserError
        ``no_vendor``: there is none.
    """
    size = measure_raw_data(dataset)
    listings = Listing.objects.filter(
        zone=zone,
        vendor__kind__in=wish.kinds,
        vendor__approved_at__isnull=False,
        vendor__paused_at__isnull=True,
    )
    offers = [
        make_offer(
            listing.vendor.quote_function,
            size,
            vendor_id=listing.vendor_id,
            slot_s=zone.slot_s,
            rows_per_slot=listing.rows_per_slot,
            now=now,
        )
        for listing in listings.select_related("vendor").order_by("vendor_id")
    ]
    found = [offer for offer in offers if offer is not None]
    if not found:
        raise UserError(
            "no_vendor",
            "No vendor prepares data in this zone now. Bid without preparation, or allow other "
            "kinds of vendor.",
            param="preparation",
        )
    return found


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
