"""Each node is sold as what it turns out to do, and moves nobody else."""

from __future__ import annotations

import math
from datetime import timedelta
from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from marketplace.auction.bidding.job_request import JobRequest
from marketplace.auction.bidding.quotes import make_quote
from marketplace.fleet.models import Node, NodeStatus
from marketplace.fleet.selectors import build_node_spec, load_rates
from marketplace.fleet.services import (
    ListingTerms,
    create_join_token,
    join_node,
    note_node_fault,
    record_node_speed,
    reset_node_speed,
    retire_node,
)
from marketplace.fleet.speeds import (
    MEASUREMENTS_KEPT,
    RAISE_MAX,
    NodeSpeed,
    bound_measurement,
    compute_type_rate,
    estimate_speed,
)
from tests import builders
from tests import job_builders as build
from tests import market_builders as market
from tests.builders import NOW
from workers.protocol.messages import JoinRequest

speeds = st.floats(1e-6, 1e9)


def known(capacity: float, *, measurements: int = 0, joined: int = 0) -> NodeSpeed:
    return NodeSpeed(capacity, measurements, NOW + timedelta(seconds=joined))


@given(speeds, st.lists(speeds, max_size=20))
def test_a_speed_lies_between_measurements_and_only_the_latest_count(self_test, measured):
    found = estimate_speed(self_test=self_test, measured=measured)
    latest = [self_test, *measured[-MEASUREMENTS_KEPT:]]
    assert found in latest
    assert sum(value < found for value in latest) <= len(latest) / 2
    assert sum(value > found for value in latest) <= len(latest) / 2


def test_one_measurement_below_the_self_test_is_believed_and_one_above_it_is_not():
    assert estimate_speed(self_test=40.0, measured=[10.0]) == 10.0
    assert estimate_speed(self_test=40.0, measured=[90.0]) == 40.0
    assert estimate_speed(self_test=40.0, measured=[80.0, 80.0]) == 80.0


@given(speeds, st.floats(allow_nan=True, allow_infinity=True))
def test_a_measurement_raises_a_speed_by_a_bounded_factor(current, measured):
    found = bound_measurement(measured, current=current)
    if found is None:
        assert not 0 < measured < math.inf
    else:
        assert found == min(measured, RAISE_MAX * current)


def test_a_types_rate_is_its_middle_nodes_share_for_one_job():
    assert compute_type_rate([known(400.0)], jobs_per_node=4) == 100.0
    three = [known(100.0), known(400.0), known(9_000.0)]
    assert compute_type_rate(three, jobs_per_node=4) == 100.0
    # Whole nodes are sold: no more than the smallest that is near the others.
    assert compute_type_rate([known(700.0), known(600.0)], jobs_per_node=1) == 600.0


@given(
    st.integers(1, MEASUREMENTS_KEPT),
    st.one_of(st.floats(1e-6, 390.0), st.floats(410.0, 1e12)),
    st.integers(1, 3),
)
def test_newcomers_that_were_never_measured_cannot_move_a_measured_node(times, invented, number):
    proven = known(400.0, measurements=times)
    if times < number:
        number = times
    newcomers = [known(invented, joined=1 + n) for n in range(number)]
    rate = compute_type_rate([proven, *newcomers], jobs_per_node=4)
    assert rate == 100.0


def test_of_two_nodes_that_nobody_measured_the_first_speaks():
    for invented in (1e-6, 1e12):
        nodes = [known(400.0), known(invented, joined=1)]
        assert compute_type_rate(nodes, jobs_per_node=4) == 100.0


