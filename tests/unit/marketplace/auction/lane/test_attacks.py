"""Attacks on the rules in force: deadlines, nodes and solves timed against bids that wait."""

from __future__ import annotations

import json
from datetime import UTC, datetime, timedelta

import pytest
from django.db import transaction

from marketplace.accounts.models import Organisation
from marketplace.auction.book.verify import verify_zone
from marketplace.auction.lane.decide import decide_pending_bids
from marketplace.auction.lane.enter import enter_lane
from marketplace.auction.lane.sequence_bids import receive_bids
from marketplace.auction.lane.sweep import refresh_zone
from marketplace.auction.models import Bid, BidStatus, LogEntry
from marketplace.auction.pricing.daily_rates import post_daily_rates
from marketplace.fleet.models import Node, Zone
from marketplace.fleet.services import drain_node, set_node_ask, set_node_availability, undrain_node
from marketplace.payments.selectors import Wallet, get_wallet
from scheduler.auction.log import events
from scheduler.auction.log.codec import event_from_json
from scheduler.types import NodeRate
from tests import builders, market_builders
from tests.builders import NOW

pytestmark = pytest.mark.django_db
SLOT = timedelta(seconds=market_builders.SLOT_S)
#: Early on the days after the first one, which is not known whole.
SECOND_DAY = datetime(2026, 3, 3, 0, 5, tzinfo=UTC)
THIRD_DAY = SECOND_DAY + timedelta(days=1)


@pytest.fixture
def zone() -> Zone:
    return market_builders.zone(horizon_slots=12)


@pytest.fixture
def owner() -> Organisation:
    return builders.organisation(usd="10000")


def receive(zone: Zone, *, now: datetime) -> None:
    """What a lane does that dies before it decides."""
    with enter_lane(zone=zone, now=now) as lane:
        receive_bids(lane, limit=50)


def read_events(zone: Zone, kind: str) -> list[events.Event]:
    rows = LogEntry.objects.filter(zone=zone, kind=kind).order_by("position")
    return [event_from_json(json.loads(row.event)) for row in rows]


def list_kinds(zone: Zone) -> list[str]:
    rows = LogEntry.objects.filter(zone=zone).order_by("position")
    return list(rows.values_list("kind", flat=True))


def crowd(
    owner: Organisation, zone: Zone, *, now: datetime, count: int = 16, worth: int = 3_000_000
) -> None:
    """Bids of one slot, each for three cells of the next nine, worth far more than their cost."""
    for number in range(count):
        amount = worth + 10_000 * number
        market_builders.bid(owner, zone, price_micros=amount, slots=9, epochs=3, now=now)
    decide_pending_bids(zone=zone, now=now)


# --- A deadline that passes while a bid waits within a batch --------------------------------------


def test_a_deadline_that_passes_within_a_batch_frees_the_bid_and_touches_no_other(
    zone: Zone, owner: Organisation
) -> None:
    market_builders.node(zone)
    patient = builders.organisation(usd="10")
    hasty = [
        market_builders.bid(owner, zone, price_micros=1_000_000, slots=1, now=NOW) for _ in range(3)
    ]
    other = market_builders.bid(patient, zone, price_micros=1_000_000, slots=9, now=NOW)
    receive(zone, now=NOW)
    held = get_wallet(organisation=owner).held_micros
    assert held == 3_000_000
    # The lane that received them dies; the next one comes two slots later.
    late = NOW + 2 * SLOT
    decide_pending_bids(zone=zone, now=late)
    for bid in hasty:
        bid.refresh_from_db()
        assert (bid.status, bid.refusal, bid.payment_micros) == (
            BidStatus.REFUSED,
            "window",
            None,
        )
    assert get_wallet(organisation=owner) == Wallet(10_000_000_000, 0)
    # The other pays what an empty zone charges, and nothing of it is in a slot that has begun.
    other.refresh_from_db()
    assert (other.status, other.payment_micros) == (
        BidStatus.ADMITTED,
        market_builders.CELL_MICROS,
    )
    assert other.cells is not None
    assert other.cells[0][0] == 103
    [voided] = read_events(zone, "ReceiptsVoided")
    assert isinstance(voided, events.ReceiptsVoided)
    assert (sorted(voided.task_ids), voided.reason) == (
        sorted([*(bid.pk for bid in hasty), other.pk]),
        "late",
    )
    assert verify_zone(zone).problems == []


@pytest.mark.parametrize("amount", [1_000_000, 400_000_000])
def test_a_bid_whose_deadline_has_passed_wins_nothing_whatever_it_offers(
    zone: Zone, owner: Organisation, amount: int
) -> None:
    market_builders.node(zone)
    bid = market_builders.bid(owner, zone, price_micros=amount, slots=1, now=NOW)
    receive(zone, now=NOW)
    decide_pending_bids(zone=zone, now=NOW + SLOT)
    bid.refresh_from_db()
    assert (bid.status, bid.refusal) == (BidStatus.REFUSED, "window")
    # What was received late and refused tells the prices nothing either.
    crowd(builders.organisation(usd="1000"), zone, now=NOW + SLOT)
    now = NOW + 2 * SLOT
    assert market_builders.reprice(zone, now)
    [solved] = read_events(zone, "PricesSolved")
    assert isinstance(solved, events.PricesSolved)
    assert solved.inputs["bids_today"] == 16
    assert verify_zone(zone).problems == []


