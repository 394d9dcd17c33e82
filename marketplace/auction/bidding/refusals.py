"""Refusals in words: which constraint failed, and what to do about it."""

from __future__ import annotations

from datetime import datetime

from marketplace.auction.models import Bid
from marketplace.common.clock import format_moment
from marketplace.common.money import format_usd
from marketplace.fleet import memory
from marketplace.fleet import selectors as fleet
from marketplace.fleet.models import Zone
from scheduler.types import Refusal
from workers.protocol.job_spec import AdapterSpec

#: What programs compare, by reason.
REFUSAL_CODES = {
    Refusal.PRICE: "bid_below_price",
    Refusal.CAPACITY: "no_capacity",
    Refusal.WINDOW: "no_window",
    Refusal.MEMORY: "no_memory",
    Refusal.VERIFIED: "no_verified_node",
}


def describe_bid_refusal(bid: Bid) -> str:
    """Why a bid was refused, and what would win."""
    if bid.asks_price and bid.refusal == Refusal.PRICE:
        told, now = bid.price_offer.price_micros or 0, bid.winning_price_micros or 0
        if not bid.has_amount:
            return f"You left the price of {format_usd(told, up=True)}."
        return (
            f"The price rose from {format_usd(told, up=True)} to {format_usd(now, up=True)} before "
            "your answer came. Ask again."
        )
    if bid.is_joint and bid.refusal == Refusal.PRICE:
        return "All jobs of its bundle together cost more than the bundle's limit."
    if bid.is_joint and bid.refusal == Refusal.CAPACITY:
        return (
            "What is left before the deadline does not fit all jobs of its bundle. Give a later "
            "deadline or fewer values."
        )
    return describe_refusal(
        refusal=Refusal(bid.refusal),
        price_micros=bid.price_micros,
        posted_price_micros=bid.winning_price_micros,
        zone=bid.zone,
        adapter=bid.terms.adapter,
        memory_demand_gb=bid.memory_demand_gb,
        later_deadline_at=bid.winning_deadline_at,
        later_price_micros=bid.winning_deadline_price_micros,
    )


def describe_refusal(
    *,
    refusal: Refusal,
    price_micros: int | None,
    posted_price_micros: int | None,
    zone: Zone,
    adapter: AdapterSpec,
    memory_demand_gb: float,
    later_deadline_at: datetime | None,
    later_price_micros: int | None,
) -> str:
    """One or two sentences; ``price_micros`` is ``None`` for a quote."""
    match refusal:
        case Refusal.PRICE if posted_price_micros is not None and price_micros is not None:
            first = (
                f"The posted price is {format_usd(posted_price_micros, up=True)} and the bid is "
                f"{format_usd(price_micros)}. Bid more than the posted price"
            )
        case Refusal.PRICE:
            first = "The bid is not above the posted price. Bid more"
        case Refusal.CAPACITY if not fleet.list_nodes_on_sale(zone).exists():
            return "No node of this zone is running at the moment. Ask again in a minute."
        case Refusal.CAPACITY:
            first = "What is left before the deadline does not fit this job. Give a later deadline"
        case Refusal.WINDOW:
            first = (
                "There are too few slots before the deadline for the work. Give a later deadline, "
                "fewer epochs or less data"
            )
        case Refusal.VERIFIED:
            return (
                "No verified provider has a node here that can run this job; ask without "
                "verified_only, or later."
            )
        case Refusal.MEMORY:
            return _describe_memory_refusal(zone, adapter, memory_demand_gb)
    if later_deadline_at is None:
        return first + "."
    at = format_moment(later_deadline_at, up=True)
    price = "" if later_price_micros is None else f" at {format_usd(later_price_micros)}"
    return f"{first}; with a deadline from {at} on this would win{price}."


def _describe_memory_refusal(zone: Zone, adapter: AdapterSpec, need_gb: float) -> str:
    """What the nodes have now, and the rank that would fit."""
    first = f"No node here has the {need_gb:.3g} GB the job needs beside the base model"
    room_gb = fleet.find_largest_room_gb(zone)
    if room_gb is None or room_gb >= need_gb:
        return f"{first}. Choose a smaller rank or fewer target_modules, or another base model."
    first += f"; the largest has {room_gb:.3g} GB for jobs"
    rank = memory.find_fitting_rank(zone=zone, adapter=adapter, room_gb=room_gb)
    if rank is None:
        return f"{first}. Choose fewer target_modules, or another base model."
    return f"{first}. A rank of at most {rank} fits."
