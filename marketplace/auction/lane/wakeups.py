"""Waking the lane when bids arrive, and the waiting requests when bids are decided.

Nothing here is needed for correctness: the sweep finds bids whose wake-up was
lost, and a waiting request looks at the row itself. The lane is woken through Celery,
once for any number of pending bids. Waiting requests are woken by PostgreSQL's NOTIFY,
which is sent by the commit that makes the decisions visible.
"""

from __future__ import annotations

import logging
from collections.abc import Iterable

from django.core.cache import cache
from django.db import transaction

from marketplace.common.db.notifications import notify
from marketplace.common.queue import enqueue

log = logging.getLogger(__name__)

DECIDED_CHANNEL = "auction_decided"
#: Seconds a wake-up on its way suppresses others; the sweep comes as often.
WAKE_ONCE_S = 2


def wake_lane(*, zone_id: str) -> None:
    """Ask for one run of the zone's lane; call after commit."""
    try:
        if not cache.add(_wake_key(zone_id), 1, timeout=WAKE_ONCE_S):
            return
        enqueue("auction.decide_pending_bids", zone_id=zone_id)
    except Exception:  # the bid is stored; a lost wake-up must not fail the request
        log.warning("could not wake the lane of zone %s; the sweep will", zone_id, exc_info=True)


def wake_lane_on_commit(*, zone_id: str) -> None:
    transaction.on_commit(lambda: wake_lane(zone_id=zone_id))


def clear_lane_wakeup(*, zone_id: str) -> None:
    """Call before the lane looks for bids: a bid that comes later sends a new wake-up."""
    try:
        cache.delete(_wake_key(zone_id))
    except Exception:
        log.warning("could not clear the wake-up of zone %s", zone_id, exc_info=True)


def notify_decided(*, bid_ids: Iterable[str]) -> None:
    """Wake the requests that wait for these bids when the present transaction commits."""
    notify(DECIDED_CHANNEL, bid_ids)


def _wake_key(zone_id: str) -> str:
    return f"auction:lane:{zone_id}:woken"
