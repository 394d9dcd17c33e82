"""Bids that are told their price first: taken, left or lapsed, and every cent accounted for."""

from __future__ import annotations

from datetime import timedelta

import pytest

from marketplace.auction.bidding.answer import answer_price
from marketplace.auction.bidding.cancel import cancel_bid
from marketplace.auction.bidding.refusals import describe_bid_refusal
from marketplace.auction.book.verify import verify_zone
from marketplace.auction.lane.decide import decide_pending_bids
from marketplace.auction.lane.sweep import sweep_zones
from marketplace.auction.models import Bid, BidStatus, LogEntry
from marketplace.common.errors import Conflict, PaymentRequired, UserError
from marketplace.fleet.models import Node, Zone
from marketplace.fleet.slots import beat_at
from marketplace.jobs.models import Job
from marketplace.payments.ledger_checks import check_ledger
from marketplace.payments.selectors import Wallet, get_wallet
from scheduler.types import Beat
from tests import builders
from tests import market_builders as market
from tests.builders import NOW

pytestmark = pytest.mark.django_db

PRICE = 300_000
SECOND = timedelta(seconds=1)


@pytest.fixture
def zone():
    made = market.zone()
    market.node(made)
    return made


@pytest.fixture
def owner():
    return builders.organisation(usd="10")


def ask(owner, zone: Zone, *, now=NOW, beat: Beat | None = None, **terms) -> Bid:
    seen = beat or beat_at(zone, now, beats=2)
    return market.bid(owner, zone, price_micros=0, beat=seen, epochs=3, now=now, **terms)


def price(owner, zone: Zone, *, now=NOW, **terms) -> Bid:
    bid = ask(owner, zone, now=now, **terms)
    decide_pending_bids(zone=zone, now=now)
    return read(bid)


def read(bid: Bid) -> Bid:
    return Bid.objects.select_related("zone", "price_offer").get(pk=bid.pk)


def check_books(zone: Zone) -> None:
    assert check_ledger().balanced
    assert verify_zone(zone).problems == []


def take(bid: Bid, *, takes: bool = True, now=NOW + SECOND) -> Bid:
    """Answer a price and have the lane decide."""
    answer_price(bid=bid, takes=takes, price_micros=bid.price_offer.price_micros, now=now)
    decide_pending_bids(zone=bid.zone, now=now)
    return read(bid)


WHOLE = Wallet(available_micros=10_000_000, held_micros=0)


def test_a_bid_without_an_amount_is_told_its_price_and_nothing_is_held(zone, owner):
    bid = ask(owner, zone)
    batch = decide_pending_bids(zone=zone, now=NOW)
    assert (batch.decided, batch.admitted) == (1, 0)
    bid = read(bid)
    offer = bid.price_offer
    assert (bid.status, bid.price_micros, bid.payment_micros) == (BidStatus.PRICED, 0, None)
    assert (offer.price_micros, offer.answer_by) == (PRICE, NOW + timedelta(seconds=60))
    entry = LogEntry.objects.get(zone=zone, position=offer.position)
    assert entry.kind == "BidPriced"
    assert get_wallet(organisation=owner) == WHOLE
    assert not Job.objects.exists()
    others = [market.bid(builders.organisation(usd="10"), zone, epochs=3) for _ in range(4)]
    decide_pending_bids(zone=zone, now=NOW)
    # The node does four jobs at a time, and no cell waits for an answer.
    assert [read_cells(other) for other in others] == [101] * 4
    check_books(zone)


def read_cells(bid: Bid) -> int:
    cells = Bid.objects.get(pk=bid.pk).cells
    assert cells
    return cells[0][0]


def test_who_takes_the_price_pays_it(zone, owner):
    bid = take(price(owner, zone))
    assert (bid.status, bid.payment_micros, bid.price_micros) == (
        BidStatus.ADMITTED,
        PRICE,
        PRICE + 1,
    )
    job = Job.objects.get(bid_id=bid.pk)
    assert (job.cells, job.price_micros) == (bid.cells, PRICE)
    assert get_wallet(organisation=owner) == Wallet(
        available_micros=10_000_000 - PRICE, held_micros=0
    )
    check_books(zone)


def test_who_leaves_the_price_is_a_refusal_that_forecasts_read(zone, owner):
    bid = take(price(owner, zone), takes=False)
    assert (bid.status, bid.refusal, bid.winning_price_micros, bid.price_micros) == (
        BidStatus.REFUSED,
        "price",
        PRICE,
        0,
    )
    assert describe_bid_refusal(bid) == "You left the price of $0.30."
    assert get_wallet(organisation=owner) == WHOLE
    assert not Job.objects.exists()
    check_books(zone)


def test_a_price_that_rose_before_the_answer_buys_nothing(zone, owner):
    bid = price(owner, zone)
    Node.objects.filter(zone=zone).update(ask_micros=5 * market.CELL_MICROS)
    bid = take(bid)
    assert (bid.status, bid.refusal) == (BidStatus.REFUSED, "price")
    assert bid.winning_price_micros > PRICE
    assert "rose from $0.30 to" in describe_bid_refusal(bid)
    assert get_wallet(organisation=owner) == WHOLE
    check_books(zone)


