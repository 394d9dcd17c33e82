"""Self-tests beyond what their machines can do, and costs of work that are measured again."""

from __future__ import annotations

import pytest

from marketplace.auction.zone_costs import remeasure_zone
from marketplace.common.errors import Conflict
from marketplace.fleet.models import Node, NodeStatus, Zone
from marketplace.fleet.selectors import get_work_costs
from marketplace.fleet.services import (
    ListingTerms,
    create_join_token,
    join_node,
    lift_node_suspension,
    record_heartbeat,
)
from tests import builders
from tests import job_builders as build
from tests import market_builders as market
from tests.builders import NOW
from workers.protocol.messages import Heartbeat, JoinRequest
from workers.protocol.model_shape import BasePart, load_shape

pytestmark = pytest.mark.django_db
GPU = {"device": "cuda", "gpu_type": "H100-80GB", "gpu_count": 1, "memory_gb": 80.0}


@pytest.fixture
def zone():
    return market.zone()


def join(zone, *, name="gpu-1", samples_per_s=20.0, parts=(), **facts):
    _, secret = create_join_token(
        zone=zone, provider=market.provider(), created_by=None, terms=ListingTerms(1), now=NOW
    )
    speeds = (build.measurement(jobs=4, samples_per_s=samples_per_s, parts=parts),)
    told = build.facts(hostname=name, speeds=speeds, **facts)
    reply = join_node(request=JoinRequest(token=secret, name=name, facts=told), now=NOW)
    return Node.objects.get(pk=reply.node_id)


@pytest.mark.parametrize(
    ("facts", "reason"),
    [
        ({**GPU, "memory_gb": 100_000.0}, "Its self-test found 100,000 GB"),
        ({"memory_gb": 1000.0, "cores": 4}, "such a machine has 256 GB at most"),
        ({**GPU, "samples_per_s": 1e8}, "and its device does 990 at most"),
        # Devices that hold nothing of the base do nothing, however many a machine says it has.
        ({**GPU, "samples_per_s": 1e8, "gpu_count": 10**9}, "and its device does 990 at most"),
        ({**GPU, "memory_gb": 1e6, "gpu_count": 10**9}, "such a machine has 300 GB at most"),
        ({"memory_gb": 1e6, "cores": 10**9}, "such a machine has 65,536 GB at most"),
        ({"samples_per_s": 1e8, "cores": 4}, "and its device does 24 at most"),
    ],
)
def test_a_self_test_beyond_its_device_waits_for_an_operator(zone, facts, reason):
    Zone.objects.update(work_costs={})
    zone.refresh_from_db()
    node = join(zone, **facts)
    assert reason in node.suspended_reason
    assert (node.status, node.suspended_by) == (NodeStatus.SUSPENDED, None)
    record_heartbeat(node=node, heartbeat=Heartbeat(node.pk, 0.0), now=NOW)
    node.refresh_from_db()
    assert node.status == NodeStatus.SUSPENDED
    # It settled nothing for the zone's other nodes.
    zone.refresh_from_db()
    assert (zone.work_costs, zone.base_model_sha256) == ({}, "")
    lift_node_suspension(node=node, lifted_by=builders.operator(), now=NOW)
    node.refresh_from_db()
    assert (node.status, node.suspended_reason) == (NodeStatus.ONLINE, "")


def test_a_gpu_far_faster_than_the_zones_others_of_its_kind_waits(zone):
    for number in range(3):
        join(zone, name=f"gpu-{number}", **GPU)
    assert join(zone, name="twice", samples_per_s=40.0, **GPU).suspended_at is None
    liar = join(zone, name="liar", samples_per_s=61.0, **GPU)
    assert liar.suspended_reason == (
        "Its self-test is 3.0 times as fast as the zone's other H100-80GB."
    )
    # Two devices are as fast as two; a kind of its own is compared with nobody.
    two = {**GPU, "gpu_count": 2, "memory_gb": 160.0}
    halves = [BasePart(layers, 0.5) for layers in (1, load_shape(zone.model_shape).layers - 1)]
    assert (
        join(zone, name="two", samples_per_s=80.0, parts=tuple(halves), **two).suspended_at is None
    )
    crowd = {**GPU, "gpu_count": 8}
    assert join(zone, name="one-of-eight", samples_per_s=160.0, **crowd).suspended_at
    other = {**GPU, "gpu_type": "A100-80GB"}
    assert join(zone, name="other", samples_per_s=200.0, **other).suspended_at is None


def test_costs_of_work_are_measured_again_until_a_bid_was_placed(zone):
    odd = tuple(
        build.work_measurement(
            tokens=1000 * n, trained_tokens=990 * n, token_pairs=10_000 * n, seconds=9.0 * n
        )
        for n in range(1, 8)
    )
    first = join(zone, name="first", work=odd)
    zone.refresh_from_db()
    settled = get_work_costs(zone)
    sound = tuple(
        build.work_measurement(
            tokens=1000 * n, trained_tokens=500, token_pairs=90_000 * n, seconds=0.5 * n + 0.1
        )
        for n in range(1, 8)
    )
    second = join(zone, name="second", work=sound)
    costs = remeasure_zone(zone_name=zone.name, node_id=second.pk)
    zone.refresh_from_db()
    assert get_work_costs(zone) == costs != settled
    for node in (first, second):
        before = node.compute_capacity
        node.refresh_from_db()
        assert node.compute_capacity == node.self_test_speed * zone.slot_s
        assert node.compute_capacity != before
    with pytest.raises(Conflict) as refused:
        remeasure_zone(zone_name=zone.name, node_id=join(zone, name="idle").pk)
    assert refused.value.code == "not_measured"
    market.bid(builders.organisation(usd="10"), zone)
    with pytest.raises(Conflict) as refused:
        remeasure_zone(zone_name=zone.name, node_id=first.pk)
    assert refused.value.code == "zone_has_bids"
    zone.refresh_from_db()
    assert get_work_costs(zone) == costs
