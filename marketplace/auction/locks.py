"""The only places of the auction that lock rows; always late and in this order.

A zone's lane lock comes first, then bids in order of arrival, then wallets in
order of organisation. Nobody takes them the other way round, so nobody waits in
a circle.
"""

from __future__ import annotations

from marketplace.auction.models import Bid, BidStatus, Pricing


def pending_bids_lock(*, zone_id: str, limit: int, only: str | None = None) -> list[Bid]:
    """The oldest bids that wait for a decision; call while holding the zone's lane lock.

    The rows are locked against a cancellation at the same moment. A bid that
    arrived earlier but committed later simply is in a later batch. ``only`` takes
    that one bid; without it, bids set aside after a failure are passed over.
    """
    bids = Bid.objects.select_for_update(of=("self",)).filter(
        zone_id=zone_id, status=BidStatus.PENDING
    )
    bids = bids.filter(retry_at=None) if only is None else bids.filter(pk=only)
    return list(bids.order_by("arrival")[:limit])


def bid_lock(*, bid_id: str) -> Bid:
    return Bid.objects.select_for_update(of=("self",)).select_related("zone").get(pk=bid_id)


def pricing_lock(*, zone_id: str) -> Pricing | None:
    """What the zone's solver left for its lane; call while holding the zone's lane lock."""
    return Pricing.objects.select_for_update().filter(zone_id=zone_id).first()
