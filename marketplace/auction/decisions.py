"""Deciding the bids that wait, a batch in one transaction."""

from __future__ import annotations

import logging
import math
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime

from django.db import OperationalError

from marketplace.auction import locks, wakeups
from marketplace.auction.book import commitment_salt
from marketplace.auction.lane import Lane, is_lock_timeout, zone_lane
from marketplace.auction.models import Bid, BidStatus
from marketplace.auction.reservations import reservations_of
from marketplace.common.bulk import rows_insert, rows_update
from marketplace.fleet.models import Zone
from marketplace.fleet.selectors import last_slot_until, slot_ends_at
from marketplace.jobs.services import Opening, jobs_open
from marketplace.payments.conclusions import Conclusion, holds_conclude
from scheduler import types as scheduler
from scheduler.auction import Entry, events

log = logging.getLogger(__name__)

#: Most bids of one transaction; more wait for the next, so that answers keep coming.
BATCH_LIMIT = 128


@dataclass(frozen=True, slots=True)
class Batch:
    """What one run of the lane did."""

    decided: int = 0
    admitted: int = 0
    #: More bids wait.
    full: bool = False
    #: Another lane had the zone for too long; nothing was done.
    stepped_aside: bool = False


def decide_pending_bids(
    *, zone: Zone, now: datetime, limit: int = BATCH_LIMIT, only: str | None = None
) -> Batch:
    """Decide the bids that wait in the order they arrived; all of the batch or nothing.

    Natural batching: whatever came while the last batch was written is the next
    one, so a lone bid is decided at once and a crowd shares one commit. ``only``
    names the one bid to decide.
    """
    if not Bid.objects.filter(zone=zone, status=BidStatus.PENDING).exists():
        return Batch()
    try:
        with zone_lane(zone=zone, now=now) as lane:
            bids = locks.pending_bids_lock(zone_id=zone.pk, limit=limit, only=only)
            decided = [(bid, lane.apply(_arrived(lane, bid))) for bid in bids]
            decisions_record(lane, decided)
    except OperationalError as error:
        if not is_lock_timeout(error):
            raise
        log.warning("zone %s: another lane is at work; stepping aside", zone.name)
        return Batch(stepped_aside=True)
    return Batch(
        decided=len(bids),
        admitted=sum(bid.status == BidStatus.ADMITTED for bid in bids),
        full=len(bids) == limit,
    )


def task_of_bid(bid: Bid, *, zone: Zone, first_slot: int) -> scheduler.Task:
    """The scheduler's value of a bid."""
    return scheduler.Task(
        id=bid.pk,
        arrival_slot=first_slot,
        deadline_slot=last_slot_until(zone, bid.deadline_at),
        compute_demand=bid.compute_demand,
        memory_demand=bid.memory_demand_gb,
        bid=float(bid.price_micros),
        rates=dict(sorted(bid.rates.items())),
    )


def _arrived(lane: Lane, bid: Bid) -> events.BidArrived:
    task = task_of_bid(bid, zone=lane.zone, first_slot=lane.first_free_slot)
    return events.BidArrived(task=task, slot=lane.slot, salt=commitment_salt())


def decisions_record(lane: Lane, decided: Sequence[tuple[Bid, Entry]]) -> None:
    """Everything that follows from decisions, in the lane's transaction."""
    for bid, entry in decided:
        _decision_write(lane, bid, entry)
    rows_update([bid for bid, _ in decided], DECISION_FIELDS)
    admitted = [bid for bid, _ in decided if bid.status == BidStatus.ADMITTED]
    nodes = lane.book.nodes
    rows_insert(
        row
        for bid in admitted
        for row in reservations_of(bid, cells=_cells(bid), rates=bid.rates, nodes=nodes)
    )
    jobs_open(openings=[_opening(lane, bid) for bid in admitted], now=lane.now)
    # Late, because those who place bids wait for the wallets it locks.
    holds_conclude(conclusions=[_conclusion(bid) for bid, _ in decided], now=lane.now)
    wakeups.decided_notify(bid_ids=[bid.pk for bid, _ in decided])
    lane.news["decisions"] = [decision_news(bid) for bid, _ in decided]


DECISION_FIELDS = [
    "status",
    "decided_at",
    "position",
    "decision_hash",
    "payment_micros",
    "parts",
    "cells",
    "finish_planned_at",
    "refusal",
    "winning_price_micros",
    "winning_deadline_at",
    "winning_deadline_price_micros",
]


def _decision_write(lane: Lane, bid: Bid, entry: Entry) -> None:
    decision = entry.outcome
    assert isinstance(decision, scheduler.Decision)
    bid.decided_at = lane.now
    bid.position = entry.position
    bid.decision_hash = entry.hash
    for name, value in decision_columns(decision, zone=lane.zone).items():
        setattr(bid, name, value)


def decision_columns(decision: scheduler.Decision, *, zone: Zone) -> dict[str, object]:
    """The columns of a bid that a decision alone determines; ``verify`` compares them."""
    schedule = decision.schedule if decision.admitted else None
    slot = decision.winning_deadline_slot
    return {
        "status": BidStatus.ADMITTED if decision.admitted else BidStatus.REFUSED,
        "payment_micros": int(decision.payment) if decision.admitted else None,
        "parts": None if decision.parts is None else parts_value(decision.parts),
        "cells": None if schedule is None else [[c.slot, c.node] for c in schedule.cells],
        "finish_planned_at": None if schedule is None else slot_ends_at(zone, schedule.finish_slot),
        "refusal": "" if decision.refusal is None else str(decision.refusal),
        "winning_price_micros": _micros_up(decision.winning_price),
        "winning_deadline_at": None if slot is None else slot_ends_at(zone, slot),
        "winning_deadline_price_micros": _micros_up(decision.winning_deadline_price),
    }


def parts_value(parts: scheduler.PriceParts) -> dict[str, float]:
    """Price parts in micro-dollars, by name."""
    return {
        "vendor": parts.vendor,
        "operational": parts.operational,
        "compute": parts.compute,
        "memory": parts.memory,
        "rounding": parts.rounding,
    }


def _micros_up(amount: float | None) -> int | None:
    return None if amount is None else math.ceil(amount)


def _cells(bid: Bid) -> list[scheduler.Cell]:
    return [scheduler.Cell(slot=slot, node=node) for slot, node in bid.cells or ()]


def _conclusion(bid: Bid) -> Conclusion:
    """Winners pay their price and get the rest back, the others get everything back."""
    return Conclusion(hold_reference=bid.hold_reference, charge_micros=bid.payment_micros)


def _opening(lane: Lane, bid: Bid) -> Opening:
    assert bid.payment_micros is not None
    return Opening(
        bid_id=bid.pk,
        organisation_id=bid.organisation_id,
        created_by_id=bid.placed_by_id,
        zone=lane.zone,
        dataset_id=bid.dataset_id,
        name=bid.name,
        adapter=bid.adapter,
        training=bid.training,
        cells=tuple(_cells(bid)),
        deadline_at=bid.deadline_at,
        price_micros=bid.payment_micros,
    )


def decision_news(bid: Bid) -> dict[str, object]:
    """What anybody may see of a decision; the bid's own amount is not among it."""
    return {
        "bid_id": bid.pk,
        "position": bid.position,
        "hash": bid.decision_hash,
        "admitted": bid.status == BidStatus.ADMITTED,
        "payment_micros": bid.payment_micros,
        "refusal": bid.refusal or None,
        "decided_at": bid.decided_at.isoformat() if bid.decided_at else None,
    }
