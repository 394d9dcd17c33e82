"""Nodes that take turns on a device: what is sold of one is never in the time of another."""

from __future__ import annotations

import random
from dataclasses import asdict, replace
from datetime import UTC, datetime, time, timedelta
from itertools import combinations, pairwise

import pytest
from hypothesis import assume, given, settings
from hypothesis import strategies as st

from marketplace.auction.lane.decide import decide_pending_bids
from marketplace.auction.lane.sweep import refresh_zone
from marketplace.auction.models import Reservation
from marketplace.auction.node_hours import change_sale_hours, list_node
from marketplace.common.errors import UserError
from marketplace.fleet.device_timeslices import find_turn
from marketplace.fleet.models import Node, NodeStatus, Provider, Zone
from marketplace.fleet.sale_hours import SaleHours, find_node_window, move_sale_windows
from marketplace.fleet.selectors import slot_at, slot_ends_at, slot_starts_at
from marketplace.fleet.services import (
    ListingTerms,
    create_join_token,
    drain_node,
    record_heartbeat,
    retire_node,
    undrain_node,
)
from marketplace.fleet.shared_devices import check_pair, find_changeover_s
from tests import builders
from tests import job_builders as build
from tests import market_builders as market
from tests.builders import NOW
from workers.protocol.messages import Heartbeat, JoinRequest

