"""One run of the lane over the bids that wait: received, then decided."""

from __future__ import annotations

import logging
from dataclasses import dataclass
from datetime import datetime

from django.db import DatabaseError, OperationalError

from marketplace.auction.book.engine_cache import LogBroken
from marketplace.auction.lane.decisions import decide_received_bids
from marketplace.auction.lane.enter import enter_lane, hold_lane, is_lock_timeout
from marketplace.auction.lane.receive import receive_bids, void_receipts
from marketplace.auction.queries import has_pending_bids
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


def record_decisions(lane: Lane, entries: Sequence[tuple[PendingBid, ChainEntry]]) -> int:
    """Everything that follows from decisions, in the lane's transaction; how many were admitted."""
    decided = [_decided(lane, bid, entry) for bid, entry in entries]
    send_updates(Bid, DECISION_FIELDS, [(of.bid.pk, *of.columns.values()) for of in decided])
    admitted = [of for of in decided if of.columns["status"] == BidStatus.ADMITTED]
    nodes = lane.book.nodes
    insert_reservations(
        row
        for of in admitted
        for row in build_reservation_rows(
            bid_id=of.bid.pk,
            zone_id=lane.zone.pk,
            memory_gb=of.bid.memory_demand_gb,
            cells=of.cells,
            rates=of.bid.rates,
            nodes=nodes,
            posted=lane.book.engine.find_posted_rates(of.cells),
        )
    )
    open_jobs(openings=[_opening(lane, of) for of in admitted], now=lane.now)
    # Late, because those who place bids wait for the wallets it locks.
    settle_holds(settlements=[_conclusion(of) for of in decided], now=lane.now)
    wakeups.notify_decided(bid_ids=[of.bid.pk for of in decided])
    lane.news["decisions"] = [_news(of.bid.pk, of.columns) for of in decided]
    return len(admitted)


def _decide(zone: Zone, *, now: datetime) -> tuple[int, int]:
    with hold_lane(zone=zone, now=now) as lane:
        return decide_received_bids(lane)


def _give_up_receipts(zone: Zone, *, now: datetime) -> None:
    with hold_lane(zone=zone, now=now) as lane:
        void_receipts(lane, lane.book.engine.open_receipts, reason="failed")
