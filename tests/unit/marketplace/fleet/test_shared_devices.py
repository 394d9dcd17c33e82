"""Nodes that share a GPU: hours that stay apart, whose turn it is, and rest that is no loss."""

from __future__ import annotations

from dataclasses import asdict
from datetime import time, timedelta

import pytest
from django.db import IntegrityError, transaction

from marketplace.auction.lane.decide import decide_pending_bids
from marketplace.auction.lane.sweep import refresh_zone
from marketplace.auction.models import BidStatus
from marketplace.checks.reliability import measure_reliability
from marketplace.common.errors import NotAllowed, UserError
from marketplace.fleet.device_timeslices import Rest, find_rest
from marketplace.fleet.models import Node, NodeStatus, SharedDevice
from marketplace.fleet.sale_hours import SaleHours
from marketplace.fleet.selectors import find_present_status
from marketplace.fleet.services import (
    drain_node,
    retire_node,
    revoke_node_token,
    set_node_availability,
    set_sale_hours,
    sweep_offline_nodes,
    undrain_node,
)
from marketplace.jobs.models import Job
from marketplace.jobs.services import dispatch_slots
from tests import builders
from tests import job_builders as build
from tests import market_builders as market
from tests.builders import NOW
from tests.shared_device_builders import DAY, NIGHT, beat, clock_at, join, pair, refused, turn
from tests.unit.marketplace.common.threads import at_once
from workers.protocol.turns import DeviceTurn

pytestmark = pytest.mark.django_db


def set_hours(node: Node, hours: SaleHours) -> Node:
    """All of them at once, now."""
    return set_sale_hours(node=node, change=asdict(hours), now=NOW)


def test_a_second_node_joins_with_the_first_ones_token_and_hours_of_its_own():
    first, second = pair()
    assert first.shared_device == second.shared_device
    assert second.load_s == 20.0
    assert (second.available_from_at, second.available_until_at) == (
        clock_at(9, 3),
        clock_at(7, 59) + timedelta(days=1),
    )
    # Its own zone's terms and credentials: nothing else is shared.
    assert first.zone != second.zone
    assert first.api_token_hash != second.api_token_hash


@pytest.mark.parametrize(
    ("hours", "code"),
    [
        ((None, None), "invalid_hours"),
        # Over the other's end, around it, and over its beginning.
        ((time(9, 1), time(20)), "hours_overlap"),
        ((time(7), time(12)), "hours_overlap"),
        ((time(12), time(8, 30)), "hours_overlap"),
        # Half a minute of grace, and 1.5 times what loading takes: a minute on each side.
        ((time(9, 2, 59), time(7, 59)), "hours_overlap"),
        ((time(9, 3), time(7, 59, 1)), "hours_overlap"),
    ],
)
def test_hours_that_leave_no_time_to_change_over_are_refused(hours, code):
    provider = market.provider()
    _, reply = join(provider, market.zone(), hours=DAY, name="day")
    zone = market.zone()
    assert code == refused(
        lambda: join(provider, zone, hours=hours, name="night", neighbour=reply.api_token)
    )
    _first, second = pair()
    assert code == refused(lambda: set_hours(second, SaleHours(*hours)))


def test_the_first_node_needs_hours_and_the_token_must_be_of_ones_own():
    provider, zone = market.provider(), market.zone()
    first, reply = join(provider, market.zone(), hours=(None, None), name="day")
    joins = {"hours": NIGHT, "name": "night", "neighbour": reply.api_token}
    assert refused(lambda: join(provider, zone, **joins)) == "hours_missing"
    other = market.provider()
    assert refused(lambda: join(other, zone, **joins)) == "unknown_neighbour"
    revoke_node_token(node=first, now=NOW)
    assert refused(lambda: join(provider, zone, **joins)) == "unknown_neighbour"


