"""Taking a bid back before it is decided."""

from __future__ import annotations

from datetime import datetime

from django.db import transaction

from marketplace.auction import locks
from marketplace.auction.lane import wakeups
from marketplace.auction.models import Bid, BidStatus
from marketplace.common.errors import Conflict
from marketplace.payments.services import release_hold
from marketplace.warm.offers import release_offers


def cancel_bid(*, bid: Bid, now: datetime) -> Bid:
    """Take a bid back before it is decided; its hold is released.

    Raises
    ------
    Conflict
        ``bid_already_decided``: cancel the job instead.
    """
    with transaction.atomic():
        locked = locks.lock_bid(bid_id=bid.pk)
        if locked.status == BidStatus.CANCELLED:
            return locked
        if locked.status != BidStatus.PENDING:
            raise Conflict(
                "bid_already_decided",
                f"This bid was {locked.status} already; cancel its job instead."
                if locked.status == BidStatus.ADMITTED
                else "This bid was refused already; there is nothing to cancel.",
            )
        locked.status = BidStatus.CANCELLED
        locked.decided_at = now
        locked.save(update_fields=["status", "decided_at"])
        release_hold(hold_reference=locked.hold_reference, now=now)
        if locked.offer_id:
            release_offers(bid_ids=[locked.pk])
        wakeups.notify_decided(bid_ids=[locked.pk])
    return locked
