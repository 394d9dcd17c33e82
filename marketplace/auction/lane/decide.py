"""One run of the lane over the bids that wait: received, then decided."""

from __future__ import annotations

import logging
from dataclasses import dataclass
from datetime import datetime

from django.db import DatabaseError, OperationalError

from marketplace.auction.book.engine_cache import LogBroken
from marketplace.auction.lane.decisions import decide_received_bids
from marketplace.auction.lane.enter import enter_lane, is_lock_timeout, open_lane
from marketplace.auction.lane.sequence_bids import receive_bids, void_receipts
from marketplace.auction.models import Bid, BidStatus
from marketplace.fleet.models import Zone

log = logging.getLogger(__name__)

#: Most bids of one transaction; more wait for the next, so that answers keep coming.
BATCH_LIMIT = 128


@dataclass(frozen=True, slots=True)
class DecidedBatch:
    """What one run of the lane did."""

    decided: int = 0
    admitted: int = 0
    #: More bids wait.
    full: bool = False
    #: Another lane had the zone for too long; what was received is decided by it.
    stepped_aside: bool = False


def decide_pending_bids(
    *, zone: Zone, now: datetime, limit: int = BATCH_LIMIT, only: str | None = None
) -> DecidedBatch:
    """Receive the bids that wait, in the order they arrived, and then decide them.

    Two transactions: who dies between them has given receipts, and the next lane decides those
    bids before anything else happens to the zone. Natural batching: all that came while the last
    batch was written is the next one, so a lone bid is decided at once and a crowd shares the
    commits. ``only`` names the one bid to decide.
    """
    if not Bid.objects.filter(zone=zone, status=BidStatus.PENDING).exists():
        return DecidedBatch()
    try:
        with enter_lane(zone=zone, now=now) as lane:
            received = receive_bids(lane, limit=limit, only=only)
        decided, admitted = _decide(zone, now=now) if received else (0, 0)
    except OperationalError as error:
        if not is_lock_timeout(error):
            raise
        log.warning("zone %s: another lane is at work; stepping aside", zone.name)
        return DecidedBatch(stepped_aside=True)
    except (DatabaseError, LogBroken):
        raise
    except Exception:
        # Those who are not to blame must not wait for the one who is.
        _give_up_receipts(zone, now=now)
        raise
    return DecidedBatch(decided=decided, admitted=admitted, full=received >= limit)


def _decide(zone: Zone, *, now: datetime) -> tuple[int, int]:
    with open_lane(zone=zone, now=now) as lane:
        return decide_received_bids(lane)


def _give_up_receipts(zone: Zone, *, now: datetime) -> None:
    with open_lane(zone=zone, now=now) as lane:
        void_receipts(lane, lane.book.engine.open_receipts, reason="failed")