def test_a_node_that_shares_is_never_sold_all_day():
    first, second = pair()
    assert refused(lambda: set_hours(first, SaleHours())) == ("invalid_hours")
    assert (
        refused(
            lambda: set_node_availability(
                node=first, available_from_at=None, available_until_at=None, now=NOW
            )
        )
        == "device_shared"
    )
    with pytest.raises(IntegrityError), transaction.atomic():
        Node.objects.filter(pk=first.pk).update(sale_opens=None, sale_closes=None)
    # The other one's hours are free once it has left.
    retire_node(node=second, now=NOW)
    set_hours(first, SaleHours(time(9, 3), time(9, 1)))
    # Alone it may be sold all day, and asks for no turns then.
    assert set_hours(first, SaleHours()).shared_device is None
    assert turn(first, NOW).serves


@pytest.mark.parametrize("hours", [(time(9), time(10)), (time(7), time(8, 1)), (time(23), time(9))])
def test_the_database_refuses_hours_that_overlap_too(hours):
    """As by a program that does not go through the market's own functions."""
    _first, second = pair()
    rows = Node.objects.filter(pk=second.pk)
    with pytest.raises(IntegrityError, match="fleet_node_hours_apart"), transaction.atomic():
        rows.update(sale_opens=hours[0], sale_closes=hours[1])
    # Beside each other, over midnight; of a node that left; and on another device.
    rows.update(sale_opens=time(9, 2), sale_closes=time(8))
    rows.update(status=NodeStatus.LEFT, sale_opens=hours[0], sale_closes=hours[1])
    rows.update(
        status=NodeStatus.ONLINE,
        shared_device=SharedDevice.objects.create(provider=second.provider, created_at=NOW),
    )


@pytest.mark.django_db(transaction=True)
def test_of_two_changes_at_once_that_overlap_one_is_made():
    provider = market.provider()
    first, reply = join(provider, market.zone(), hours=DAY, name="day")
    zone = market.zone()
    later = SaleHours(time(8), time(12))
    # By another node that joins on the device, and by two whose hours change.
    results = at_once(
        [
            lambda: set_hours(first, later),
            lambda: join(provider, zone, hours=NIGHT, name="night", neighbour=reply.api_token),
        ]
    )
    assert sorted(isinstance(result, UserError) for result in results) == [False, True]
    # Whichever it was: the first node has its hours again, and a new one joins beside it.
    Node.objects.exclude(pk=first.pk).update(status=NodeStatus.LEFT)
    set_hours(first, SaleHours(*DAY))
    second, _ = join(provider, zone, hours=NIGHT, name="evening", neighbour=reply.api_token)
    evening = SaleHours(time(12), time(7, 50))
    set_hours(second, evening)
    earlier = SaleHours(time(10), time(7, 50))
    results = at_once(
        [
            lambda: set_sale_hours(
                node=first, change=asdict(SaleHours(time(8), time(11))), now=NOW
            ),
            lambda: set_hours(second, earlier),
        ]
    )
    assert sorted(isinstance(result, UserError) for result in results) == [False, True]


def test_turns_follow_the_hours_and_a_leased_slot_is_ended_first():
    first, second = pair()
    until = clock_at(9, 3)
    assert turn(first, NOW, is_up=True) == DeviceTurn(serves=True)
    assert turn(second, NOW) == DeviceTurn(serves=False, rests_until=until.timestamp())
    job = build.job(first.zone, (11, first))
    beat(first, clock_at(9, 1, 55))
    dispatch_slots(now=clock_at(9, 1, 55))
    assert build.lease(job).last_slot == build.SLOT + 11
    over = clock_at(9, 2, 5)
    assert turn(first, over, is_up=True).serves
    assert not turn(second, over).serves
    # Its lease has run out: the other one loads, and is there before its hours begin.
    after = clock_at(9, 2, 30)
    tomorrow = clock_at(8, 0) + timedelta(days=1)
    assert turn(first, after, is_up=True) == DeviceTurn(False, tomorrow.timestamp())
    assert turn(second, after).serves