# --- A node that is posted and withdrawn within one block of slots --------------------------------


def post_rates(zone: Zone, now: datetime) -> events.RatesPosted:
    assert post_daily_rates(zone_id=zone.pk, clock=lambda: now)
    found = read_events(zone, "RatesPosted")[-1]
    assert isinstance(found, events.RatesPosted)
    return found


def list_nodes(zone: Zone) -> list[Node]:
    return list(Node.objects.filter(zone=zone).order_by("joined_at", "pk"))


def run_two_days(zone: Zone, owner: Organisation, *, attack: str) -> list[list[NodeRate]]:
    """Rates of both days by node, in the order of joining, when one provider does this."""
    with transaction.atomic():
        refresh_zone(zone=zone, now=NOW)
        Node.objects.update(last_heartbeat_at=SECOND_DAY)
        refresh_zone(zone=zone, now=SECOND_DAY)
        first = post_rates(zone, SECOND_DAY)
        rush, slot = SECOND_DAY + timedelta(hours=3), timedelta(seconds=zone.slot_s)
        nodes = list_nodes(zone)
        mine = nodes[0]
        Node.objects.update(last_heartbeat_at=rush)
        if attack == "withdraws":
            drain_node(node=mine, now=rush)
        elif attack == "shortens":
            until = rush + 2 * slot
            set_node_availability(
                node=mine, available_from_at=None, available_until_at=until, now=rush
            )
        elif attack == "asks more":
            ask = 900 * market_builders.CELL_MICROS
            set_node_ask(node=mine, ask_micros=ask, set_by=None, now=rush)
        refresh_zone(zone=zone, now=rush)
        crowd(owner, zone, now=rush, count=60, worth=60_000_000)
        back = rush + 3 * slot
        mine.refresh_from_db()
        if attack == "withdraws":
            undrain_node(node=mine, now=back)
        elif attack == "shortens":
            set_node_availability(
                node=mine, available_from_at=None, available_until_at=None, now=back
            )
        elif attack == "asks more":
            ask = 4 * market_builders.CELL_MICROS
            set_node_ask(node=mine, ask_micros=ask, set_by=None, now=back)
        Node.objects.update(last_heartbeat_at=THIRD_DAY)
        refresh_zone(zone=zone, now=THIRD_DAY)
        second = post_rates(zone, THIRD_DAY)
        assert verify_zone(zone).problems == []
        rates = [[day.rates[node.pk] for node in nodes] for day in (first, second)]
        transaction.set_rollback(True)
    return rates


@pytest.mark.parametrize("attack", ["withdraws", "shortens", "asks more"])
def test_a_node_that_goes_and_returns_within_a_block_moves_no_rate_by_much(
    owner: Organisation, attack: str
) -> None:
    zone = market_builders.rates_zone()
    calm = run_two_days(zone, owner, attack="")
    attacked = run_two_days(zone, owner, attack=attack)
    # Not the day's own rates. A day on which less is sold tells less of what its bids were worth:
    # that lowers the next day's by two or three hundredths, its own as the others'. Ids, which are
    # drawn, move them by a few thousandths. What it may not do is raise them.
    assert attacked[0] == calm[0]
    for one, other in zip(attacked[1], calm[1], strict=True):
        assert (one.ask, one.floor) == (other.ask, other.floor)
        assert one.by_block == pytest.approx(other.by_block, rel=0.05)
        assert all(a <= 1.005 * b for a, b in zip(one.by_block, other.by_block, strict=True))
    # The rush is in them, so that there was something to move.
    assert max(calm[1][0].by_block) > calm[1][0].floor


# --- A solve that starts while a bid waits --------------------------------------------------------


@pytest.mark.parametrize("is_received", [False, True])
def test_a_solve_that_starts_while_a_bid_waits_does_not_know_it(
    zone: Zone, owner: Organisation, is_received: bool
) -> None:
    market_builders.node(zone)
    crowd(owner, zone, now=NOW)
    now = market_builders.slot_at(zone, 101)
    refresh_zone(zone=zone, now=now)
    found = []
    for amount in (2_000_000, 90_000_000):
        with transaction.atomic():
            bid = market_builders.bid(
                builders.organisation(usd="100"), zone, price_micros=amount, slots=11, now=now
            )
            if is_received:
                receive(zone, now=now)
            assert market_builders.reprice(zone, now)
            decide_pending_bids(zone=zone, now=now)
            bid.refresh_from_db()
            kinds = list_kinds(zone)
            [solved] = read_events(zone, "PricesSolved")
            assert isinstance(solved, events.PricesSolved)
            prices = solved.compute_price, solved.memory_price
            found.append((kinds, bid.payment_micros, bid.winning_price_micros, prices))
            assert verify_zone(zone).problems == []
            transaction.set_rollback(True)
    (kinds, low_price, needed, prices), (others, high_price, _, high_prices) = found
    assert kinds == others
    assert prices == high_prices
    # A bid of either amount meets one price.
    assert high_price is not None
    assert high_price in (low_price, (needed or 0) - 1, needed)
    if is_received:
        # From the receipt to the decision there is no room for a solve.
        at = kinds.index("PricesSolved")
        expected = ["BidsReceived", "BidArrived", "SlotAdvanced", "PricesSolved"]
        assert kinds[at - 3 : at + 1] == expected
    assert Bid.objects.filter(status=BidStatus.PENDING).count() == 0
