"""A quote as the page's script and its table need it."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Any

from marketplace.auction.bidding.quotes import BidQuote, CurvePoint
from marketplace.auction.bidding.typical import SizedQuote
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


def pick_treads(curve: Sequence[CurvePoint]) -> list[CurvePoint]:
    """Some treads for a table: the first, the last, and evenly between."""
    if len(curve) <= TABLE_ROWS:
        return list(curve)
    step = (len(curve) - 1) / (TABLE_ROWS - 1)
    return [curve[round(index * step)] for index in range(TABLE_ROWS)]


@dataclass(frozen=True, slots=True)
class PriceSteps:
    """Price by deadline as a still picture of 1,000 by 1,000, with its axes in words."""

    #: The staircase, and the area that a limit above it wins.
    line: str
    area: str
    #: Up to here no plan is fast enough.
    too_soon: int
    #: At the top of the picture.
    high_micros: int


def draw_price_steps(quote: SizedQuote) -> PriceSteps | None:
    """The picture of a quote; ``None`` where nothing fits."""
    if not quote.curve:
        return None
    span = (quote.ends_at - quote.made_at).total_seconds()
    high = max(1, round(1.5 * quote.curve[0].price_micros))

    def place(at: datetime) -> int:
        share = (at - quote.made_at).total_seconds() / span
        return round(1000 * min(1.0, max(0.0, share)))

    first = place(quote.curve[0].deadline_at)
    turns: list[str] = []
    for point in quote.curve:
        turns.append(
            f"H{place(point.deadline_at)}V{round(1000 - 1000 * point.price_micros / high)}"
        )
    line = f"M{first} 0{''.join(turns)}H1000"
    return PriceSteps(line=line, area=f"{line}V0Z", too_soon=first, high_micros=high)


def find_horizon_end(zone: Zone, now: datetime) -> datetime:
    return slot_starts_at(zone, slot_at(zone, now) + zone.horizon_slots)
