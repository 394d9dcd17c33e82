"""What the house's own nodes ask in the log, whatever its operator sets meanwhile."""

from __future__ import annotations

from datetime import timedelta

import pytest

from marketplace.auction.book import engine_cache as books
from marketplace.auction.book.verify import verify_zone
from marketplace.auction.lane.decide import decide_pending_bids
from marketplace.auction.lane.sweep import refresh_zone
from marketplace.auction.pricing.daily_rates import post_daily_rates
from marketplace.fleet.models import NodeStatus
from marketplace.fleet.providers import ensure_provider
from tests import builders
from tests import market_builders as market
from tests.builders import NOW

pytestmark = pytest.mark.django_db


@pytest.fixture
def zone(monkeypatch):
    """A zone whose days have four slots; its log begins with the slot 100, and a day."""
    monkeypatch.setattr(books, "count_slots_per_day", lambda _: 4)
    return market.zone()


@pytest.fixture
def house():
    operator = builders.operator()
    return ensure_provider(organisation=builders.organisation(owner=operator), now=NOW)


def asks(zone, slot: int) -> dict[str, float]:
    """What nodes ask after a bid of a slot."""
    now = market.slot_at(zone, slot) + timedelta(seconds=1)
    refresh_zone(zone=zone, now=now)
    market.bid(builders.organisation(usd="10"), zone, price_micros=100_000, now=now)
    decide_pending_bids(zone=zone, now=now)
    with books.read_book(zone=zone, now=now) as book:
        return {node.id: node.ask for node in book.engine.nodes}


def test_an_own_node_that_leaves_and_joins_again_has_its_old_ask_until_a_day_begins(zone, house):
    own, other = market.node(zone, of=house, ask_micros=400_000), market.node(zone)
    other_ask = float(other.ask_micros)
    assert asks(zone, 100) == {own.pk: 400_000.0, other.pk: other_ask}
    own.status, own.ask_micros = NodeStatus.OFFLINE, 900_000
    own.save()
    assert asks(zone, 101) == {other.pk: other_ask}
    own.status = NodeStatus.ONLINE
    own.save()
    held = {other.pk: other_ask, own.pk: 400_000.0}
    assert [asks(zone, slot) for slot in (102, 103)] == [held, held]
    free = {other.pk: other_ask, own.pk: 900_000.0}
    assert asks(zone, 104) == free
    own.ask_micros = 950_000
    own.save()
    assert asks(zone, 105) == free
    assert verify_zone(zone).problems == []


def test_an_own_node_whose_ask_rose_has_a_rate_for_what_it_sells_at(house):
    zone = market.zone(policy_settings={"posts_rates": True})
    own, *_ = market.node(zone, of=house, ask_micros=400_000), market.node(zone), market.node(zone)
    assert asks(zone, 100)[own.pk] == 400_000.0
    own.ask_micros = 900_000
    own.save()
    assert asks(zone, 101)[own.pk] == 400_000.0
    post_daily_rates(zone_id=zone.pk, clock=lambda: market.slot_at(zone, 102))
    with books.read_book(zone=zone, now=NOW) as book:
        posted = book.engine.posted_rates
    assert posted is not None
    assert posted.inputs["day"]
    assert posted.rates[own.pk].ask == 400_000.0 / own.compute_capacity
    assert verify_zone(zone).problems == []
