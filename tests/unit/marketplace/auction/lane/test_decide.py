"""Bids decided by the lane: exact answers, exact money, and nothing else."""

from __future__ import annotations

from datetime import timedelta

import pytest

from marketplace.auction.bidding.cancel import cancel_bid
from marketplace.auction.book.verify import verify_zone
from marketplace.auction.lane.decide import decide_pending_bids
from marketplace.auction.models import Bid, BidStatus, LogEntry, MarketHead, Reservation, Snapshot
from marketplace.auction.selectors import refresh_bids
from marketplace.common.errors import Conflict
from marketplace.fleet.models import NodeStatus
from marketplace.jobs.models import Job
from marketplace.payments.ledger_checks import check_ledger
from marketplace.payments.selectors import Wallet, get_wallet
from tests import builders
from tests import market_builders as market
from tests.builders import NOW

pytestmark = pytest.mark.django_db


@pytest.fixture
def zone():
    return market.zone()


@pytest.fixture
def owner():
    return builders.organisation(usd="10")


def test_first_bid_in_an_empty_market_pays_the_operational_cost_alone(zone, owner):
    node = market.node(zone)
    bid = market.bid(owner, zone, price_micros=5_000_000, epochs=3)
    assert get_wallet(organisation=owner) == Wallet(
        available_micros=5_000_000, held_micros=5_000_000
    )

    batch = decide_pending_bids(zone=zone, now=NOW)

    assert (batch.decided, batch.admitted, batch.full) == (1, 1, False)
    bid.refresh_from_db()
    assert bid.status == BidStatus.ADMITTED
    # 270 samples at 100 a cell: three cells of 0.10 dollars, in the first slots to come.
    assert bid.payment_micros == 300_000
    assert bid.cells == [[101, node.pk], [102, node.pk], [103, node.pk]]
    assert bid.finish_planned_at == NOW + timedelta(seconds=40)
    assert bid.parts == {
        "vendor": 0.0,
        "operational": 300_000.0,
        "compute": 0.0,
        "memory": 0.0,
        "rounding": 0.0,
        "fee": 0.0,
        "card": 0.0,
        "tax": 0.0,
    }
    assert get_wallet(organisation=owner) == Wallet(available_micros=9_700_000, held_micros=0)
    job = Job.objects.get(bid_id=bid.pk)
    assert job.cells == bid.cells
    assert job.price_micros == 300_000
    rows = Reservation.objects.filter(bid=bid, released_at=None).order_by("slot")
    assert [(row.slot, row.samples, row.operational_cost_micros) for row in rows] == [
        (101, 100.0, 100_000),
        (102, 100.0, 100_000),
        (103, 100.0, 100_000),
    ]
    assert check_ledger().balanced
    assert verify_zone(zone).problems == []


def test_payment_does_not_depend_on_the_winners_bid(zone):
    market.node(zone)
    payments = set()
    for price_micros in (300_001, 1_000_000, 9_999_999):
        other = market.zone()
        market.node(other)
        bid = market.bid(
            builders.organisation(usd="10"), other, price_micros=price_micros, epochs=3
        )
        decide_pending_bids(zone=other, now=NOW)
        bid.refresh_from_db()
        payments.add(bid.payment_micros)
    assert payments == {300_000}


def test_bid_at_the_price_is_refused_and_told_the_price(zone, owner):
    market.node(zone)
    bid = market.bid(owner, zone, price_micros=300_000, epochs=3)

    decide_pending_bids(zone=zone, now=NOW)

    bid.refresh_from_db()
    assert bid.status == BidStatus.REFUSED
    assert bid.refusal == "price"
    assert bid.winning_price_micros == 300_000
    assert bid.payment_micros is None
    assert bid.cells is None
    assert get_wallet(organisation=owner) == Wallet(available_micros=10_000_000, held_micros=0)
    assert not Job.objects.exists()
    assert not Reservation.objects.exists()
    assert check_ledger().balanced


def test_job_too_large_for_every_node_is_refused_for_memory(zone, owner):
    market.node(zone, memory_gb=1.0001)
    bid = market.bid(owner, zone)
    decide_pending_bids(zone=zone, now=NOW)
    bid.refresh_from_db()
    assert (bid.status, bid.refusal) == (BidStatus.REFUSED, "memory")


