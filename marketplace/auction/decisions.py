"""Deciding the bids that wait, a batch in one transaction."""

from __future__ import annotations

import logging
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Any

from django.db import OperationalError

from marketplace.auction import locks, wakeups
from marketplace.auction.book import commitment_salt
from marketplace.auction.lane import Lane, is_lock_timeout, zone_lane
from marketplace.auction.locks import WAITING, PendingBid
from marketplace.auction.models import Bid, BidStatus, hold_reference
from marketplace.auction.reservations import reservation_rows, reservations_insert
from marketplace.common.bulk import JsonText, values_write
from marketplace.common.statements import Statement, ask
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
    if not bids_wait(zone_id=zone.pk):
        return Batch()
    try:
        with zone_lane(zone=zone, now=now) as lane:
            bids = locks.pending_bids_lock(zone_id=zone.pk, limit=limit, only=only)
            decided = [(bid, lane.apply(_arrived(lane, bid))) for bid in bids]
            admitted = decisions_record(lane, decided)
    except OperationalError as error:
        if not is_lock_timeout(error):
            raise
        log.warning("zone %s: another lane is at work; stepping aside", zone.name)
        return Batch(stepped_aside=True)
    return Batch(
        decided=len(bids),
        admitted=admitted,
        full=len(bids) == limit,
    )


def bids_wait(*, zone_id: str) -> bool:
    """Whether bids wait to be decided, set aside or not."""
    [[(found,)]] = ask(Statement(_BIDS_WAIT, (zone_id,)))
    return found


_BIDS_WAIT = f"SELECT EXISTS (SELECT {WAITING})"


def task_of_bid(bid: PendingBid, *, zone: Zone, first_slot: int) -> scheduler.Task:
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


def _arrived(lane: Lane, bid: PendingBid) -> events.BidArrived:
    task = task_of_bid(bid, zone=lane.zone, first_slot=lane.first_free_slot)
    return events.BidArrived(task=task, slot=lane.slot, salt=commitment_salt())


@dataclass(frozen=True, slots=True)
class _Decided:
    """A bid and the columns that its decision fills."""

    bid: PendingBid
    #: By name, those of ``DECISION_FIELDS``.
    columns: dict[str, Any]
    #: Empty unless admitted.
    cells: tuple[scheduler.Cell, ...]


def decisions_record(lane: Lane, entries: Sequence[tuple[PendingBid, Entry]]) -> int:
    """Everything that follows from decisions, in the lane's transaction; how many were admitted."""
    decided = [_decided(lane, bid, entry) for bid, entry in entries]
    values_write(Bid, DECISION_FIELDS, [(of.bid.pk, *of.columns.values()) for of in decided])
    admitted = [of for of in decided if of.columns["status"] == BidStatus.ADMITTED]
    nodes = lane.book.nodes
    reservations_insert(
        row
        for of in admitted
        for row in reservation_rows(
            bid_id=of.bid.pk,
            zone_id=lane.zone.pk,
            memory_gb=of.bid.memory_demand_gb,
            cells=of.cells,
            rates=of.bid.rates,
            nodes=nodes,
        )
    )
    jobs_open(openings=[_opening(lane, of) for of in admitted], now=lane.now)
    # Late, because those who place bids wait for the wallets it locks.
    holds_conclude(conclusions=[_conclusion(of) for of in decided], now=lane.now)
    wakeups.decided_notify(bid_ids=[of.bid.pk for of in decided])
    lane.news["decisions"] = [_news(of.bid.pk, of.columns) for of in decided]
    return len(admitted)


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


def _decided(lane: Lane, bid: PendingBid, entry: Entry) -> _Decided:
    decision = entry.outcome
    assert isinstance(decision, scheduler.Decision)
    columns = decision_columns(decision, zone=lane.zone) | {
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


def _conclusion(of: _Decided) -> Conclusion:
    """Winners pay their price and get the rest back, the others get everything back."""
    return Conclusion(
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
        spec=JsonText(f'{{"adapter": {bid.adapter_text}, "training": {bid.training_text}}}'),
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