def test_a_node_that_rests_is_on_sale_for_its_hours_and_nothing_else_is_asked_of_it():
    first, second = pair()
    turn(second, NOW)
    second.refresh_from_db()
    assert second.status == NodeStatus.RESTING
    assert find_present_status(second, NOW) == NodeStatus.RESTING
    assert find_rest(second, now=NOW) == Rest(clock_at(9, 3), first.zone.name)
    assert find_rest(first, now=NOW) is None
    owner = builders.organisation(usd="100")
    early = market.bid(owner, second.zone, slots=15)
    late = market.bid(owner, second.zone, slots=40)
    decide_pending_bids(zone=second.zone, now=NOW)
    early.refresh_from_db(), late.refresh_from_db()
    assert (early.status, late.status) == (BidStatus.REFUSED, BidStatus.ADMITTED)
    # Its hours begin 180 s after slot 100 did.
    assert min(slot for slot, _ in Job.objects.get(bid_id=late.pk).cells) == 118
    # An hour of rest, with a machine that is heard: not silent, no slice lost, the plan stands.
    cells = Job.objects.get(bid_id=late.pk).cells
    for seconds in range(0, 180, 20):
        now = NOW + timedelta(seconds=seconds)
        turn(second, now)
        beat(first, now)
        assert sweep_offline_nodes(now=now) == ()
        refresh_zone(zone=second.zone, now=now)
        dispatch_slots(now=now)
    job = Job.objects.get(bid_id=late.pk)
    assert (job.cells, job.needs_replan, job.blamed_nodes) == (cells, False, [])
    past = measure_reliability([second.pk], now=now)[second.pk]
    assert (past.slices, past.lost, past.score) == (0, 0, 0.9)


def test_a_stop_at_the_end_of_its_hours_is_rest_and_keeps_what_is_sold_of_the_next_day():
    first, second = pair()
    over = clock_at(9, 2, 31)
    assert beat(first, over, draining=True).status == NodeStatus.RESTING
    turn(first, over)
    # In its hours, a stop is what it was.
    serving = beat(second, clock_at(9, 4))
    assert serving.status == NodeStatus.ONLINE
    assert beat(second, clock_at(9, 4), draining=True).status == NodeStatus.STOPPING
    drain_node(node=first, now=over)
    turn(first, over)
    first.refresh_from_db()
    assert first.status == NodeStatus.DRAINING
    undrain_node(node=first, now=over)
    turn(first, over)
    first.refresh_from_db()
    assert first.status == NodeStatus.RESTING


def test_a_node_that_loads_is_heard_until_its_hours_begin_and_is_lost_if_it_is_not_up_then():
    first, second = pair()
    turn(second, NOW)
    for second_of in (30, 45, 59):
        assert turn(second, clock_at(9, 2, second_of), is_up=True).serves
    assert sweep_offline_nodes(now=clock_at(9, 3)) == (first.pk,)
    job = build.job(second.zone, (18, second))
    turn(second, clock_at(9, 3, 5), is_up=True)
    # Nothing is leased to it while it loads: its work begins a slot later, elsewhere or there.
    dispatch_slots(now=clock_at(9, 3, 5))
    job.refresh_from_db()
    assert (job.slices.count(), job.needs_replan, job.blamed_nodes) == (0, True, [second.pk])
    assert sweep_offline_nodes(now=clock_at(9, 3, 29)) == (second.pk,)
    assert beat(second, clock_at(9, 3, 40), load_s=70.0).status == NodeStatus.ONLINE
    second.refresh_from_db()
    assert second.load_s == 70.0
    # Hours that are set from then on leave time for that.
    hours = SaleHours(time(9, 3), time(7, 58))
    assert refused(lambda: set_hours(second, hours)) == "hours_overlap"