def test_job_longer_than_its_window_is_refused_with_the_deadline_that_would_win(zone, owner):
    market.node(zone)
    bid = market.bid(owner, zone, epochs=5, slots=3)
    decide_pending_bids(zone=zone, now=NOW)
    bid.refresh_from_db()
    assert (bid.status, bid.refusal) == (BidStatus.REFUSED, "window")
    assert bid.winning_deadline_at == NOW + timedelta(seconds=60)
    assert bid.winning_deadline_price_micros == 500_000


def test_sold_cells_are_not_sold_again_and_the_fifth_job_waits_its_turn(zone):
    node = market.node(zone)
    bids = [market.bid(builders.organisation(usd="10"), zone, slots=1) for _ in range(5)]
    decide_pending_bids(zone=zone, now=NOW)
    for bid in bids:
        bid.refresh_from_db()
    assert [bid.status for bid in bids] == ["admitted"] * 4 + ["refused"]
    assert bids[4].refusal == "capacity"
    assert bids[4].winning_deadline_at == NOW + timedelta(seconds=30)
    assert [bid.cells for bid in bids[:4]] == [[[101, node.pk]]] * 4
    assert verify_zone(zone).problems == []


def test_bids_are_decided_in_order_of_arrival_at_one_price_until_the_cell_is_full(zone):
    market.node(zone)
    bids = [market.bid(builders.organisation(usd="10"), zone, slots=1) for _ in range(5)]
    decide_pending_bids(zone=zone, now=NOW)
    for bid in bids:
        bid.refresh_from_db()
    positions = [bid.position or 0 for bid in bids]
    assert positions == list(range(positions[0], positions[0] + 5))
    assert [bid.payment_micros for bid in bids] == [100_000] * 4 + [None]
    assert bids[4].refusal == "capacity"


def test_lower_arrival_that_commits_later_is_decided_in_the_next_batch(zone, owner):
    """A sequence number is drawn before commit, so numbers may become visible out of order."""
    market.node(zone)
    late = market.bid(owner, zone, price_micros=1_000_000)
    early = market.bid(owner, zone, price_micros=1_000_000)
    Bid.objects.filter(pk=late.pk).update(arrival=early.arrival + 1)
    decide_pending_bids(zone=zone, now=NOW, limit=1)
    early.refresh_from_db()
    late.refresh_from_db()
    assert (early.status, late.status) == (BidStatus.ADMITTED, BidStatus.PENDING)
    Bid.objects.filter(pk=late.pk).update(arrival=early.arrival - 1)
    decide_pending_bids(zone=zone, now=NOW, limit=1)
    late.refresh_from_db()
    assert late.status == BidStatus.ADMITTED
    # The receipt of the second stands between.
    assert early.position is not None
    assert late.position == early.position + 2


def test_full_batch_says_that_more_may_wait(zone, owner):
    market.node(zone)
    for _ in range(3):
        market.bid(owner, zone, price_micros=1_000_000)
    first = decide_pending_bids(zone=zone, now=NOW, limit=2)
    second = decide_pending_bids(zone=zone, now=NOW, limit=2)
    assert (first.decided, first.full) == (2, True)
    assert (second.decided, second.full) == (1, False)


def test_log_is_chained_and_the_head_follows_it(zone, owner):
    market.node(zone)
    market.bid(owner, zone, price_micros=1_000_000)
    market.bid(owner, zone, price_micros=1_000_000)
    decide_pending_bids(zone=zone, now=NOW)
    rows = list(LogEntry.objects.filter(zone=zone).order_by("position"))
    assert [row.kind for row in rows] == [
        "NodeJoined",
        "SlotAdvanced",
        "BidsReceived",
        "BidArrived",
        "BidArrived",
    ]
    assert [row.position for row in rows] == [1, 2, 3, 4, 5]
    assert [row.prev_hash for row in rows[1:]] == [row.hash for row in rows[:-1]]
    head = MarketHead.objects.get(zone=zone)
    assert (head.position, head.head_hash, head.slot, head.seq) == (5, rows[-1].hash, 100, 2)
    assert Snapshot.objects.get(zone=zone).position == 0


def test_deciding_with_nothing_to_decide_leaves_no_trace(zone):
    assert decide_pending_bids(zone=zone, now=NOW).decided == 0
    assert not LogEntry.objects.exists()
    assert not MarketHead.objects.exists()


