"""A quote as the page's script and its table need it."""

from __future__ import annotations

from datetime import datetime
from typing import Any

from marketplace.auction.bidding.quotes import BidQuote
from marketplace.fleet.models import Zone
from marketplace.fleet.selectors import slot_at, slot_starts_at
from marketplace.web.presenters.receipt import list_price_lines
from marketplace.web.times import localize_moments

#: Treads a table lists; a curve of a long horizon may have more.
TABLE_ROWS = 12


def serialize_quote(quote: BidQuote) -> dict[str, Any]:
    """What ``frontend/web/src/bid/quote.ts`` calls a ``Quote``; times in unix seconds."""
    zone = quote.zone
    first_free = slot_at(zone, quote.made_at) + 1
    lines = (
        []
        if quote.parts is None or quote.price_micros is None
        else list_price_lines(
            {
                "vendor": quote.parts.vendor,
                "operational": quote.parts.operational,
                "compute": quote.parts.compute,
                "memory": quote.parts.memory,
                "rounding": quote.parts.rounding,
                "fee": quote.parts.fee,
                "card": quote.parts.card,
                "tax": quote.parts.tax,
            },
            quote.price_micros,
            is_royalty=quote.measured.start is not None,
        )
    )
    return {
        "now": quote.made_at.timestamp(),
        "expires": quote.expires_at.timestamp(),
        "horizonEnd": find_horizon_end(zone, quote.made_at).timestamp(),
        "slot": zone.slot_s,
        "slotEdge": slot_starts_at(zone, first_free).timestamp(),
        "curve": [
            {
                "deadline": point.deadline_at.timestamp(),
                "price": point.price_micros,
                "finish": point.finish_at.timestamp(),
            }
            for point in quote.curve
        ],
        "askedDeadline": quote.deadline_at.timestamp(),
        "lines": [{"label": line.label, "amount": line.micros} for line in lines],
        "refusal": None if quote.refusal is None else str(quote.refusal),
        "message": localize_moments(quote.refusal_text, quote.made_at),
    }


def build_curve_table(quote: BidQuote) -> list[Any]:
    """Some treads for the table: the first, the last, and evenly between."""
    curve = list(quote.curve)
    if len(curve) <= TABLE_ROWS:
        return curve
    step = (len(curve) - 1) / (TABLE_ROWS - 1)
    return [curve[round(index * step)] for index in range(TABLE_ROWS)]


def find_horizon_end(zone: Zone, now: datetime) -> datetime:
    return slot_starts_at(zone, slot_at(zone, now) + zone.horizon_slots)