@pytest.mark.django_db
class TestZone:
    def test_types_without_a_node_on_sale_count_for_nothing(self):
        zone = market.zone()
        assert load_rates(zone) == {}
        market.node(zone)
        market.gpu_type("A40")
        gone = market.node(zone, gpu_type_id="A40", status=NodeStatus.DRAINING)
        assert load_rates(zone) == {"cpu": 100.0}
        Node.objects.filter(zone=zone).exclude(pk=gone.pk).update(status=NodeStatus.OFFLINE)
        # None is on sale: what may come back is all that can be said.
        assert load_rates(zone) == {"A40": 100.0, "cpu": 100.0}
        Node.objects.update(status=NodeStatus.LEFT)
        assert load_rates(zone) == {}

    @pytest.mark.parametrize("gpu_type", ["cpu", "H900"])
    @pytest.mark.parametrize("samples_per_s", [1e-6, 1e9])
    def test_an_invented_self_test_moves_nobody_else(self, gpu_type, samples_per_s):
        zone = market.zone()
        market.node(zone)
        liar = invented(zone, gpu_type=gpu_type, samples_per_s=samples_per_s)
        assert load_rates(zone)["cpu"] == 100.0
        retire_node(node=liar, now=NOW)
        assert load_rates(zone) == {"cpu": 100.0}

    @pytest.mark.parametrize("samples_per_s", [1e-6, 15.0, 1e9])
    def test_an_invented_self_test_and_failed_jobs_close_no_zone_and_move_no_price(
        self, samples_per_s
    ):
        zone = market.zone(jobs_per_node=1)
        honest = market.node(zone)
        before = quote_price(zone)
        liar = invented(zone, gpu_type="cpu", samples_per_s=samples_per_s, jobs=1)
        assert load_rates(zone) == {"cpu": 400.0}
        assert build_node_spec(zone, honest) == build_node_spec(
            zone, Node.objects.get(pk=honest.pk)
        )
        assert quote_price(zone) is not None
        for _ in range(5):
            note_node_fault(node=liar, now=NOW)
        liar.refresh_from_db()
        honest.refresh_from_db()
        zone.refresh_from_db()
        assert (liar.status, honest.status) == (NodeStatus.SUSPENDED, NodeStatus.ONLINE)
        assert zone.is_open
        assert quote_price(zone) == before == 4 * market.CELL_MICROS

    def test_an_invented_speed_is_gone_once_jobs_were_seen(self):
        zone = market.zone()
        liar = invented(zone, gpu_type="H900", samples_per_s=1e9)
        assert load_rates(zone) == {"H900": pytest.approx(2.5e9)}
        record_node_speed(node=liar, units_per_s=20.0, jobs=4)
        assert load_rates(zone) == {"H900": 50.0}

    def test_a_node_that_is_slower_for_a_while_comes_back_by_bounded_steps(self):
        zone = market.zone()
        node = market.node(zone)
        for _ in range(MEASUREMENTS_KEPT):
            node = record_node_speed(node=node, units_per_s=5.0, jobs=4)
        assert node.compute_capacity == 50.0
        seen = []
        for _ in range(3 * MEASUREMENTS_KEPT):
            node = record_node_speed(node=node, units_per_s=40.0, jobs=4)
            seen.append(node.compute_capacity)
        assert seen[-1] == 400.0
        assert all(after <= RAISE_MAX * before for before, after in pairwise([50.0, *seen]))

    def test_small_changes_of_speed_are_not_told_to_the_engine(self):
        node = market.node(market.zone())
        assert record_node_speed(node=node, units_per_s=39.0, jobs=4).compute_capacity == 400.0
        assert record_node_speed(node=node, units_per_s=30.0, jobs=4).compute_capacity == 400.0
        assert record_node_speed(node=node, units_per_s=30.0, jobs=4).compute_capacity == 300.0

    def test_few_jobs_are_measured_as_what_a_full_node_would_do(self):
        zone = market.zone()
        node, _ = build.joined(zone)  # one job did 20 units a second, four did 40
        assert record_node_speed(node=node, units_per_s=20.0, jobs=1).measured_speeds == [40.0]
        assert record_node_speed(node=node, units_per_s=35.0, jobs=4).measured_speeds[-1] == 35.0

    def test_what_cannot_be_a_speed_is_not_kept(self):
        node = market.node(market.zone())
        for wrong in (0.0, -1.0, math.nan, math.inf):
            assert record_node_speed(node=node, units_per_s=wrong, jobs=1).measured_speeds == []

    def test_a_reset_gives_the_self_test_back(self):
        node = market.node(market.zone())
        slow = record_node_speed(node=node, units_per_s=1.0, jobs=4)
        assert slow.compute_capacity == 10.0
        assert reset_node_speed(node=node).compute_capacity == 400.0
        assert Node.objects.get().measured_speeds == []


def quote_price(zone) -> int | None:
    """What a job of 90 units costs that has to be done in the next slot or the one after."""
    owner = builders.organisation(usd="100")
    job = JobRequest(owner, zone, market.dataset(owner, zone), **market.job_terms())
    return make_quote(job, deadline_at=market.slot_at(zone, 103), now=NOW).price_micros


def invented(zone, *, gpu_type: str, samples_per_s: float, jobs: int = 4) -> Node:
    """A node with a self-test of its own making, which an operator lets on sale."""
    facts = build.facts(
        gpu_type=gpu_type,
        hostname="liar",
        speeds=(build.measurement(jobs=jobs, samples_per_s=samples_per_s),),
    )
    _, secret = create_join_token(
        zone=zone, provider=market.provider(), created_by=None, terms=ListingTerms(1), now=NOW
    )
    later = NOW + timedelta(seconds=1)
    reply = join_node(request=JoinRequest(token=secret, name="liar", facts=facts), now=later)
    Node.objects.filter(pk=reply.node_id).update(status=NodeStatus.ONLINE, suspended_at=None)
    return Node.objects.get(pk=reply.node_id)
