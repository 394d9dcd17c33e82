"""Deciding the bids that wait, a batch in one transaction."""

from __future__ import annotations

import hmac
import logging
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Any

from django.conf import settings
from django.db import OperationalError

from marketplace.auction import locks
from marketplace.auction.book.decision_rows import build_decision_columns
from marketplace.auction.book.engine_cache import commitment_salt
from marketplace.auction.book.reservations import build_reservation_rows, insert_reservations
from marketplace.auction.lane import wakeups
from marketplace.auction.lane.enter import Lane, enter_lane, is_lock_timeout
from marketplace.auction.locks import PendingBid
from marketplace.auction.models import Bid, BidStatus, hold_reference
from marketplace.auction.queries import has_pending_bids
from marketplace.common.db.bulk_writes import JsonText, send_updates
from marketplace.fleet.models import Zone
from marketplace.fleet.selectors import last_slot_until
from marketplace.jobs.services import Opening, open_jobs
from marketplace.payments.holds import HoldSettlement, settle_holds
from scheduler import types as scheduler
from scheduler.auction import ChainEntry
from scheduler.auction.log import events

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
    #: Another lane had the zone for too long; nothing was done.
    stepped_aside: bool = False


def decide_pending_bids(
    *, zone: Zone, now: datetime, limit: int = BATCH_LIMIT, only: str | None = None
) -> DecidedBatch:
    """Decide the bids that wait in the order they arrived; all of the batch or nothing.

    Natural batching: whatever came while the last batch was written is the next
    one, so a lone bid is decided at once and a crowd shares one commit. ``only``
    names the one bid to decide.
    """
    if not has_pending_bids(zone_id=zone.pk):
        return DecidedBatch()
    try:
        with enter_lane(zone=zone, now=now) as lane:
            bids = locks.lock_pending_bids(zone_id=zone.pk, limit=limit, only=only)
            decided = [(bid, lane.apply(_arrived(lane, bid))) for bid in bids]
            admitted = record_decisions(lane, decided)
    except OperationalError as error:
        if not is_lock_timeout(error):
            raise
        log.warning("zone %s: another lane is at work; stepping aside", zone.name)
        return DecidedBatch(stepped_aside=True)
    return DecidedBatch(
        decided=len(bids),
        admitted=admitted,
        full=len(bids) == limit,
    )


def task_from_bid(bid: PendingBid, *, zone: Zone, first_slot: int) -> scheduler.Task:
    """The scheduler's value of a bid."""
    return scheduler.Task(
        id=bid.pk,
        arrival_slot=first_slot,
        deadline_slot=last_slot_until(zone, bid.deadline_at),
        compute_demand=bid.compute_demand,
        memory_demand=bid.memory_demand_gb,
        bid=float(bid.price_micros),
        rates=dict(sorted(bid.rates.items())),
        owner=name_owner(zone_id=zone.pk, organisation_id=bid.organisation_id),
    )


def name_owner(*, zone_id: str, organisation_id: str) -> str:
    """What a zone's log calls an organisation: the same always, and no guess at which it is."""
    text = f"auction.owner|{zone_id}|{organisation_id}"
    return hmac.digest(settings.SECRET_KEY.encode(), text.encode(), "sha256").hex()[:16]


def _arrived(lane: Lane, bid: PendingBid) -> events.BidArrived:
    task = task_from_bid(bid, zone=lane.zone, first_slot=lane.first_free_slot)
    return events.BidArrived(task=task, slot=lane.slot, salt=commitment_salt())


@dataclass(frozen=True, slots=True)
class _Decided:
    """A bid and the columns that its decision fills."""

    bid: PendingBid
    #: By name, those of ``DECISION_FIELDS``.
    columns: dict[str, Any]
    #: Empty unless admitted.
    cells: tuple[scheduler.Cell, ...]


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


DECISION_FIELDS = [
    "status",
    "decided_at",
    "position",
    "decision_hash",
    "payment_micros",
    "parts",
    "finish_planned_at",
    "refusal",
    "winning_price_micros",
    "winning_deadline_at",
    "winning_deadline_price_micros",
]


def _decided(lane: Lane, bid: PendingBid, entry: ChainEntry) -> _Decided:
    decision = entry.outcome
    assert isinstance(decision, scheduler.Decision)
    columns = build_decision_columns(decision, zone=lane.zone) | {
        "decided_at": lane.now,
        "position": entry.position,
        "decision_hash": entry.hash,
    }
    schedule = decision.schedule if decision.admitted else None
    return _Decided(
        bid=bid,
        columns={name: columns[name] for name in DECISION_FIELDS},
        cells=() if schedule is None else tuple(schedule.cells),
    )


def _conclusion(of: _Decided) -> HoldSettlement:
    """Winners pay their price and get the rest back, the others get everything back."""
    return HoldSettlement(
        hold_reference=hold_reference(of.bid.pk), charge_micros=of.columns["payment_micros"]
    )


def _opening(lane: Lane, of: _Decided) -> Opening:
    bid = of.bid
    return Opening(
        bid_id=bid.pk,
        organisation_id=bid.organisation_id,
        created_by_id=bid.placed_by_id,
        zone=lane.zone,
        dataset_id=bid.dataset_id,
        name=bid.name,
        spec=JsonText(f'{{"adapter": {bid.adapter}, "training": {bid.training}}}'),
        cells=of.cells,
        deadline_at=bid.deadline_at,
        price_micros=of.columns["payment_micros"],
    )


def decision_news(bid: Bid) -> dict[str, object]:
    """What anybody may see of a decision; the bid's own amount is not among it."""
    return _news(bid.pk, {name: getattr(bid, name) for name in _NEWS_FIELDS})


_NEWS_FIELDS = ("position", "decision_hash", "status", "payment_micros", "refusal", "decided_at")


def _news(bid_id: str, columns: Mapping[str, Any]) -> dict[str, object]:
    return {
        "bid_id": bid_id,
        "position": columns["position"],
        "hash": columns["decision_hash"],
        "admitted": columns["status"] == BidStatus.ADMITTED,
        "payment_micros": columns["payment_micros"],
        "refusal": columns["refusal"] or None,
        "decided_at": columns["decided_at"].isoformat() if columns["decided_at"] else None,
    }
