"""What the market's API answers with about zones, quotes, bids and bundles."""

from __future__ import annotations

import json
from collections.abc import Sequence
from datetime import datetime
from typing import Any

from django.db.models import prefetch_related_objects

from marketplace.api.market.fields import moment, usd
from marketplace.api.market.term_values import serialize_terms
from marketplace.auction.bidding.beginnings import WARM
from marketplace.auction.bidding.bundle_quotes import SweepQuote
from marketplace.auction.bidding.choices import explain_choices
from marketplace.auction.bidding.quotes import BidQuote, CurvePoint
from marketplace.auction.bidding.refusals import REFUSAL_CODES, describe_bid_refusal
from marketplace.auction.book.decision_rows import serialize_parts
from marketplace.auction.book.reservations import read_first_cells
from marketplace.auction.models import Bid, BidStatus, Bundle
from marketplace.auction.selectors import (
    MarketNow,
    find_bundle_status,
    find_job_ids,
    get_policy_in_force,
)
from marketplace.fleet.models import Zone
from marketplace.fleet.policy_settings import find_reservation_fee, find_unit_fee
from marketplace.fleet.selectors import list_nodes_on_sale, slot_at, slot_ends_at, slot_starts_at
from scheduler.types import Refusal
from workers.protocol.starts import Start, StartKind
from workers.protocol.wire import to_json


def serialize_bids(bids: Sequence[Bid]) -> list[dict[str, Any]]:
    jobs = find_job_ids(bids)
    prefetch_related_objects(bids, "dataset")
    read_first_cells(bids)
    return [_bid_shape(bid, job_id=jobs.get(bid.pk)) for bid in bids]


def _bid_shape(bid: Bid, *, job_id: str | None) -> dict[str, Any]:
    terms = bid.terms
    adapter, training = ({}, {}) if terms is None else map(to_json, (terms.adapter, terms.training))
    return {
        "id": bid.pk,
        "object": "bid",
        "zone": bid.zone.name,
        "name": bid.name,
        "status": bid.status,
        "price": usd(bid.price_micros),
        "deadline": moment(bid.deadline_at),
        "created_at": moment(bid.created_at),
        **serialize_terms(bid),
        "adapter": adapter,
        "training": training,
        "resolved": bid.resolved,
        "choices": explain_choices(
            bid.resolved,
            adapter=adapter,
            training=training,
            rows=0 if bid.dataset is None else bid.dataset.rows,
            sequence_length_limit=bid.zone.max_sequence_length,
        ),
        "start": serialize_start(bid.start),
        "work": serialize_work(
            samples=bid.samples,
            units=bid.compute_demand,
            memory_gb=bid.memory_demand_gb,
        ),
        "receipt": json.loads(bid.receipt) if bid.receipt else None,
        "decision": _decision_shape(bid),
        "job_id": job_id,
        "bundle_id": bid.bundle_id,
        "reservation_fee_percent": bid.reservation_fee_percent,
        "refunded": usd(bid.refund_micros),
        "credit": usd(bid.credit_micros),
    }


def serialize_bundle(bundle: Bundle) -> dict[str, Any]:
    bids = list(bundle.bids.select_related("zone").order_by("arrival"))
    return {
        "id": bundle.pk,
        "object": "bundle",
        "zone": bundle.zone.name,
        "name": bundle.name,
        "status": find_bundle_status(bids),
        "all_or_none": bundle.all_or_none,
        "price": usd(bundle.price_micros),
        "deadline": moment(bundle.deadline_at),
        "created_at": moment(bundle.created_at),
        "sweep": bundle.sweep,
        "payment": usd(sum(bid.payment_micros or 0 for bid in bids)),
        "reason": bundle.refusal or None,
        "posted_price": usd(bundle.winning_price_micros),
        "position": bundle.position,
        "bids": serialize_bids(bids),
    }


def serialize_bundle_quote(quote: SweepQuote) -> dict[str, Any]:
    return {
        "object": "bundle_quote",
        "zone": quote.zone.name,
        "deadline": moment(quote.deadline_at),
        "posted_price": usd(quote.price_micros),
        "jobs": [
            {
                "label": job.label,
                "posted_price": usd(job.price_micros),
                "finish_at": moment(job.finish_at),
                "work": serialize_work(
                    samples=job.measured.work.samples,
                    units=job.measured.work.compute_demand,
                    memory_gb=job.measured.work.memory_demand_gb,
                ),
            }
            for job in quote.jobs
        ],
        "finish_at": moment(quote.finish_at),
        "reason": None if quote.refusal is None else quote.refusal.value,
        "reason_text": quote.refusal_text or None,
        "curve": serialize_curve(quote.curve),
        "expires_at": moment(quote.expires_at),
        "position": quote.position,
        "head_hash": quote.head_hash,
    }


def serialize_curve(curve: Sequence[CurvePoint]) -> list[dict[str, Any]]:
    """Prices by deadline, where they fall."""
    return [
        {
            "deadline": moment(point.deadline_at),
            "price": usd(point.price_micros),
            "finish_at": moment(point.finish_at),
        }
        for point in curve
    ]


def serialize_work(*, samples: int, units: float, memory_gb: float) -> dict[str, Any]:
    """A job's work: rows times epochs, work units with evaluations, and GB."""
    return {"samples": samples, "units": round(units), "memory_gb": memory_gb}


