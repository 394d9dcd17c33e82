"""Deciding the bids that were received, and everything that follows from it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import groupby
from typing import Any

from marketplace.auction import locks
from marketplace.auction.book.decision_rows import build_decision_columns
from marketplace.auction.book.reservations import build_reservations
from marketplace.auction.lane import wakeups
from marketplace.auction.lane.bundles import TakenBundle, record_bundles, take_bundle
from marketplace.auction.lane.lane import Lane, TakenBid
from marketplace.auction.lane.offers import (
    end_unanswered,
    has_missed_beat,
    record_told_prices,
)
from marketplace.auction.lane.overrun_reserve import reserve_worst_cases
from marketplace.auction.lane.sequence_bids import build_arrival, void_receipts
from marketplace.auction.lane.vendor_work import AdmittedWithVendor, open_vendor_work
from marketplace.auction.models import Bid, BidStatus, Reservation, hold_reference
from marketplace.common.db.bulk_writes import send_updates
from marketplace.common.money import from_micros
from marketplace.common.traces import record_stage
from marketplace.jobs.services import Opening, open_jobs
from marketplace.jobs.terms import TERM_COLUMNS
from marketplace.payments.holds import HoldSettlement, settle_holds
from marketplace.warm.consents import end_withdrawn_starts
from marketplace.warm.models import Offer
from marketplace.warm.offers import release_offers
from marketplace.webhooks.news import BID_REFUSED, News
from marketplace.webhooks.outbox import add_messages
from scheduler import types as scheduler
from scheduler.auction.log import events


def decide_received_bids(lane: Lane) -> tuple[int, int]:
    """Decide the bids that were received, in the order of their receipts.

    Those that their owners took back, or whose slot has passed since, are not decided; the log
    says so, and of the latter each gets another receipt.

    Returns
    -------
    tuple of int
        How many were decided, and how many of them were admitted.
    """
    received = lane.book.engine.open_receipts
    bids = {bid.pk: bid for bid in locks.lock_received_bids(bid_ids=received)}
    void_receipts(lane, [pk for pk in received if pk not in bids], reason="withdrawn")
    late = [pk for pk, bid in bids.items() if bid.received_slot != lane.slot]
    void_receipts(lane, late, reason="late")
    missed = [bid for pk, bid in bids.items() if pk not in late and has_missed_beat(lane, bid)]
    void_receipts(lane, [bid.pk for bid in missed], reason="beat")
    end_unanswered(missed, reason="beat", now=lane.now)
    in_time = [bids[pk] for pk in lane.book.engine.open_receipts]
    decided: list[TakenBid] = []
    priced: list[TakenBid] = []
    bundles: list[TakenBundle] = []
    for bundle_id, together in groupby(in_time, key=_find_joint_bundle):
        arrivals = [(bid, build_arrival(lane, bid)) for bid in together]
        if bundle_id is not None:
            # Bids of a bundle that win or lose together have amounts.
            joint = [each for _, each in arrivals if isinstance(each, events.BidArrived)]
            bundles.append(take_bundle(lane, bundle_id, joint))
        for bid, arrival in arrivals:
            if isinstance(arrival, events.BidPriced):
                priced.append(TakenBid(bid, lane.apply(arrival), None))
                continue
            cold_price = _quote_cold(lane, bid, arrival.task)
            decided.append(TakenBid(bid, lane.apply(arrival), cold_price))
    record_told_prices(lane, priced)
    admitted = record_decisions(lane, decided, bundles) if decided else 0
    return len(decided) + len(priced), admitted


def _find_joint_bundle(bid: Bid) -> str | None:
    return bid.bundle_id if bid.is_joint else None


def _quote_cold(lane: Lane, bid: Bid, task: scheduler.Task) -> int | None:
    """With a warm start, the price at this moment without it: its owner never pays more.

    ``None`` where there is no warm start, or no plan without it.
    """
    start = bid.warm_start
    if start is None:
        return None
    cold = replace(task, compute_demand=start.cold_units, vendors=())
    price = lane.book.engine.quote(cold, slot=lane.slot).price
    return None if price is None else int(price)


@dataclass(frozen=True, slots=True)
class _DecidedBid:
    """A bid and the columns that its decision fills."""

    bid: Bid
    #: By name, those of ``DECISION_FIELDS``.
    columns: dict[str, Any]
    #: ``None`` unless admitted.
    schedule: scheduler.Schedule | None

    @property
    def is_admitted(self) -> bool:
        return self.columns["status"] == BidStatus.ADMITTED

    @property
    def is_left(self) -> bool:
        """Its owner left the price that it was told, and knows."""
        return not self.bid.has_amount

    @property
    def cells(self) -> tuple[scheduler.Cell, ...]:
        return () if self.schedule is None else self.schedule.cells

    @property
    def has_vendor(self) -> bool:
        return self.schedule is not None and self.schedule.ready_slot is not None


def record_decisions(
    lane: Lane, taken: Sequence[TakenBid], bundles: Sequence[TakenBundle] = ()
) -> int:
    """Everything that follows from decisions, in the lane's transaction; how many were admitted."""
    decided = [_decided(lane, one) for one in taken]
    send_updates(Bid, DECISION_FIELDS, [(of.bid.pk, *of.columns.values()) for of in decided])
    admitted = [of for of in decided if of.is_admitted]
    nodes = lane.book.nodes
    Reservation.objects.bulk_create(
        row
        for of in admitted
        for row in build_reservations(
            bid_id=of.bid.pk,
            zone_id=lane.zone.pk,
            memory_gb=of.bid.memory_demand_gb,
            cells=of.cells,
            rates=of.bid.rates,
            nodes=nodes,
            posted=lane.book.engine.find_posted_rates(of.cells),
        )
    )
    # Cells bought for jobs to come are the express lane's.
    with_jobs = [of for of in admitted if of.bid.dataset_id is not None]
    job_ids = open_jobs(openings=[_opening(lane, of) for of in with_jobs], now=lane.now)
    open_vendor_work(
        lane,
        [
            AdmittedWithVendor(of.bid.pk, job_id, of.schedule)
            for of, job_id in zip(with_jobs, job_ids, strict=True)
            if of.schedule is not None and of.has_vendor
        ],
    )
    # Late, because those who place bids wait for the wallets it locks.
    record_bundles(
        lane,
        bundles,
        won=[(of.bid, of.columns["payment_micros"]) for of in admitted if of.bid.is_joint],
    )
    # Of a bundle that lost all is released by now; its bids have no holds of their own.
    # Who left a price has nothing held for it.
    ended = [of for of in decided if (not of.bid.is_joint or of.is_admitted) and not of.is_left]
    settle_holds(settlements=[_conclusion(of) for of in ended], now=lane.now)
    _release_warm_starts(decided)
    add_messages(
        news=[_build_refusal(lane, of) for of in decided if not of.is_admitted and not of.is_left],
        now=lane.now,
    )
    wakeups.notify_decided(bid_ids=[of.bid.pk for of in decided])
    _trace_decisions(lane, decided)
    lane.news["decisions"] = [_news(of.bid.pk, of.columns) for of in decided]
    if warm := [of.bid.pk for of in admitted if of.bid.warm_start is not None]:
        end_withdrawn_starts(Offer.objects.filter(bid_id__in=warm), now=lane.now)
        reserve_worst_cases(lane, bid_ids=warm)
    return len(admitted)


