"""Taking or leaving the price that a bid was told."""

from __future__ import annotations

from datetime import datetime

from django.db import transaction

from marketplace.auction import locks
from marketplace.auction.lane import wakeups
from marketplace.auction.models import Bid, BidStatus, PriceOffer
from marketplace.common.errors import Conflict, UserError
from marketplace.common.money import format_usd_exact
from marketplace.payments.holds import HoldRequest, place_holds

#: Why a price is told no more, by the word for programs.
LAPSES = {
    "beat": "Newer prices hold than the bid named. Ask for a quote and bid again.",
    "time": "The price was not answered in time. Ask again, and answer within a minute.",
    "memory": "No node can hold the job.",
    "window": "There are too few slots before the deadline for the work.",
    "capacity": "What is left before the deadline does not fit the job.",
    "verified": "No verified provider has a node that can run the job.",
}


def answer_price(*, bid: Bid, takes: bool, price_micros: int | None, now: datetime) -> None:
    """Take a bid's price or leave it, once; the lane decides the bid then as any other.

    Who takes it bids just above it, which the wallet holds: what is paid is no more than the price.

    Parameters
    ----------
    price_micros
        The price that is answered; ``None``: whatever was told.

    Raises
    ------
    Conflict
        ``not_priced``: it has an amount, or its price is not known yet; ``price_changed``: another
        price was told; ``price_answered``: it was answered otherwise; ``price_lapsed``: it is too
        late; ``bid_cancelled``: its owner took it back.
    UserError
        Those of ``place_holds``; the price may still be answered.
    """
    with transaction.atomic():
        locked = locks.lock_bid(bid_id=bid.pk)
        offer = PriceOffer.objects.filter(pk=bid.pk).first()
        if offer is not None and offer.lapse:
            raise _refuse_lapsed(offer.lapse)
        if offer is not None and locked.status == BidStatus.CANCELLED:
            raise Conflict("bid_cancelled", "This bid was taken back; nothing was bought.")
        if offer is None or offer.price_micros is None or offer.answer_by is None:
            raise Conflict(
                "not_priced",
                "This bid has no price to take or leave. Only one that names a beat and no price "
                "is told its price first.",
            )
        if price_micros not in (None, offer.price_micros):
            raise Conflict("price_changed", f"The price is {format_usd_exact(offer.price_micros)}.")
        if offer.takes is not None:
            if offer.takes != takes:
                raise Conflict("price_answered", "This price was answered otherwise before.")
            return
        if now >= offer.answer_by:
            raise _refuse_lapsed("time")
        if takes:
            locked.price_micros = offer.price_micros + 1
            _hold(locked, offer, now=now)
        locked.status = BidStatus.PENDING
        locked.save(update_fields=["price_micros", "status"])
        offer.takes, offer.answered_at = takes, now
        offer.save(update_fields=["takes", "answered_at"])
        wakeups.wake_lane_on_commit(zone_id=locked.zone_id)


def _hold(bid: Bid, offer: PriceOffer, *, now: datetime) -> None:
    request = HoldRequest(
        bid.organisation_id,
        bid.price_micros,
        bid.hold_reference,
        placed_by_id=bid.placed_by_id,
        api_key_id=offer.api_key_id,
    )
    [hold] = place_holds(wanted=[request], now=now)
    if isinstance(hold, UserError):
        raise hold


def describe_lapse(bid: Bid) -> str:
    """Why a bid has no price to answer any more, in a sentence or two."""
    return LAPSES[bid.price_offer.lapse]


def _refuse_lapsed(reason: str) -> Conflict:
    return Conflict(
        "price_lapsed", f"{LAPSES[reason]} Nothing was bought.", extra={"lapse": reason}
    )
