"""Waiting for the decision of a bid, on a thread of the request's own."""

from __future__ import annotations

import time
from concurrent.futures import wait

from django.db import connection

from marketplace.auction.bidding import listener as listening
from marketplace.auction.bidding.listener import listener
from marketplace.auction.models import Bid, BidStatus
from marketplace.common.traces import record_request

#: What a request waits for a decision before it is answered with the pending bid.
WAIT_S = 2.0


def wait_for_bid(*, bid: Bid, timeout_s: float | None = None) -> Bid:
    """The bid once it is decided, or as it stands after ``timeout_s`` (``WAIT_S``).

    Call outside a transaction. The database connection goes back to the pool
    while waiting, so that waiting requests do not starve deciding ones.
    """
    ends_at = time.monotonic() + (WAIT_S if timeout_s is None else timeout_s)
    listener.listen()
    with listener.expecting(bid.pk) as decided:
        while True:
            found = Bid.objects.select_related("zone").get(pk=bid.pk)
            left_s = ends_at - time.monotonic()
            if left_s <= 0 or found.status != BidStatus.PENDING:
                record_request(bid_id=bid.pk)
                return found
            if not connection.in_atomic_block:
                connection.close()
            wait([decided], timeout=min(left_s, listening.LOOK_EVERY_S))
