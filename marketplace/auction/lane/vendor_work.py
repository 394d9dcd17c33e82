"""Giving vendors the work of the bids that were admitted with them."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from marketplace.auction.lane.lane import Lane
from marketplace.auction.models import Bid
from marketplace.fleet.selectors import slot_starts_at
from marketplace.vendors.models import Vendor
from marketplace.vendors.offers import compute_due_at, find_rows_bound
from marketplace.vendors.services import NewPreparation, open_preparations
from scheduler import types as scheduler
from workers.protocol.wire import to_json


@dataclass(frozen=True, slots=True)
class AdmittedWithVendor:
    """A bid that was admitted with a vendor, and its job."""

    bid_id: str
    job_id: str
    schedule: scheduler.Schedule


def open_vendor_work(lane: Lane, admitted: Sequence[AdmittedWithVendor]) -> None:
    """Open the preparation of each; call in the lane's transaction, once the jobs are open."""
    if not admitted:
        return
    bids = Bid.objects.select_related("dataset").in_bulk([of.bid_id for of in admitted])
    open_preparations(wanted=[_build(lane, of, bids[of.bid_id]) for of in admitted], now=lane.now)


def _build(lane: Lane, of: AdmittedWithVendor, bid: Bid) -> NewPreparation:
    chosen, ready_slot = of.schedule.vendor, of.schedule.ready_slot
    assert ready_slot is not None
    assert bid.dataset is not None
    vendor_id, price_micros, *_ = bid.offers[chosen]
    wish = to_json(bid.terms.preparation)
    return NewPreparation(
        bid_id=bid.pk,
        job_id=of.job_id,
        source_id=bid.dataset.pk,
        wish=wish,
        rows_bound=find_rows_bound(bid.dataset, bid.terms.preparation),
        vendor_id=vendor_id,
        price_micros=price_micros,
        ready_slot=ready_slot,
        due_at=compute_due_at(
            vendor=Vendor.objects.get(pk=vendor_id),
            wish=wish,
            ready_at=slot_starts_at(lane.zone, ready_slot),
            slot_s=lane.zone.slot_s,
        ),
        other_offers=[offer for n, offer in enumerate(bid.offers) if n != chosen],
    )
