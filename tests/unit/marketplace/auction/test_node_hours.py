"""Slots that are sold of a node stay its own when hours of its device's nodes change."""

from __future__ import annotations

from dataclasses import asdict, replace
from datetime import time, timedelta

import pytest

from marketplace.auction import node_hours
from marketplace.auction.lane.decide import decide_pending_bids
from marketplace.auction.lane.enter import enter_lane
from marketplace.auction.lane.sequence_bids import receive_bids
from marketplace.auction.lane.sweep import refresh_zone
from marketplace.auction.models import Bid, BidStatus, Reservation
from marketplace.auction.node_hours import change_sale_hours
from marketplace.common.errors import UserError
from marketplace.fleet.models import Node
from marketplace.fleet.sale_hours import SaleHours
from marketplace.jobs.models import Job
from tests import builders
from tests import market_builders as market
from tests.builders import NOW
from tests.shared_device_builders import NIGHT, beat, clock_at, join, pair, refused, turn
from tests.unit.marketplace.common.threads import at_once

pytestmark = pytest.mark.django_db


def set_hours(node: Node, hours: SaleHours) -> Node:
    """All of them at once, now."""
    return change_sale_hours(node=node, change=asdict(hours), now=NOW)


def test_hours_cannot_leave_sold_slots_to_another_node():
    _first, second = pair()
    turn(second, NOW)
    owner = builders.organisation(usd="100")
    bid = market.bid(owner, second.zone, slots=40)
    decide_pending_bids(zone=second.zone, now=NOW)
    sold = Reservation.objects.filter(bid=bid).values_list("slot", flat=True)
    assert set(sold) == {118}
    short = SaleHours(time(9, 4), time(7, 59))
    assert refused(lambda: set_hours(second, short)) == "slots_sold"
    pause = replace(
        SaleHours(*NIGHT),
        maintenance_from_at=clock_at(9, 3),
        maintenance_until_at=clock_at(9, 5),
    )
    assert refused(lambda: set_hours(second, pause)) == "slots_sold"
    fewer = SaleHours(time(9, 3), time(12))
    assert set_hours(second, fewer).sale_closes == time(12)
    change_sale_hours(node=second, change=asdict(short), now=clock_at(9, 3, 10))


def test_no_node_joins_where_slots_are_sold_outside_the_hours_of_the_first():
    provider, zone = market.provider(), market.zone()
    first, reply = join(provider, market.zone(), hours=(None, None), name="day")
    beat(first, NOW)
    owner = builders.organisation(usd="100")
    bid = market.bid(owner, first.zone, slots=40)
    decide_pending_bids(zone=first.zone, now=NOW)
    assert Bid.objects.get(pk=bid.pk).status == BidStatus.ADMITTED
    noon = SaleHours(time(12), time(13))
    # Alone it serves what was sold in any case.
    set_hours(first, noon)
    others = (time(13, 30), time(11, 30))
    joins = {"hours": others, "name": "night", "neighbour": reply.api_token}
    assert refused(lambda: join(provider, zone, **joins)) == "slots_sold"
    later = NOW + timedelta(minutes=1)
    second, _ = join(provider, zone, **joins, now=later)
    assert second.shared_device is not None


def sell_early_and_late(second: Node) -> tuple[Bid, SaleHours]:
    """A bid that fits in the beginning of a node's hours only, and hours without that."""
    turn(second, NOW)
    bid = market.bid(builders.organisation(usd="100"), second.zone, slots=25)
    return bid, SaleHours(time(9, 10), time(7, 59))


@pytest.mark.parametrize("is_committed_late", [False, True])
def test_hours_wait_for_the_lane_of_a_node_that_joined_meanwhile(monkeypatch, is_committed_late):
    provider, zone = market.provider(), market.zone()
    first, reply = join(provider, market.zone(), hours=(time(8), time(19)), name="day")
    join(provider, zone, hours=(time(20), time(7)), name="n", neighbour=reply.api_token)
    held, looks = [], [first.zone_id]
    lock, list_zones = node_hours.lock_lanes, node_hours._list_zones

    def look(node):
        """At first it sees what there was before the other node's join was committed."""
        return frozenset({looks.pop()}) if is_committed_late and looks else list_zones(node)

    monkeypatch.setattr(node_hours, "_list_zones", look)
    monkeypatch.setattr(node_hours, "lock_lanes", lambda ids: (held.append(set(ids)), lock(ids)))
    # It was read before the other one came.
    assert first.shared_device_id is None
    set_hours(first, SaleHours(time(8), time(18)))
    assert held == [{first.zone_id, zone.pk}]
    first.refresh_from_db()
    assert first.sale_closes == time(18)


@pytest.mark.django_db(transaction=True)
def test_of_a_sale_and_a_change_of_its_hours_at_once_one_is_made():
    _first, second = pair()
    bid, later = sell_early_and_late(second)
    _, changed = at_once(
        [
            lambda: decide_pending_bids(zone=second.zone, now=NOW),
            lambda: set_hours(second, later),
        ]
    )
    # Received before the change and decided after it, it is sold and loses its cells at once.
    refresh_zone(zone=second.zone, now=NOW)
    is_sold = Reservation.objects.filter(bid=bid, released_at=None).exists()
    assert isinstance(changed, UserError) == is_sold


def test_a_bid_received_before_its_nodes_hours_change_keeps_no_cell_outside_them():
    """It is decided by the fleet that its receipt was given for, and planned again at once."""
    _first, second = pair()
    bid, later = sell_early_and_late(second)
    other = market.node(second.zone, ask_micros=1_000_000)
    with enter_lane(zone=second.zone, now=NOW) as lane:
        receive_bids(lane, limit=50)
    set_hours(second, later)
    refresh_zone(zone=second.zone, now=NOW)
    bid.refresh_from_db()
    assert bid.status == BidStatus.ADMITTED
    held = Reservation.objects.filter(bid=bid, released_at=None)
    assert set(held.values_list("node", flat=True)) == {other.pk}
    assert Job.objects.get(bid_id=bid.pk).cells == [[held.get().slot, other.pk]]