def test_bid_without_any_node_is_refused_and_its_money_comes_back(zone, owner):
    bid = market.bid(owner, zone)
    decide_pending_bids(zone=zone, now=NOW)
    bid.refresh_from_db()
    assert bid.status == BidStatus.REFUSED
    assert get_wallet(organisation=owner) == Wallet(available_micros=10_000_000, held_micros=0)


@pytest.mark.parametrize("status", [NodeStatus.OFFLINE, NodeStatus.JOINING, NodeStatus.LEFT])
def test_nodes_that_are_not_online_are_not_sold(zone, owner, status):
    market.node(zone, status=status)
    bid = market.bid(owner, zone)
    decide_pending_bids(zone=zone, now=NOW)
    bid.refresh_from_db()
    assert bid.status == BidStatus.REFUSED


def test_cheaper_node_is_chosen_and_a_new_ask_counts_for_later_bids(zone, owner):
    market.node(zone, ask_micros=400_000)
    cheap = market.node(zone, ask_micros=200_000)
    first = market.bid(owner, zone, price_micros=1_000_000)
    decide_pending_bids(zone=zone, now=NOW)
    first.refresh_from_db()
    assert (first.payment_micros, first.cells) == (50_000, [[101, cheap.pk]])
    cheap.ask_micros = 4_000_000
    cheap.save()
    second = market.bid(owner, zone, price_micros=1_000_000)
    decide_pending_bids(zone=zone, now=NOW)
    second.refresh_from_db()
    assert second.payment_micros == 100_000
    assert [row.kind for row in LogEntry.objects.filter(zone=zone).order_by("position")][-3:] == [
        "NodeChanged",
        "BidsReceived",
        "BidArrived",
    ]


def test_bid_whose_deadline_passed_while_the_lane_was_down_is_refused_once(zone, owner):
    market.node(zone)
    bid = market.bid(owner, zone, slots=2)
    later = NOW + timedelta(seconds=600)
    decide_pending_bids(zone=zone, now=later)
    decide_pending_bids(zone=zone, now=later)
    bid.refresh_from_db()
    assert (bid.status, bid.refusal) == (BidStatus.REFUSED, "window")
    assert LogEntry.objects.filter(zone=zone, kind="BidArrived").count() == 1
    assert get_wallet(organisation=owner) == Wallet(available_micros=10_000_000, held_micros=0)


def test_cancelled_bid_is_not_decided_and_its_money_comes_back(zone, owner):
    market.node(zone)
    bid = market.bid(owner, zone)
    cancel_bid(bid=bid, now=NOW)
    cancel_bid(bid=bid, now=NOW)
    assert decide_pending_bids(zone=zone, now=NOW).decided == 0
    bid.refresh_from_db()
    assert bid.status == BidStatus.CANCELLED
    assert get_wallet(organisation=owner) == Wallet(available_micros=10_000_000, held_micros=0)
    assert check_ledger().balanced


def test_decided_bid_cannot_be_taken_back(zone, owner):
    market.node(zone)
    bid = market.bid(owner, zone)
    decide_pending_bids(zone=zone, now=NOW)
    with pytest.raises(Conflict) as caught:
        cancel_bid(bid=bid, now=NOW)
    assert caught.value.code == "bid_already_decided"
    assert get_wallet(organisation=owner).available_micros == 9_900_000


def test_each_of_two_who_hold_the_same_bid_sees_its_decision(zone, owner):
    market.node(zone)
    bid = market.bid(owner, zone)
    other = Bid.objects.get(pk=bid.pk)
    decide_pending_bids(zone=zone, now=NOW)
    refresh_bids([bid, other])
    assert bid.status == other.status == BidStatus.ADMITTED
    assert bid.position == other.position is not None


def test_log_entries_can_be_neither_changed_nor_deleted(zone, owner):
    from django.db import ProgrammingError, transaction

    market.node(zone)
    market.bid(owner, zone)
    decide_pending_bids(zone=zone, now=NOW)
    with pytest.raises(ProgrammingError), transaction.atomic():
        LogEntry.objects.filter(zone=zone).update(hash="0" * 64)
    with pytest.raises(ProgrammingError), transaction.atomic():
        LogEntry.objects.filter(zone=zone).delete()
    assert verify_zone(zone).ok
