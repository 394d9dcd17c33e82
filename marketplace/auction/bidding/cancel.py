"""Taking a bid back before it is decided."""

from __future__ import annotations

from datetime import datetime

from django.db import transaction

from marketplace.auction import locks
from marketplace.auction.lane import wakeups
from marketplace.auction.models import Bid, BidStatus, hold_reference
from marketplace.common.errors import Conflict
from marketplace.payments.services import release_hold
from marketplace.warm.offers import release_offers


def cancel_bid(*, bid: Bid, now: datetime) -> Bid:
    """Take a bid back before it is decided; its hold is released.

    One that wins or loses with the others of its bundle takes them along.

    Raises
    ------
    Conflict
        ``bid_already_decided``: cancel the job instead.
    """
    with transaction.atomic():
        if bid.is_joint and bid.bundle_id is not None:
            together = locks.lock_joint_bids(bundle_id=bid.bundle_id)
            locked = next(other for other in together if other.pk == bid.pk)
        else:
            locked = locks.lock_bid(bid_id=bid.pk)
            together = [locked]
        if locked.status == BidStatus.CANCELLED:
            return locked
        if locked.status not in Bid.OPEN:
            raise Conflict(
                "bid_already_decided",
                f"This bid was {locked.status} already; cancel its job instead."
                if locked.status == BidStatus.ADMITTED
                else "This bid was refused already; there is nothing to cancel.",
            )
        for one in together:
            one.status = BidStatus.CANCELLED
            one.decided_at = now
            one.save(update_fields=["status", "decided_at"])
        held_for = bid.bundle_id if bid.is_joint and bid.bundle_id else bid.pk
        if locked.is_joint or locked.has_amount:
            release_hold(hold_reference=hold_reference(held_for), now=now)
        if locked.offer_id:
            release_offers(bid_ids=[locked.pk])
        wakeups.notify_decided(bid_ids=[one.pk for one in together])
    return locked
