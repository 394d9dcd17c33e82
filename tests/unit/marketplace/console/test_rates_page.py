"""What a provider sees of posted rates: its own, why it sells or not, and nobody else's ask."""

from __future__ import annotations

import pytest
import time_machine
from django.test import Client

from marketplace.auction.lane.decide import decide_pending_bids
from marketplace.auction.lane.sweep import refresh_zone
from marketplace.auction.node_rates import RateState, load_node_rates
from marketplace.fleet.models import Node, Zone
from marketplace.fleet.selectors import slot_ends_at, slot_starts_at
from tests import builders
from tests import market_builders as market
from tests.builders import NOW
from tests.pages import read_page

pytestmark = pytest.mark.django_db


@pytest.fixture
def zone() -> Zone:
    """Three providers: two ask the same, one three times as much."""
    zone = market.zone(
        horizon_slots=12, policy_settings={"posts_rates": True, "holding_limit": False}
    )
    for ask in (1, 1, 3):
        market.node(zone, ask_micros=4 * ask * market.CELL_MICROS)
    refresh_zone(zone=zone, now=NOW)
    return zone


def nodes(zone: Zone) -> list[Node]:
    return list(Node.objects.filter(zone=zone).order_by("ask_micros", "pk"))


def test_a_node_sells_where_its_ask_is_not_above_its_rate_and_is_told_what_would(
    zone: Zone,
) -> None:
    cheap, _, dear = load_node_rates(zone=zone, nodes=nodes(zone), now=NOW)
    # The first rate is 1.25 of the middle ask of the others, which is the lower one.
    for rates in (cheap, dear):
        assert rates.floor_micros == 500_000
        assert rates.band_micros == (500_000, 500_000)
    [block] = cheap.blocks
    assert (block.state, block.in_force_micros) == (RateState.ON_SALE, 500_000)
    assert block.starts_at == slot_starts_at(zone, 100)
    assert block.ends_at == slot_ends_at(zone, 111)
    [block] = dear.blocks
    assert (block.state, block.in_force_micros) == (RateState.ASK_ABOVE_RATE, None)
    assert (cheap.sells_in_all, dear.sells_in_all) == (True, False)


def test_the_page_says_why_a_node_is_not_chosen_and_names_no_ask_of_others(
    zone: Zone, client: Client
) -> None:
    dear = nodes(zone)[-1]
    client.force_login(builders.owner_of(dear.provider.organisation))
    session = client.session
    session["organisation"] = dear.provider.organisation_id
    session.save()
    with time_machine.travel(NOW, tick=False):
        text = read_page(client.get("/nodes/rates"))
    assert dear.name in text
    assert "Not chosen" in text
    assert "Your ask is above the rate." in text
    assert "An ask of at most $0.50 sells in every block" in text
    assert "$0.40" not in text
    for other in nodes(zone)[:-1]:
        assert other.name not in text


def test_where_asks_are_paid_there_are_no_rates(client: Client) -> None:
    zone = market.zone(horizon_slots=12)
    node = market.node(zone)
    bid = market.bid(builders.organisation(usd="10"), zone, slots=9)
    decide_pending_bids(zone=zone, now=NOW)
    bid.refresh_from_db()
    assert bid.status == "admitted"
    assert load_node_rates(zone=zone, nodes=[node], now=NOW) == []
    client.force_login(builders.owner_of(node.provider.organisation))
    assert "No rates are posted" in read_page(client.get("/nodes/rates"))
