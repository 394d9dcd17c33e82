"""A decision as columns of its bid."""

from __future__ import annotations

import math

from marketplace.auction.models import BidStatus
from marketplace.fleet.models import Zone
from marketplace.fleet.selectors import slot_ends_at
from scheduler import types as scheduler
from scheduler.auction import ChainEntry


def build_decision_columns(decision: scheduler.Decision, *, zone: Zone) -> dict[str, object]:
    """The columns of a bid that a decision alone determines; ``verify`` compares them."""
    schedule = decision.schedule if decision.admitted else None
    slot = decision.winning_deadline_slot
    return {
        "status": BidStatus.ADMITTED if decision.admitted else BidStatus.REFUSED,
        "payment_micros": int(decision.payment) if decision.admitted else None,
        "parts": None if decision.parts is None else serialize_parts(decision.parts),
        "finish_planned_at": None if schedule is None else slot_ends_at(zone, schedule.finish_slot),
        "refusal": "" if decision.refusal is None else str(decision.refusal),
        "winning_price_micros": _micros_up(decision.winning_price),
        "winning_deadline_at": None if slot is None else slot_ends_at(zone, slot),
        "winning_deadline_price_micros": _micros_up(decision.winning_deadline_price),
    }


def build_bundle_columns(entry: ChainEntry) -> dict[str, object]:
    """The columns of a bundle that its entry alone determines; ``verify`` compares them."""
    decision = entry.outcome
    assert isinstance(decision, scheduler.Decision)
    price = decision.winning_price
    return {
        "position": entry.position,
        "payment_micros": int(decision.payment) if decision.admitted else None,
        "refusal": "" if decision.refusal is None else str(decision.refusal),
        "winning_price_micros": None if price is None else int(price),
    }


def serialize_parts(parts: scheduler.PriceParts) -> dict[str, float]:
    """Price parts in micro-dollars, by name."""
    return {
        "vendor": parts.vendor,
        "operational": parts.operational,
        "compute": parts.compute,
        "memory": parts.memory,
        "rounding": parts.rounding,
        "fee": parts.fee,
        "card": parts.card,
        "tax": parts.tax,
    }


def _micros_up(amount: float | None) -> int | None:
    return None if amount is None else math.ceil(amount)
