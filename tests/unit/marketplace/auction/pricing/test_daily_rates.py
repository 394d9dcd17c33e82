"""Rates that a zone posts for its providers: when, from what, and what they pay."""

from __future__ import annotations

import json
from contextlib import nullcontext
from datetime import UTC, datetime, timedelta

import pytest

from marketplace.auction.book.verify import verify_zone
from marketplace.auction.lane.decide import decide_pending_bids
from marketplace.auction.lane.lane import Lane
from marketplace.auction.lane.sweep import refresh_zone
from marketplace.auction.models import Bid, LogEntry, Reservation
from marketplace.auction.pricing import daily_rates
from marketplace.auction.pricing.daily_rates import (
    are_rates_due,
    post_daily_rates,
    request_due_rates,
)
from marketplace.auction.settlement import settle_finished
from marketplace.fleet.models import Node, Zone
from marketplace.fleet.services import set_node_ask, set_policy_settings
from marketplace.jobs.models import Job
from marketplace.jobs.services import dispatch_slots
from marketplace.payments.ledger_checks import check_ledger
from marketplace.payments.selectors import get_earnings, get_house_balances
from scheduler.auction.log import events
from scheduler.auction.log.codec import event_from_json
from scheduler.types import NodeRate
from tests import builders
from tests import market_builders as market
from tests.builders import NOW
from workers.protocol.reports import SliceEnd

pytestmark = pytest.mark.django_db

#: A node's ask of 0.40 dollars by sample.
ASK = 1_000.0
#: The second day of the zone's log, early; the first is not known whole.
TOMORROW = datetime(2026, 3, 3, 0, 5, tzinfo=UTC)
DAY_AFTER = TOMORROW + timedelta(days=1)


@pytest.fixture
def owner():
    return builders.organisation(usd="10000")


@pytest.fixture
def zone():
    """Three providers, one of which asks three times as much as the others."""
    zone = market.zone(
        horizon_slots=12, policy_settings={"posts_rates": True, "holding_limit": False}
    )
    for ask in (1, 1, 3):
        market.node(zone, ask_micros=4 * ask * market.CELL_MICROS)
    return zone


def posted(zone: Zone) -> list[events.RatesPosted]:
    rows = LogEntry.objects.filter(zone=zone, kind="RatesPosted").order_by("position")
    read = [event_from_json(json.loads(row.event)) for row in rows]
    return [event for event in read if isinstance(event, events.RatesPosted)]


def post(zone: Zone, now: datetime) -> bool:
    return post_daily_rates(zone_id=zone.pk, clock=lambda: now)


def kinds(zone: Zone) -> list[str]:
    rows = LogEntry.objects.filter(zone=zone).order_by("position")
    return list(rows.values_list("kind", flat=True))


def nodes(zone: Zone) -> list[Node]:
    return list(Node.objects.filter(zone=zone).order_by("ask_micros", "pk"))


def problems(zone: Zone) -> list[str]:
    return verify_zone(zone).problems


def test_a_node_sells_at_a_first_rate_from_the_moment_it_joins(zone, owner):
    bid = market.bid(owner, zone, slots=9)
    decide_pending_bids(zone=zone, now=NOW)
    bid.refresh_from_db()

    assert kinds(zone) == [
        *("NodeJoined", "NodeJoined", "NodeJoined", "SlotAdvanced", "RatesPosted"),
        *("BidsReceived", "BidArrived"),
    ]
    [event] = posted(zone)
    cheap, other, dear = nodes(zone)
    # The median of two peers' asks is the lower one.
    assert event.rates[cheap.pk] == NodeRate(ASK, 1.25 * ASK, (1.25 * ASK,) * 18)
    assert event.rates[dear.pk].floor == 1.25 * ASK
    # One cell of 100 samples, at the rate and not at the ask.
    assert bid.status == "admitted"
    assert bid.payment_micros == 125_000
    [row] = Reservation.objects.filter(bid=bid)
    assert (row.operational_cost_micros, row.posted_rate_micros) == (125_000, 1.25 * ASK)
    assert row.node_id in (cheap.pk, other.pk)
    assert problems(zone) == []


