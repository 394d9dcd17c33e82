"""Placing, awaiting and taking back bids. ``lane`` decides them."""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from datetime import datetime
from typing import Any

from django.db import connection, transaction

from marketplace.accounts.models import Organisation, User
from marketplace.auction import locks
from marketplace.auction.bidding.place import NewBid, place_bids
from marketplace.auction.lane import wakeups
from marketplace.auction.lane.decide import decide_pending_bids
from marketplace.auction.models import Bid, BidStatus
from marketplace.common.errors import Conflict
from marketplace.fleet.models import Zone
from marketplace.jobs.models import Dataset
from marketplace.payments.services import release_hold

__all__ = [
    "cancel_bid",
    "decide_pending_bids",
    "place_bid",
    "place_bids",
    "wait_for_bid",
    "wait_for_bids",
]

#: What the web waits for a decision before it answers "pending".
WAIT_S = 2.0


def place_bid(
    *,
    organisation: Organisation,
    placed_by: User | None,
    zone: Zone,
    dataset: Dataset,
    name: str,
    adapter: Mapping[str, Any],
    training: Mapping[str, Any],
    price_micros: int,
    deadline_at: datetime,
    idempotency_key: str | None,
    now: datetime,
) -> Bid:
    """Append a bid to the zone's queue and hold its price in the wallet.

    The bid is decided by the zone's lane; ``wait_for_bid`` returns it decided. The
    same key with the same request returns the first bid and does nothing else.

    Raises
    ------
    UserError
        The request cannot be bid for as it stands; nothing was stored or held.
    Conflict
        ``idempotency_key_reused``: the key belongs to another request.
    PaymentRequired
        ``insufficient_funds``: the wallet has less than the price.
    """
    [outcome] = place_bids(
        asked=[
            NewBid(
                organisation=organisation,
                placed_by=placed_by,
                zone=zone,
                dataset=dataset,
                name=name,
                adapter=adapter,
                training=training,
                price_micros=price_micros,
                deadline_at=deadline_at,
                idempotency_key=idempotency_key,
            )
        ],
        now=now,
    )
    if isinstance(outcome, Exception):
        raise outcome
    return outcome.bid


def wait_for_bid(*, bid: Bid, timeout_s: float | None = None) -> Bid:
    """The bid once it is decided, or as it stands after ``timeout_s`` (``WAIT_S``).

    Call outside a transaction. The database connection goes back to the pool
    while waiting, so that waiting requests do not starve deciding ones.
    """
    return wait_for_bids(bids=[bid], timeout_s=timeout_s)[0]


def wait_for_bids(*, bids: Sequence[Bid], timeout_s: float | None = None) -> list[Bid]:
    """The bids once all are decided, or as they stand after ``timeout_s`` in all."""
    ids = [bid.pk for bid in bids]
    ends_at = time.monotonic() + (WAIT_S if timeout_s is None else timeout_s)
    with wakeups.listener.waiting_for(ids) as decided:
        while True:
            left_s = ends_at - time.monotonic()
            decided.clear()
            waiting = Bid.objects.filter(pk__in=ids, status=BidStatus.PENDING)
            if left_s <= 0 or not waiting.exists():
                found = Bid.objects.select_related("zone").in_bulk(ids)
                return [found[bid_id] for bid_id in ids]
            if not connection.in_atomic_block:
                connection.close()
            decided.wait(min(left_s, wakeups.LOOK_EVERY_S))


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
        wakeups.notify_decided(bid_ids=[locked.pk])
    return locked
