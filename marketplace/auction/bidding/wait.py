"""Waiting for the decision of a bid: what a process hears of decisions, and a request's wait."""

from __future__ import annotations

import time
from collections.abc import Callable
from concurrent.futures import wait
from typing import TypeVar

from django.db import connection

from marketplace.auction.lane.wakeups import DECIDED_CHANNEL
from marketplace.auction.models import Bid, BidStatus
from marketplace.common.db.notifications import NotificationListener
from marketplace.common.traces import record_request

Row = TypeVar("Row")

#: What a request waits for a decision before it is answered with the pending bid.
WAIT_S = 2.0
#: Seconds it trusts the listener before it looks at the row itself.
LOOK_EVERY_S = 0.5
#: Decisions remembered, for requests that begin to wait after the notification came.
RECENT_MAX = 4096

#: The process's one listener to decisions.
listener = NotificationListener(DECIDED_CHANNEL, recent_max=RECENT_MAX)


def wait_for_bid(*, bid: Bid, timeout_s: float | None = None) -> Bid:
    """The bid once it is decided, or as it stands after ``timeout_s``; call as ``wait_for``."""
    rows = Bid.objects.select_related("zone")
    found = wait_for(
        bid.pk,
        lambda: rows.get(pk=bid.pk),
        waits=lambda found: found.status == BidStatus.PENDING,
        timeout_s=timeout_s,
    )
    record_request(bid_id=bid.pk)
    return found


def wait_for(
    key: str,
    read: Callable[[], Row],
    *,
    waits: Callable[[Row], bool],
    timeout_s: float | None = None,
) -> Row:
    """Read a row until it is answered, or as it stands after ``timeout_s`` (``WAIT_S``).

    Call outside a transaction. The database connection goes back to the pool
    while waiting, so that waiting requests do not starve deciding ones.
    """
    ends_at = time.monotonic() + (WAIT_S if timeout_s is None else timeout_s)
    listener.listen()
    with listener.expecting(key) as answered:
        while True:
            found = read()
            left_s = ends_at - time.monotonic()
            if left_s <= 0 or not waits(found):
                return found
            if not connection.in_atomic_block:
                connection.close()
            wait([answered], timeout=min(left_s, LOOK_EVERY_S))
