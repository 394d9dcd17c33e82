"""What the lane does unasked, and that one bad bid does not stop it."""

from __future__ import annotations

from datetime import timedelta

import pytest
from django.db import connection
from django.test.utils import CaptureQueriesContext

from marketplace.auction.bidding.cancel import cancel_bid
from marketplace.auction.book.verify import verify_zone
from marketplace.auction.lane import sweep
from marketplace.auction.lane.decide import decide_pending_bids
from marketplace.auction.lane.sweep import decide_all_pending, refresh_zone, sweep_zones
from marketplace.auction.models import Bid, BidStatus
from marketplace.payments.ledger_checks import check_ledger
from marketplace.payments.selectors import Wallet, get_wallet
from tests import builders
from tests import market_builders as market
from tests.builders import NOW

pytestmark = pytest.mark.django_db


def test_a_bid_that_cannot_be_decided_waits_and_the_others_are_decided() -> None:
    zone = market.zone()
    market.node(zone)
    owner = builders.organisation(usd="10")
    first, broken, last = (
        market.bid(owner, zone, price_micros=1_000_000, epochs=3) for _ in range(3)
    )
    rates = broken.rates
    Bid.objects.filter(pk=broken.pk).update(rates=dict.fromkeys(rates, "fast"))

    assert decide_all_pending(zone_id=zone.pk, clock=lambda: NOW) == 2

    statuses = dict(Bid.objects.values_list("pk", "status"))
    assert statuses == {
        first.pk: BidStatus.ADMITTED,
        broken.pk: BidStatus.PENDING,
        last.pk: BidStatus.ADMITTED,
    }
    assert get_wallet(organisation=owner).held_micros == 1_000_000
    assert verify_zone(zone).problems == []
    assert check_ledger().balanced

    broken.refresh_from_db()
    assert (broken.failures, broken.retry_at) == (1, NOW + timedelta(seconds=30))
    assert "could not convert string to float" in broken.failure

    Bid.objects.filter(pk=broken.pk).update(rates=rates)
    later = NOW + timedelta(seconds=30)
    assert decide_all_pending(zone_id=zone.pk, clock=lambda: later) == 1
    broken.refresh_from_db()
    assert broken.status == BidStatus.ADMITTED
    paid = sum(Bid.objects.values_list("payment_micros", flat=True))
    assert get_wallet(organisation=owner) == Wallet(
        available_micros=10_000_000 - paid, held_micros=0
    )
    assert check_ledger().balanced


@pytest.fixture
def attempts(monkeypatch: pytest.MonkeyPatch) -> list[tuple[int, str | None]]:
    """Batches tried, as (limit, only)."""
    tried: list[tuple[int, str | None]] = []

    def decide(*, zone, now, limit=128, only=None):
        tried.append((limit, only))
        return decide_pending_bids(zone=zone, now=now, limit=limit, only=only)

    monkeypatch.setattr(sweep, "decide_pending_bids", decide)
    return tried


def test_a_bid_that_failed_is_found_by_halving_and_not_tried_with_the_others_again(
    attempts: list[tuple[int, str | None]], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sweep, "BATCH_LIMIT", 8)
    zone = market.zone()
    market.node(zone)
    owner = builders.organisation(usd="10")
    bids = [market.bid(owner, zone, price_micros=200_000) for _ in range(12)]
    Bid.objects.filter(pk=bids[5].pk).update(rates={"cpu": "fast"})

    assert decide_all_pending(zone_id=zone.pk, clock=lambda: NOW) == 11

    assert attempts == [
        (8, None),  # fails
        (4, None),
        (4, None),  # fails
        (2, None),  # fails
        (1, bids[4].pk),
        (1, bids[5].pk),  # fails
        (8, None),
    ]
    positions = list(Bid.objects.order_by("arrival").values_list("position", flat=True))
    decided = [position for position in positions if position is not None]
    assert decided == sorted(decided)
    assert positions[5] is None

    attempts.clear()
    market.bid(owner, zone, price_micros=200_000)
    sweep_zones(clock=lambda: NOW + timedelta(seconds=29))
    assert attempts == [(8, None)]
    assert Bid.objects.filter(status=BidStatus.PENDING).get().pk == bids[5].pk