def test_a_node_that_asks_more_than_its_rate_sells_nothing(zone, owner):
    for _ in range(100):
        market.bid(owner, zone, slots=11)
    decide_pending_bids(zone=zone, now=NOW)
    assert Bid.objects.filter(status="admitted").count() == 88
    dear = nodes(zone)[-1]
    assert not Reservation.objects.filter(node=dear).exists()
    assert Reservation.objects.exclude(node=dear).count() == 88


def test_a_provider_earns_the_rate_of_its_cells_and_the_books_balance(zone, owner):
    bid = market.bid(owner, zone, slots=9)
    decide_pending_bids(zone=zone, now=NOW)
    job = Job.objects.get(bid_id=bid.pk)
    now = market.slot_at(zone, 101)
    dispatch_slots(now=now)
    node = market.open_slice(job).node
    market.end_slice(job, status=SliceEnd.FINISHED, now=now)
    assert settle_finished(now=now) == 1
    assert get_earnings(organisation=node.provider.organisation).pending_micros == 125_000
    assert get_house_balances()["revenue"] == 0
    check = check_ledger()
    assert (check.balanced, check.wrong_pay) == (True, ())


def test_what_the_market_price_is_above_the_rate_is_the_houses(zone, owner):
    for number in range(40):
        market.bid(owner, zone, price_micros=3_000_000 + number, slots=9, epochs=3)
    decide_pending_bids(zone=zone, now=NOW)
    now = market.slot_at(zone, 101)
    assert market.reprice(zone, now)
    bid = market.bid(owner, zone, price_micros=90_000_000, slots=11, now=now)
    decide_pending_bids(zone=zone, now=now)
    bid.refresh_from_db()
    [row] = Reservation.objects.filter(bid=bid)
    assert bid.parts is not None
    assert bid.payment_micros is not None
    assert bid.payment_micros > 125_000 == row.operational_cost_micros
    assert bid.parts["operational"] == 125_000
    assert problems(zone) == []


def test_a_days_rates_are_posted_once_from_the_bids_of_whole_days_before(owner):
    zone = market.rates_zone()
    refresh_zone(zone=zone, now=NOW)
    assert are_rates_due(zone=zone, now=NOW)
    assert request_due_rates(clock=lambda: NOW) == [zone.pk]
    assert post(zone, NOW)
    assert not post(zone, NOW)
    assert request_due_rates(clock=lambda: NOW) == []
    # A rush in one block of the first whole day.
    rush = TOMORROW + timedelta(hours=3)
    refresh_zone(zone=zone, now=rush)
    for number in range(60):
        market.bid(owner, zone, price_micros=60_000_000 + number, slots=9, epochs=3, now=rush)
    decide_pending_bids(zone=zone, now=rush)
    assert post(zone, DAY_AFTER)
    last = posted(zone)[-1]
    assert last.inputs["day"] == "2026-03-04"
    assert len(last.inputs["past_starts"]) == 1
    cheap = nodes(zone)[0]
    rate = last.rates[cheap.pk]
    assert rate.floor == 1.25 * ASK
    dearest = max(range(18), key=rate.by_block.__getitem__)
    assert dearest == 2
    assert rate.by_block[0] == rate.floor
    assert problems(zone) == []


def test_rates_are_due_by_the_rules_in_force_and_not_by_what_the_operator_wants(zone):
    refresh_zone(zone=zone, now=NOW)
    # The lane has not taken it yet; after a promise it holds from a later day on.
    Zone.objects.update(settings={**zone.settings, "posts_rates": False})
    assert request_due_rates(clock=lambda: NOW) == [zone.pk]


def test_an_ask_that_changes_in_the_day_counts_from_the_next_days_rates(zone, owner):
    refresh_zone(zone=zone, now=NOW)
    post(zone, NOW)
    cheap = nodes(zone)[0]
    set_node_ask(node=cheap, ask_micros=900 * market.CELL_MICROS, set_by=None, now=NOW)
    refresh_zone(zone=zone, now=NOW + timedelta(seconds=10))
    assert len(posted(zone)) == 2
    post(zone, TOMORROW)
    assert posted(zone)[-1].rates[cheap.pk].ask == 900 * ASK / 4
    # The others' rates may have moved with it, its own has not.
    before, after = posted(zone)[0].rates[cheap.pk], posted(zone)[-1].rates[cheap.pk]
    assert after.floor == before.floor