def _decision_shape(bid: Bid) -> dict[str, Any] | None:
    if bid.position is None:
        return None
    admitted = bid.status == BidStatus.ADMITTED
    return {
        "admitted": admitted,
        "decided_at": moment(bid.decided_at),
        "position": bid.position,
        "hash": bid.decision_hash,
        "payment": usd(bid.payment_micros),
        "price_parts": bid.parts and {name: _part(amount) for name, amount in bid.parts.items()},
        "plan": [serialize_cell(bid.zone, slot, node) for slot, node in bid.cells or ()],
        "finish_planned_at": moment(bid.finish_planned_at),
        "reason": bid.refusal or None,
        "code": REFUSAL_CODES[Refusal(bid.refusal)] if bid.refusal else None,
        "reason_text": None if admitted else describe_bid_refusal(bid),
        "posted_price": usd(bid.winning_price_micros),
        "earliest_deadline": moment(bid.winning_deadline_at),
        "earliest_deadline_price": usd(bid.winning_deadline_price_micros),
    }


def serialize_cell(zone: Zone, slot: int, node_id: str) -> dict[str, Any]:
    return {
        "slot": slot,
        "node": node_id,
        "starts_at": moment(slot_starts_at(zone, slot)),
        "ends_at": moment(slot_ends_at(zone, slot)),
    }


def _part(amount: float) -> str:
    """A part of a price, in dollars; parts are not whole micro-dollars."""
    return f"{amount / 1e6:.9f}"


def serialize_quote(quote: BidQuote) -> dict[str, Any]:
    terms, work = quote.measured.terms, quote.measured.work
    return {
        "object": "quote",
        "zone": quote.zone.name,
        "deadline": moment(quote.deadline_at),
        "posted_price": usd(quote.price_micros),
        "price_parts": None
        if quote.parts is None
        else {name: _part(amount) for name, amount in serialize_parts(quote.parts).items()},
        "plan": [serialize_cell(quote.zone, cell.slot, cell.node) for cell in quote.cells],
        "finish_at": moment(quote.finish_at),
        "reason": None if quote.refusal is None else quote.refusal.value,
        "reason_text": quote.refusal_text or None,
        "curve": serialize_curve(quote.curve),
        "verified_only": quote.verified_only,
        "adapter": to_json(terms.adapter),
        "training": to_json(terms.training),
        "resolved": list(quote.measured.resolved),
        "choices": explain_choices(
            quote.measured.resolved,
            adapter=to_json(terms.adapter),
            training=to_json(terms.training),
            rows=quote.measured.rows,
            sequence_length_limit=quote.zone.max_sequence_length,
        ),
        "start": serialize_start(quote.measured.start),
        "warm_start": _warm_start_shape(quote),
        "work": serialize_work(
            samples=work.samples,
            units=work.compute_demand,
            memory_gb=work.memory_demand_gb,
        ),
        "expires_at": moment(quote.expires_at),
        "position": quote.position,
        "head_hash": quote.head_hash,
        "vendor": None
        if quote.vendor is None
        else {
            "id": quote.vendor.vendor_id,
            "name": quote.vendor.name,
            "price": usd(quote.vendor.price_micros),
            "ready_at": moment(quote.vendor.ready_at),
        },
    }


def _warm_start_shape(quote: BidQuote) -> dict[str, Any]:
    start = quote.measured.start
    offer_id = "" if start is None else start.offer_id
    return {
        "outlook": quote.outlook,
        "model": f"{WARM}{offer_id}" if offer_id else None,
        "cold_price": usd(quote.cold_price_micros),
    }


def serialize_start(start: Start | None) -> dict[str, Any] | None:
    """What a job begins with; of another organisation's adapter only that it is one."""
    if start is None:
        return None
    own = start.kind is not StartKind.DONOR
    return {"kind": start.kind, "model": f"ft:{start.job_id}" if own else None}


def serialize_zone(zone: Zone, *, now: datetime) -> dict[str, Any]:
    slot = slot_at(zone, now)
    return {
        "name": zone.name,
        "base_model": zone.base_model_name,
        "slot_s": zone.slot_s,
        "horizon_slots": zone.horizon_slots,
        "policy": get_policy_in_force(zone),
        "max_sequence_length": zone.max_sequence_length,
        "earliest_deadline": moment(slot_starts_at(zone, slot + 2)),
        "latest_deadline": moment(slot_starts_at(zone, slot + zone.horizon_slots)),
        "nodes_on_sale": list_nodes_on_sale(zone).count(),
        "reservation_fee_percent": find_reservation_fee(zone),
        "fee_per_million_units": usd(round(find_unit_fee(zone) * 1_000_000)),
    }


def serialize_market(market: MarketNow) -> dict[str, Any]:
    """Public: no bid amounts, no names of who bid."""
    return {
        "zone": market.zone.name,
        "seq": market.seq,
        "position": market.position,
        "head_hash": market.head_hash,
        "slot": market.slot,
        "slot_s": market.zone.slot_s,
        "first_slot": market.first_slot,
        "first_slot_at": moment(market.first_slot_at),
        "nodes": [
            {
                "id": row.node_id,
                "name": row.name,
                "gpu_type": row.gpu_type,
                "ask": usd(row.ask_micros),
                # Dollars per work unit and per GB and slot, on top of the ask.
                "compute_price": [price / 1e6 for price in row.compute_price],
                "memory_price": [price / 1e6 for price in row.memory_price],
                "compute_sold": list(row.compute_sold),
                "memory_sold": list(row.memory_sold),
                "on_sale": list(row.on_sale),
            }
            for row in market.rows
        ],
        "decisions": [
            {
                "bid_id": bid.pk,
                "position": bid.position,
                "hash": bid.decision_hash,
                "admitted": bid.status == BidStatus.ADMITTED,
                "payment": usd(bid.payment_micros),
                "reason": bid.refusal or None,
                "decided_at": moment(bid.decided_at),
            }
            for bid in market.decisions
        ],
    }
