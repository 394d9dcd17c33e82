"""Bids that ask for their price first: told, and lapsed where nobody answers.

Nothing is held for them, neither cells nor money. An owner who takes the price bids just above it,
and that bid is received and decided as any other.
"""

from __future__ import annotations

import logging
from collections.abc import Collection, Sequence
from datetime import datetime, timedelta

from django.db import DatabaseError, transaction

from marketplace.auction import locks
from marketplace.auction.lane import wakeups
from marketplace.auction.lane.lane import Lane, TakenBid
from marketplace.auction.models import Bid, BidStatus, PriceOffer
from marketplace.common.db.bulk_writes import send_updates
from marketplace.warm.offers import release_offers
from scheduler.auction.engine.decide import is_in_time
from scheduler.auction.log.outcomes import ToldPrice
from scheduler.types import Beat, Refusal

#: Time for an answer; clients answer by themselves, in less than a second.
ANSWER_WITHIN = timedelta(seconds=60)
#: Prices that one sweep ends.
MOST_AT_ONCE = 200

log = logging.getLogger(__name__)


def asks_now(bid: Bid) -> bool:
    """Whether a bid is to be told its price; one that was answered is decided."""
    return bid.asks_price and bid.price_offer.takes is None


def has_missed_beat(lane: Lane, bid: Bid) -> bool:
    """Whether a bid asks for its price by prices that are too old by now."""
    beat = lane.book.engine.beat
    if beat is None or not asks_now(bid):
        return False
    return not is_in_time(read_seen_beat(bid), beat, lane.book.engine.rules.beats_per_slot)


def is_ahead(lane: Lane, bid: Bid) -> bool:
    """Whether a bid asks for its price by prices that this lane, which began before, has not."""
    beat = lane.book.engine.beat
    return beat is not None and asks_now(bid) and read_seen_beat(bid) > beat


def read_seen_beat(bid: Bid) -> Beat:
    """The beat whose prices the owner of a bid saw."""
    return Beat(bid.price_offer.beat_slot, bid.price_offer.beat_part)


def record_told_prices(lane: Lane, priced: Sequence[TakenBid]) -> None:
    """Write what bids were told, and until when they may be answered; without a plan they end."""
    found = [(of, of.entry.outcome) for of in priced]
    told = [(of, price) for of, price in found if isinstance(price, ToldPrice)]
    send_updates(
        PriceOffer,
        ("price_micros", "position", "answer_by"),
        [
            (
                of.bid.pk,
                None if price.price is None else int(price.price),
                of.entry.position,
                lane.now + ANSWER_WITHIN,
            )
            for of, price in told
        ],
    )
    ids = [of.bid.pk for of, price in told if price.price is not None]
    Bid.objects.filter(pk__in=ids).update(status=BidStatus.PRICED)
    wakeups.notify_decided(bid_ids=ids)
    for refusal in Refusal:
        without_plan = [of.bid for of, price in told if price.refusal == refusal]
        end_unanswered(without_plan, reason=str(refusal), now=lane.now)


def end_unanswered(bids: Collection[Bid], *, reason: str, now: datetime) -> None:
    """End bids that are not to be priced or answered any more; call with their rows locked."""
    if not bids:
        return
    ids = [bid.pk for bid in bids]
    PriceOffer.objects.filter(pk__in=ids).update(lapse=reason)
    Bid.objects.filter(pk__in=ids).update(status=BidStatus.CANCELLED, decided_at=now)
    release_offers(bid_ids=[bid.pk for bid in bids if bid.offer_id])
    wakeups.notify_decided(bid_ids=ids)


def end_late_offers(*, now: datetime) -> None:
    """End bids whose owners did not answer in time."""
    late = Bid.objects.filter(status=BidStatus.PRICED, price_offer__answer_by__lte=now)
    for bid_id in list(late.values_list("pk", flat=True)[:MOST_AT_ONCE]):
        try:
            with transaction.atomic():
                bid = locks.lock_bid(bid_id=bid_id)
                if bid.status == BidStatus.PRICED:
                    end_unanswered([bid], reason="time", now=now)
        except DatabaseError:
            log.warning("the price of bid %s could not be ended; later", bid_id, exc_info=True)