def test_a_node_that_is_late_for_its_hours_is_not_planned_on_until_it_is_there():
    _first, second = pair()
    turn(second, NOW)
    bid = market.bid(builders.organisation(usd="100"), second.zone, slots=40)
    decide_pending_bids(zone=second.zone, now=NOW)
    job = Job.objects.get(bid_id=bid.pk)
    planned = [(118, second.pk)]
    assert [tuple(cell) for cell in job.cells] == planned
    for second_of in range(10, 60, 10):
        turn(second, clock_at(9, 2, second_of), is_up=True)
        refresh_zone(zone=second.zone, now=clock_at(9, 2, second_of))
    job.refresh_from_db()
    assert ([tuple(cell) for cell in job.cells], job.needs_replan) == (planned, False)
    # It still loads: however often it is looked at, the job waits, and is not planned on it.
    for second_of in (1, 2, 3, 11, 12):
        now = clock_at(9, 3, second_of)
        turn(second, now, is_up=True)
        dispatch_slots(now=now)
        refresh_zone(zone=second.zone, now=now)
    job.refresh_from_db()
    assert job.needs_replan
    assert job.events.filter(kind="replanned").count() == 0
    assert job.events.filter(kind="replan_wanted").count() == 1
    now = clock_at(9, 3, 21)
    beat(second, now)
    refresh_zone(zone=second.zone, now=now)
    job.refresh_from_db()
    # What was lost stays in its history.
    assert [tuple(cell) for cell in job.cells] == [*planned, (121, second.pk)]
    assert not job.needs_replan
    dispatch_slots(now=clock_at(9, 3, 31))
    assert build.lease(job).node == second


def test_a_node_whose_hours_are_to_begin_at_once_is_sold_when_it_can_be_there():
    first, second = pair()
    turn(second, NOW)
    set_hours(first, SaleHours(time(8), time(8, 50)))
    second = set_sale_hours(
        node=second, change=asdict(SaleHours(time(8, 52), time(7, 59))), now=NOW
    )
    # Half a minute of grace, and 1.5 times what loading takes.
    assert second.available_from_at == clock_at(9, 1)
    for second_of in (5, 30, 55):
        now = clock_at(9, 0, second_of)
        assert turn(second, now, is_up=True).serves
        assert sweep_offline_nodes(now=now) in ((), (first.pk,))
    second.refresh_from_db()
    assert second.status == NodeStatus.RESTING
    bid = market.bid(builders.organisation(usd="100"), second.zone, slots=20)
    decide_pending_bids(zone=second.zone, now=NOW)
    assert min(slot for slot, _ in Job.objects.get(bid_id=bid.pk).cells) == build.SLOT + 6
    # Changed once more while it loads, it is not later for that; one that runs is sold at once.
    hours = SaleHours(time(8, 53), time(7, 59))
    later = set_sale_hours(node=second, change=asdict(hours), now=clock_at(9, 0, 55))
    assert later.available_from_at == clock_at(9, 1)
    beat(second, clock_at(9, 0, 58))
    up = set_sale_hours(node=second, change=asdict(hours), now=clock_at(9, 0, 59))
    assert up.available_from_at == clock_at(8, 53)


def test_a_machine_that_dies_takes_its_resting_node_off_sale():
    first, second = pair()
    turn(second, NOW)
    assert sorted(sweep_offline_nodes(now=NOW + timedelta(seconds=31))) == sorted(
        [first.pk, second.pk]
    )
    # It is back, and rests again.
    turn(second, NOW + timedelta(seconds=40))
    second.refresh_from_db()
    assert second.status == NodeStatus.RESTING


def test_a_node_that_left_while_it_rested_is_told_so_when_its_machine_asks():
    first, second = pair()
    retire_node(node=second, now=NOW)
    second.refresh_from_db()
    assert refused(lambda: turn(second, NOW)) == "node_left"
    # What its supervisor takes for an end; anything else is asked again.
    with pytest.raises(NotAllowed):
        turn(second, NOW)
    assert turn(first, NOW).serves


def test_one_nodes_credentials_are_revoked_alone_and_the_others_turn_comes():
    first, second = pair()
    first = revoke_node_token(node=first, now=NOW)
    # It cannot run, so the other one's base may load early; it is sold in its own hours alone.
    assert turn(second, NOW).serves
    second.refresh_from_db()
    assert second.available_from_at == clock_at(9, 3)
    assert refused(lambda: set_hours(second, SaleHours(time(8), time(7)))) == "hours_overlap"