def _trace_decisions(lane: Lane, decided: Sequence[_DecidedBid]) -> None:
    for of in decided:
        record_stage(
            "bid.decision",
            bid_id=of.bid.pk,
            since=lane.now,
            zone=lane.zone.name,
            position=of.columns["position"],
            status=str(of.columns["status"]),
            refusal=of.columns["refusal"] or None,
            cells=len(of.cells),
        )


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
    "cold_price_micros",
]


def _decided(lane: Lane, taken: TakenBid) -> _DecidedBid:
    bid, entry, cold_price_micros = taken
    decision = entry.outcome
    assert isinstance(decision, scheduler.Decision)
    columns = build_decision_columns(decision, zone=lane.zone) | {
        "decided_at": lane.now,
        "position": entry.position,
        "decision_hash": entry.hash,
        "cold_price_micros": cold_price_micros,
    }
    schedule = decision.schedule if decision.admitted else None
    return _DecidedBid(
        bid=bid,
        columns={name: columns[name] for name in DECISION_FIELDS},
        schedule=schedule,
    )


def _conclusion(of: _DecidedBid) -> HoldSettlement:
    """Winners pay their price and get the rest back, the others get everything back."""
    return HoldSettlement(
        hold_reference=hold_reference(of.bid.pk), charge_micros=of.columns["payment_micros"]
    )


def _build_refusal(lane: Lane, of: _DecidedBid) -> News:
    """A refused bid as its owner's webhooks get it: why, and what would have won.

    People get one notice a day and reason of each zone: programs bid again and again.
    """
    price, at = of.columns["winning_price_micros"], of.columns["winning_deadline_at"]
    data = {
        "id": of.bid.pk,
        "reason": of.columns["refusal"],
        "posted_price": None if price is None else f"{from_micros(price):f}",
        "earliest_deadline": None if at is None else at.isoformat(),
    }
    return News(
        of.bid.organisation_id,
        BID_REFUSED,
        data,
        name=of.bid.name,
        person_id=of.bid.placed_by_id or "",
        about=f"{lane.zone.pk}:{data['reason']}:{lane.now:%Y-%m-%d}",
    )


def _release_warm_starts(decided: Sequence[_DecidedBid]) -> None:
    """Let warm starts of bids that did not win be bid for again."""
    lost = [of.bid for of in decided if not of.is_admitted]
    if bid_ids := [bid.pk for bid in lost if bid.warm_start is not None]:
        release_offers(bid_ids=bid_ids)


def _opening(lane: Lane, of: _DecidedBid) -> Opening:
    bid = of.bid
    return Opening(
        bid_id=bid.pk,
        organisation_id=bid.organisation_id,
        created_by_id=bid.placed_by_id,
        zone=lane.zone,
        name=bid.name,
        columns={name: getattr(bid, name) for name in TERM_COLUMNS},
        cells=of.cells,
        deadline_at=bid.deadline_at,
        price_micros=of.columns["payment_micros"],
        awaits_data=of.has_vendor,
    )


def build_decision_news(bid: Bid) -> dict[str, object]:
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