def test_a_bid_that_keeps_failing_is_tried_ever_more_rarely_and_can_be_taken_back(
    attempts: list[tuple[int, str | None]],
) -> None:
    zone = market.zone()
    market.node(zone)
    owner = builders.organisation(usd="10")
    bid = market.bid(owner, zone, price_micros=200_000)
    Bid.objects.filter(pk=bid.pk).update(rates={"cpu": "fast"})
    now, waits = NOW, []
    for _ in range(9):
        decide_all_pending(zone_id=zone.pk, clock=lambda at=now: at)
        bid.refresh_from_db()
        assert bid.retry_at is not None
        waits.append((bid.retry_at - now).total_seconds())
        now = bid.retry_at
    assert waits == [30, 60, 120, 240, 480, 960, 1920, 3600, 3600]
    assert (
        attempts
        == [(128, None), (1, bid.pk), (128, None)]
        + [
            (128, bid.pk),
            (128, None),
        ]
        * 8
    )
    assert get_wallet(organisation=owner).held_micros == 200_000
    cancel_bid(bid=bid, now=now)
    assert get_wallet(organisation=owner) == Wallet(available_micros=10_000_000, held_micros=0)
    assert decide_all_pending(zone_id=zone.pk, clock=lambda: now) == 0


def test_no_bid_is_blamed_when_the_zone_itself_fails(
    attempts: list[tuple[int, str | None]], monkeypatch: pytest.MonkeyPatch
) -> None:
    zone = market.zone()
    market.node(zone)
    owner = builders.organisation(usd="10")
    for _ in range(3):
        market.bid(owner, zone, price_micros=200_000)

    def broken(_lane: object) -> None:
        raise RuntimeError("the disk is full")

    monkeypatch.setattr("marketplace.auction.lane.enter.replan_jobs", broken)
    with pytest.raises(RuntimeError, match="disk is full"):
        decide_all_pending(zone_id=zone.pk, clock=lambda: NOW)
    assert attempts == [(128, None)]
    assert set(Bid.objects.values_list("status", "failures")) == {(BidStatus.PENDING, 0)}
    monkeypatch.undo()
    assert decide_all_pending(zone_id=zone.pk, clock=lambda: NOW) == 3


def test_bids_that_come_while_others_are_decided_need_no_wake_up_until_others_have_their_turn(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    zone = market.zone()
    market.node(zone)
    owner = builders.organisation(usd="10")
    now = [NOW]
    places = iter(range(5))

    def decide(*, zone, now, limit, only):
        batch = decide_pending_bids(zone=zone, now=now, limit=limit, only=only)
        if next(places, None) is not None:
            market.bid(owner, zone, price_micros=200_000)
        return batch

    def clock():
        now[0] += timedelta(seconds=0.2)
        return now[0]

    monkeypatch.setattr(sweep, "decide_pending_bids", decide)
    market.bid(owner, zone, price_micros=200_000)
    # One bid a batch, and time for two batches until the run is over.
    assert decide_all_pending(zone_id=zone.pk, clock=clock) == 2
    assert Bid.objects.filter(status=BidStatus.PENDING).count() == 1
    assert decide_all_pending(zone_id=zone.pk, clock=lambda: now[0]) == 4
    assert not Bid.objects.filter(status=BidStatus.PENDING).exists()


def test_a_crowd_s_next_batch_waits_for_those_who_come_and_a_lone_bid_s_for_nobody() -> None:
    zone = market.zone()
    market.node(zone)
    owner = builders.organisation(usd="10")
    times = iter(range(100))
    paused: list[float] = []

    def clock():
        return NOW + next(times) * timedelta(milliseconds=10)

    def pause(seconds: float) -> None:
        paused.append(seconds)
        if len(paused) == 1:
            market.bid(owner, zone, price_micros=200_000)

    def place(count: int) -> None:
        for _ in range(count):
            market.bid(owner, zone, price_micros=200_000)

    place(sweep.CROWD - 1)
    assert decide_all_pending(zone_id=zone.pk, clock=clock, pause=pause) == sweep.CROWD - 1
    assert paused == []
    place(sweep.CROWD)
    assert decide_all_pending(zone_id=zone.pk, clock=clock, pause=pause) == sweep.CROWD + 1
    # The batch began one step of the clock before, and the one bid that came is no crowd.
    assert paused == pytest.approx([sweep.CROWD_PACE.total_seconds() - 0.01])


def test_a_batch_that_took_longer_than_the_pace_is_not_waited_after() -> None:
    zone = market.zone()
    market.node(zone)
    owner = builders.organisation(usd="10")
    for _ in range(sweep.CROWD):
        market.bid(owner, zone, price_micros=200_000)
    times = iter(range(100))
    paused: list[float] = []
    decide_all_pending(
        zone_id=zone.pk, clock=lambda: NOW + next(times) * timedelta(seconds=1), pause=paused.append
    )
    assert paused == [0.0]


def test_a_turn_in_a_zone_without_work_reads_no_job() -> None:
    zone = market.zone()
    market.node(zone)
    for _ in range(2):
        refresh_zone(zone=zone, now=NOW)
    with CaptureQueriesContext(connection) as queries:
        assert refresh_zone(zone=zone, now=NOW)
    texts = [query["sql"] for query in queries.captured_queries]
    assert not [text for text in texts if '"jobs_job"."id"' in text]
    assert len(texts) == 7, texts