def test_a_price_that_fell_before_the_answer_is_paid_as_it_is(zone, owner):
    bid = price(owner, zone)
    Node.objects.filter(zone=zone).update(ask_micros=2 * market.CELL_MICROS)
    bid = take(bid)
    assert (bid.status, bid.payment_micros) == (BidStatus.ADMITTED, PRICE // 2)
    check_books(zone)


def test_the_same_answer_twice_is_one_and_another_is_refused(zone, owner):
    bid = price(owner, zone)
    for _ in range(2):
        answer_price(bid=bid, takes=True, price_micros=PRICE, now=NOW + SECOND)
    with pytest.raises(Conflict) as refused:
        answer_price(bid=bid, takes=False, price_micros=PRICE, now=NOW + SECOND)
    assert refused.value.code == "price_answered"
    decide_pending_bids(zone=zone, now=NOW + SECOND)
    # Also once it is decided, and however late.
    answer_price(bid=bid, takes=True, price_micros=PRICE, now=NOW + 90 * SECOND)
    assert Job.objects.count() == 1
    assert LogEntry.objects.filter(kind="BidArrived").count() == 1


def test_an_answer_to_another_price_is_refused(zone, owner):
    bid = price(owner, zone)
    with pytest.raises(Conflict) as refused:
        answer_price(bid=bid, takes=True, price_micros=PRICE - 1, now=NOW)
    assert refused.value.code == "price_changed"
    assert get_wallet(organisation=owner) == WHOLE
    assert read(bid).price_offer.takes is None


@pytest.mark.parametrize("swept", [False, True])
def test_an_unanswered_price_lapses_and_is_no_refusal(zone, owner, *, swept):
    bid = price(owner, zone)
    late = NOW + timedelta(seconds=60)
    if swept:
        sweep_zones(clock=lambda: late)
        bid = read(bid)
        assert (bid.status, bid.refusal, bid.price_offer.lapse) == (
            BidStatus.CANCELLED,
            "",
            "time",
        )
    with pytest.raises(Conflict, match="was not answered in time") as refused:
        answer_price(bid=bid, takes=True, price_micros=PRICE, now=late)
    assert refused.value.code == "price_lapsed"
    assert get_wallet(organisation=owner) == WHOLE
    check_books(zone)


def test_a_price_is_of_the_beat_that_was_seen_or_the_next(zone, owner):
    seen = beat_at(zone, NOW, beats=2)
    early = ask(owner, zone, beat=seen)
    late = ask(owner, zone, beat=Beat(seen.slot - 1, 1))
    decide_pending_bids(zone=zone, now=NOW + 5 * SECOND)
    assert read(early).status == BidStatus.PRICED
    late = read(late)
    assert (late.status, late.price_offer.lapse, late.price_offer.price_micros) == (
        BidStatus.CANCELLED,
        "beat",
        None,
    )
    with pytest.raises(UserError) as refused:
        ask(owner, zone, beat=Beat(seen.slot + 1, 0))
    assert refused.value.code == "unknown_beat"
    check_books(zone)


def test_a_lane_that_began_before_the_beat_leaves_its_bids_to_the_next(zone, owner):
    bid = ask(owner, zone, now=NOW + 5 * SECOND)
    assert decide_pending_bids(zone=zone, now=NOW).decided == 0
    assert read(bid).status == BidStatus.PENDING
    decide_pending_bids(zone=zone, now=NOW + 5 * SECOND)
    assert read(bid).status == BidStatus.PRICED
    check_books(zone)


def test_who_cannot_pay_the_price_is_told_so_and_may_still_answer(zone):
    with pytest.raises(PaymentRequired):
        ask(builders.organisation(), zone)
    poor = builders.organisation(usd="0.29")
    bid = price(poor, zone)
    with pytest.raises(PaymentRequired) as refused:
        answer_price(bid=bid, takes=True, price_micros=PRICE, now=NOW)
    assert refused.value.code == "insufficient_funds"
    assert read(bid).status == BidStatus.PRICED
    builders.fund_wallet(poor, usd="1")
    assert take(bid).status == BidStatus.ADMITTED
    check_books(zone)


def test_a_price_without_a_plan_says_why_at_once(zone, owner):
    bid = price(owner, zone, slots=1)
    assert (bid.status, bid.price_offer.lapse) == (BidStatus.CANCELLED, "window")
    assert get_wallet(organisation=owner) == WHOLE
    check_books(zone)


@pytest.mark.parametrize("stage", ["waits", "told", "taken", "left"])
def test_a_bid_is_taken_back_at_any_stage(zone, owner, stage):
    bid = ask(owner, zone) if stage == "waits" else price(owner, zone)
    if stage in ("taken", "left"):
        answer_price(bid=bid, takes=stage == "taken", price_micros=PRICE, now=NOW)
    cancel_bid(bid=bid, now=NOW)
    decide_pending_bids(zone=zone, now=NOW)
    assert read(bid).status == BidStatus.CANCELLED
    assert get_wallet(organisation=owner) == WHOLE
    with pytest.raises(Conflict, match="was taken back"):
        answer_price(bid=bid, takes=True, price_micros=None, now=NOW)
    check_books(zone)


def test_what_was_told_is_held_against_the_log(zone, owner):
    bid = price(owner, zone)
    assert verify_zone(zone).problems == []
    offer = bid.price_offer
    offer.price_micros = 3 * PRICE
    offer.save()
    assert "price and position told are (900000," in verify_zone(zone).problems[0]


def test_one_with_an_amount_has_no_price_to_answer(zone, owner):
    waits = market.bid(owner, zone)
    with pytest.raises(Conflict) as refused:
        answer_price(bid=waits, takes=True, price_micros=None, now=NOW)
    assert refused.value.code == "not_priced"