def test_a_worker_beside_another_leaves_and_one_that_dies_posts_nothing(zone, monkeypatch):
    refresh_zone(zone=zone, now=NOW)
    with monkeypatch.context() as held:
        held.setattr(daily_rates, "advisory_session_lock", lambda *_, wait: nullcontext(False))
        assert not post(zone, NOW)
    assert len(posted(zone)) == 1
    apply = Lane.apply

    def die(lane, event):
        found = apply(lane, event)
        if isinstance(event, events.RatesPosted):
            raise RuntimeError("killed")
        return found

    monkeypatch.setattr(Lane, "apply", die)
    with pytest.raises(RuntimeError, match="killed"):
        post(zone, NOW)
    monkeypatch.undo()
    assert len(posted(zone)) == 1
    assert post(zone, NOW)
    assert len(posted(zone)) == 2


def test_a_node_that_joins_in_the_day_gets_a_rate_and_leaves_the_others_theirs(zone):
    refresh_zone(zone=zone, now=NOW)
    post(zone, NOW)
    before = posted(zone)[-1]
    late = market.node(zone, ask_micros=2 * market.CELL_MICROS)
    refresh_zone(zone=zone, now=NOW + timedelta(seconds=10))
    after = posted(zone)[-1]
    assert {**after.rates} == {**before.rates, late.pk: after.rates[late.pk]}
    assert after.rates[late.pk].by_block == (1.25 * ASK,) * 18
    assert not are_rates_due(zone=zone, now=NOW + timedelta(seconds=10))
    assert problems(zone) == []


def test_a_node_that_joins_later_earns_what_its_providers_others_do_and_not_its_own_ask(zone):
    refresh_zone(zone=zone, now=NOW)
    refresh_zone(zone=zone, now=TOMORROW)
    post(zone, DAY_AFTER)
    cheap = nodes(zone)[0]
    before = posted(zone)[-1]
    assert before.inputs["past_starts"]
    # Twice the middle ask would sell at its own ask on a first day.
    again = market.node(zone, of=cheap.provider, ask_micros=8 * market.CELL_MICROS)
    new = market.node(zone, ask_micros=8 * market.CELL_MICROS)
    refresh_zone(zone=zone, now=DAY_AFTER + timedelta(seconds=10))
    after = posted(zone)[-1]
    assert after.rates[again.pk].ask == after.rates[new.pk].ask == 2 * ASK
    assert after.rates[again.pk].by_block == before.rates[cheap.pk].by_block
    assert after.rates[new.pk].by_block == (1.25 * ASK,) * 18
    assert problems(zone) == []


def test_operators_go_over_to_posted_rates_and_back_by_a_setting(owner):
    zone = market.zone(horizon_slots=12)
    market.node(zone)
    refresh_zone(zone=zone, now=NOW)
    assert not are_rates_due(zone=zone, now=NOW)
    assert "RatesPosted" not in kinds(zone)
    settings = {"posts_rates": True, "reference_rate_micros": 800.0}
    zone = set_policy_settings(zone=zone, settings=settings, now=NOW)
    refresh_zone(zone=zone, now=NOW + timedelta(seconds=10))
    assert kinds(zone)[-3:] == ["RulesChanged", "SlotAdvanced", "RatesPosted"]
    # Alone in the zone: held against the operator's reference.
    [node] = nodes(zone)
    assert posted(zone)[0].rates[node.pk].floor == 1_000.0
    zone = set_policy_settings(zone=zone, settings={}, now=NOW)
    refresh_zone(zone=zone, now=NOW + timedelta(seconds=20))
    assert kinds(zone)[-2:] == ["RulesChanged", "SlotAdvanced"]
    assert problems(zone) == []
