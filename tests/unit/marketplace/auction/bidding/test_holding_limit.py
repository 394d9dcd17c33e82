"""One organisation cannot buy up a zone that nobody else has bought in yet."""

from __future__ import annotations

from datetime import timedelta

import pytest

from marketplace.auction.bidding import limits
from marketplace.auction.bidding.limits import find_room_left
from marketplace.auction.lane.decide import decide_pending_bids
from marketplace.auction.models import Bid
from marketplace.common.errors import UserError
from marketplace.fleet.services import set_policy_settings
from marketplace.jobs.models import Job
from marketplace.jobs.services import cancel_job
from marketplace.payments.selectors import Wallet, get_wallet
from tests import builders
from tests import market_builders as market
from tests.builders import NOW

pytestmark = pytest.mark.django_db

#: Eight nodes of 400 samples for 10 slots; a quarter is 8,000.
QUARTER = 8_000.0


@pytest.fixture
def zone():
    zone = market.zone(horizon_slots=10)
    for _ in range(8):
        market.node(zone)
    return zone


@pytest.fixture
def owner():
    return builders.organisation(usd="1000")


def room(zone, owner, *, now=NOW):
    return find_room_left(zone=zone, organisation_id=owner.pk, now=now)


def test_an_operator_lifts_the_limit(zone, owner):
    assert room(zone, owner) == QUARTER
    set_policy_settings(zone=zone, settings={"holding_limit": False}, now=NOW)
    zone.refresh_from_db()
    assert room(zone, owner) is None


def test_waiting_bids_and_cells_to_come_count_until_a_quarter_and_the_next_bid_holds_nothing(
    zone, owner
):
    assert room(zone, owner) == QUARTER
    # 810 samples each, of which nine fit.
    for _ in range(5):
        market.bid(owner, zone, epochs=9, slots=9)
    assert room(zone, owner) == QUARTER - 5 * 810
    decide_pending_bids(zone=zone, now=NOW)
    # Decided, whole cells of 100 count.
    assert room(zone, owner) == QUARTER - 5 * 900
    for _ in range(4):
        market.bid(owner, zone, epochs=9, slots=9)
    before = get_wallet(organisation=owner)
    with pytest.raises(UserError, match="one organisation may hold 25% of what is on sale") as told:
        market.bid(owner, zone, epochs=9, slots=9)
    assert told.value.code == "holding_limit"
    assert (Bid.objects.count(), get_wallet(organisation=owner)) == (9, before)
    # Others are not concerned, and cells that are past count no more.
    other = builders.organisation(usd="10")
    assert market.bid(other, zone, epochs=9, slots=9).status == "pending"
    assert room(zone, owner, now=market.slot_at(zone, 106)) > room(zone, owner)


def test_it_ends_when_others_have_bought(zone, owner, monkeypatch):
    monkeypatch.setattr(limits, "OTHERS_WON", 2)
    for organisation in (owner, owner, builders.organisation(usd="10")):
        market.bid(organisation, zone, slots=9)
    decide_pending_bids(zone=zone, now=NOW)
    # The organisation's own do not end it.
    assert room(zone, owner) == QUARTER - 200
    other = builders.organisation(usd="10")
    market.bid(other, zone, slots=9)
    # Nor do bids that have not won.
    assert room(zone, owner) == QUARTER - 200
    decide_pending_bids(zone=zone, now=NOW)
    assert room(zone, owner) is None
    # A friend who buys and cancels has not bought.
    bought = Bid.objects.get(organisation=other)
    cancel_job(job=Job.objects.get(bid_id=bought.pk), cancelled_by=None, now=NOW)
    assert room(zone, owner) == QUARTER - 200


def test_it_ends_with_the_zones_first_days(zone, owner):
    assert room(zone, owner, now=NOW + timedelta(days=7)) == QUARTER
    assert room(zone, owner, now=NOW + timedelta(days=7, seconds=1)) is None


def test_a_node_is_never_too_much_and_a_zone_of_one_node_has_no_limit(owner):
    zone = market.zone(horizon_slots=10)
    assert room(zone, owner) is None
    market.node(zone)
    assert room(zone, owner) is None
    market.node(zone)
    assert room(zone, owner) == 4_000.0


def test_nothing_is_lost_to_a_bid_that_was_refused_before_it_was_stored(zone, owner, monkeypatch):
    monkeypatch.setattr(limits, "find_most_held", lambda *_, **__: 4_000.0)
    with pytest.raises(UserError, match="This market is new"):
        market.bid(owner, zone, epochs=50, slots=9)
    assert get_wallet(organisation=owner) == Wallet(available_micros=1_000_000_000, held_micros=0)
    assert room(zone, owner) == 4_000.0
