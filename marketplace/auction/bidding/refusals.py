"""Refusals in words: which constraint failed, and what to do about it."""

from __future__ import annotations

from datetime import datetime

from marketplace.auction.models import Bid
from marketplace.common.clock import format_moment
from marketplace.common.money import format_usd
from scheduler.types import Refusal

#: What programs compare, by reason.
REFUSAL_CODES = {
    Refusal.PRICE: "bid_below_price",
    Refusal.CAPACITY: "no_capacity",
    Refusal.WINDOW: "no_window",
    Refusal.MEMORY: "no_memory",
}


def describe_bid_refusal(bid: Bid) -> str:
    """Why a bid was refused, and what would win."""
    return describe_refusal(
        refusal=Refusal(bid.refusal),
        price_micros=bid.price_micros,
        posted_price_micros=bid.winning_price_micros,
        memory_demand_gb=bid.memory_demand_gb,
        later_deadline_at=bid.winning_deadline_at,
        later_price_micros=bid.winning_deadline_price_micros,
    )


def describe_refusal(
    *,
    refusal: Refusal,
    price_micros: int | None,
    posted_price_micros: int | None,
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
        case Refusal.CAPACITY:
            first = "What is left before the deadline does not fit this job. Give a later deadline"
        case Refusal.WINDOW:
            first = (
                "There are too few slots before the deadline for the work. Give a later deadline, "
                "fewer epochs or less data"
            )
        case Refusal.MEMORY:
            return (
                f"No node here has the {memory_demand_gb:.2f} GB the job needs beside the base "
                "model. Choose a smaller batch_size, sequence_length or rank."
            )
    if later_deadline_at is None:
        return first + "."
    at = format_moment(later_deadline_at, up=True)
    price = "" if later_price_micros is None else f" at {format_usd(later_price_micros)}"
    return f"{first}; with a deadline from {at} on this would win{price}."