DAY = timedelta(days=1)
MIDNIGHT = datetime(2026, 3, 2, tzinfo=UTC)
TIMES = st.integers(0, 24 * 12 - 1).map(lambda five: time(five // 12, five % 12 * 5))


def is_in_hours(node: Node, moment: datetime) -> bool:
    """By the clock alone: no stretch is built."""
    opens, closes, now = node.sale_opens, node.sale_closes, moment.time()
    assert opens is not None
    assert closes is not None
    is_open = opens <= now < closes if opens < closes else now >= opens or now < closes
    begins, ends = node.maintenance_from_at, node.maintenance_until_at
    return is_open and not (begins is not None and ends is not None and begins <= moment < ends)


def build_node(number: int, *, opens: time, closes: time, load_s: float) -> Node:
    """A node that is not stored."""
    return Node(
        pk=f"node_{number}",
        name=f"node {number}",
        zone=Zone(name=f"zone-{number}", slot_s=60.0, lease_grace_s=30.0),
        sale_opens=opens,
        sale_closes=closes,
        load_s=load_s,
        api_token_set_at=NOW,
        status=NodeStatus.ONLINE,
    )


LOADS = st.sampled_from([0.0, 20.0, 400.0, 2400.0])


@st.composite
def devices(draw: st.DrawFn) -> list[Node]:
    """Two or three nodes whose hours are accepted, some with a time of maintenance."""
    count = draw(st.integers(2, 3))
    ends = sorted(draw(st.lists(TIMES, min_size=2 * count, max_size=2 * count, unique=True)))
    if draw(st.booleans()):
        # The last one's hours go over midnight.
        ends.append(ends.pop(0))
    nodes = [
        build_node(number, opens=opens, closes=closes, load_s=draw(LOADS))
        for number, (opens, closes) in enumerate(zip(ends[::2], ends[1::2], strict=True))
    ]
    for node in nodes:
        if draw(st.booleans()):
            begins = MIDNIGHT + timedelta(minutes=draw(st.integers(0, 3000)))
            node.maintenance_from_at = begins
            node.maintenance_until_at = begins + timedelta(minutes=draw(st.integers(1, 2000)))
    assume(all(is_accepted(one, other) for one, other in combinations(nodes, 2)))
    return nodes


def is_accepted(one: Node, other: Node) -> bool:
    try:
        check_pair(one, other)
    except UserError:
        return False
    return True


def find_gap_s(before: Node, after: Node) -> float:
    """From the end of one node's hours to the other's next beginning, step by step; 0 if both are
    on at once.
    """
    steps = [MIDNIGHT + timedelta(minutes=5 * step) for step in range(2 * 288)]
    if any(is_in_hours(before, at) and is_in_hours(after, at) for at in steps[:288]):
        return 0.0
    assert before.sale_closes is not None
    ends_at = datetime.combine(MIDNIGHT, before.sale_closes, UTC)
    begins = next(at for at in steps if at >= ends_at and is_in_hours(after, at))
    return (begins - ends_at).total_seconds()


@settings(max_examples=50)
@given(hours=st.lists(TIMES, min_size=4, max_size=4, unique=True), loads=st.tuples(LOADS, LOADS))
def test_hours_are_refused_if_and_only_if_a_changeover_does_not_fit(
    hours: list[time], loads: tuple[float, float]
) -> None:
    one, other = (
        build_node(number, opens=opens, closes=closes, load_s=load_s)
        for number, (opens, closes, load_s) in enumerate(
            zip(hours[::2], hours[1::2], loads, strict=True)
        )
    )
    fits = all(
        find_gap_s(before, after) >= max(60.0, 30.0 + 1.5 * after.load_s)
        for before, after in ((one, other), (other, one))
    )
    assert is_accepted(one, other) == fits
    assert is_accepted(other, one) == fits


@settings(max_examples=50)
@given(nodes=devices(), minutes=st.lists(st.integers(0, 3 * 24 * 60), min_size=8, max_size=8))
def test_of_accepted_hours_one_is_on_at_a_time_and_the_next_has_time_to_load(
    nodes: list[Node], minutes: list[int]
) -> None:
    for now in [MIDNIGHT + timedelta(minutes=minute) for minute in minutes]:
        serving = [node for node in nodes if is_in_hours(node, now)]
        windows = {node.pk: find_node_window(node, now=now) for node in nodes}
        for node in nodes:
            begin, end = windows[node.pk]
            assert begin is not None
            assert end is not None
            # The window of a node is now in its hours, and not before nor after them.
            assert (begin <= now < end) == is_in_hours(node, now)
            assert is_in_hours(node, begin)
            assert is_in_hours(node, end - timedelta(seconds=1))
            assert not is_in_hours(node, end)
        assert len(serving) <= 1
        turn = find_turn(nodes, busy=(), now=now)
        assert turn is not None
        if serving:
            assert turn is serving[0]
            _, over = windows[turn.pk]
            following = [node for node in nodes if node is not turn]
            # Even with a slice that runs to the end of its grace, there is time to load.
            for then in following:
                begin, _ = find_node_window(then, now=over)
                assert begin is not None
                assert begin - over >= timedelta(seconds=find_changeover_s(turn, then))
                load = timedelta(seconds=1.5 * then.load_s)
                assert over + timedelta(seconds=turn.zone.lease_grace_s) + load <= begin
        else:
            assert windows[turn.pk][0] == min(begin for begin, _ in windows.values() if begin)
        held = next(node for node in nodes if node is not turn)
        assert find_turn(nodes, busy=[held.pk], now=now) is held


class DeviceCourse:
    """A device in a market where bids are decided while hours change at random."""

    def __init__(self, seed: int) -> None:
        self.random = random.Random(seed)
        # Every second course runs over midnight.
        self.now = NOW if seed % 2 else NOW.replace(hour=23, minute=45)
        self.provider: Provider = market.provider()
        self.zones = [market.zone(horizon_slots=180) for _ in range(3)]
        self.owner = builders.organisation(usd="100000")
        self.nodes: list[str] = []
        self.token = ""
        self.sold = 0
        self.refused: set[str] = set()

    def run(self, steps: int) -> None:
        while len(self.nodes) < 2:
            self.join()
        for _ in range(steps):
            act = self.random.choice(
                [*[self.bid] * 4, *[self.change] * 3, self.join, self.drain, self.leave, self.wait]
            )
            act()
            self.check()

    def draw_hours(self) -> tuple[time, ...]:
        begin = self.now + timedelta(minutes=self.random.randint(-20, 25))
        end = begin + timedelta(minutes=self.random.randint(2, 25))
        return tuple(moment.time().replace(second=0, microsecond=0) for moment in (begin, end))

    def try_to(self, call) -> object:
        try:
            return call()
        except UserError as refusal:
            self.refused.add(refusal.code)
            return None

    def join(self) -> None:
        zone = self.random.choice(self.zones)
        opens, closes = self.draw_hours()
        _, secret = create_join_token(
            zone=zone,
            provider=self.provider,
            created_by=None,
            terms=ListingTerms(ask_micros=400_000, opens=opens, closes=closes),
            now=self.now,
        )
        facts = replace(build.facts(), load_s=20.0)
        name = f"node-{self.random.random()}"
        request = JoinRequest(secret, name, facts, neighbour_token=self.token)
        reply = self.try_to(lambda: list_node(request=request, now=self.now))
        if reply is not None:
            self.token = reply.api_token
            self.nodes.append(reply.node_id)
            self.beat()

    def beat(self) -> None:
        for node in Node.objects.filter(pk__in=self.nodes).exclude(status=NodeStatus.LEFT):
            record_heartbeat(node=node, heartbeat=Heartbeat(node.pk, 0.0), now=self.now)

    def pick(self) -> Node | None:
        here = Node.objects.filter(pk__in=self.nodes).exclude(status=NodeStatus.LEFT)
        return self.random.choice(list(here.order_by("pk")) or [None])

    def bid(self) -> None:
        here = Zone.objects.filter(nodes__in=self.nodes).distinct()
        zone = self.random.choice(list(here.order_by("pk")))
        slots = self.random.randint(2, 170)
        market.bid(self.owner, zone, slots=slots, now=self.now, epochs=self.random.randint(1, 4))
        decide_pending_bids(zone=zone, now=self.now)

    def change(self) -> None:
        node = self.pick()
        if node is None:
            return
        kind = self.random.random()
        hours = SaleHours(*self.draw_hours())
        if kind < 0.3:
            begins = self.now + timedelta(minutes=self.random.randint(-5, 20))
            ends = begins + timedelta(minutes=self.random.randint(6, 30))
            hours = SaleHours(node.sale_opens, node.sale_closes, begins, ends)
        elif kind < 0.8:
            # A little less, or more.
            begins, ends = (
                (datetime.combine(MIDNIGHT, end) + timedelta(minutes=self.random.randint(-3, 8)))
                for end in (node.sale_opens, node.sale_closes)
            )
            hours = SaleHours(begins.time(), ends.time())
        self.try_to(lambda: change_sale_hours(node=node, change=asdict(hours), now=self.now))

    def drain(self) -> None:
        node = self.pick()
        if node is not None and node.status == NodeStatus.DRAINING:
            undrain_node(node=node, now=self.now)
        elif node is not None:
            drain_node(node=node, now=self.now)

    def leave(self) -> None:
        node = self.pick()
        if node is not None and len(self.nodes) > 2 and self.random.random() < 0.3:
            retire_node(node=node, now=self.now)

    def wait(self) -> None:
        self.now += timedelta(seconds=self.random.randint(1, 200))
        self.beat()
        move_sale_windows(now=self.now)
        for zone in self.zones:
            refresh_zone(zone=zone, now=self.now)

    def check(self) -> None:
        """Nothing sold is outside its node's hours, or within a changeover of another's."""
        sold: list[tuple[datetime, datetime, Node]] = []
        here = Reservation.objects.filter(node__in=self.nodes, released_at=None)
        here = here.exclude(node__status=NodeStatus.LEFT).select_related("node__zone")
        for held in here:
            zone = held.node.zone
            if held.slot >= slot_at(zone, self.now):
                starts, ends = slot_starts_at(zone, held.slot), slot_ends_at(zone, held.slot)
                sold.append((starts, ends, held.node))
                assert is_in_hours(held.node, starts)
                assert is_in_hours(held.node, ends - timedelta(microseconds=1))
        self.sold += len(sold)
        sold.sort(key=lambda row: row[:2])
        for (_, ends, node), (begins, _, then) in pairwise(sold):
            if node.pk != then.pk:
                assert begins - ends >= timedelta(seconds=find_changeover_s(node, then))


@pytest.mark.django_db
@pytest.mark.parametrize("seed", [1, 2])
def test_what_is_sold_stays_apart_while_hours_change(seed: int) -> None:
    course = DeviceCourse(seed)
    course.run(30)
    assert course.sold > 0
    expected = {"hours_overlap", "slots_sold", "invalid_hours", "unknown_neighbour"}
    assert "hours_overlap" in course.refused <= expected


@pytest.mark.nightly
@pytest.mark.django_db
@pytest.mark.parametrize("seed", range(3, 60))
def test_what_is_sold_stays_apart_in_longer_courses(seed: int) -> None:
    DeviceCourse(seed).run(80)
