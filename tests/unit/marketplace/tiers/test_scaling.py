"""Pressure over admitted jobs and the serverful machines it asks for."""

from __future__ import annotations

import math
from datetime import datetime, timedelta

import pytest
from prometheus_client import REGISTRY

from marketplace.fleet.models import Node, NodeStatus, Tier, Zone
from marketplace.jobs.models import Job
from marketplace.jobs.services import job_replan_request
from marketplace.tiers import locks, scaling
from marketplace.tiers.machines import machines_reconcile
from marketplace.tiers.models import Machine, MachineStatus, ZoneTiers
from marketplace.tiers.rented import Rented, rented_now
from marketplace.tiers.services import tiers_tick
from tests import job_builders, market_builders
from tests.builders import NOW
from tests.job_builders import at
from tests.unit.marketplace.tiers.backends import CHEAP, MemoryBackend, tiers

pytestmark = pytest.mark.django_db


@pytest.fixture
def house(zone: Zone, backend: MemoryBackend) -> ZoneTiers:
    return tiers(zone, serverless_cap=0)


def idle(house: ZoneTiers, now: datetime) -> list[Machine]:
    return scaling.idle_machines(rented_now(tiers=house, now=now), now=now)


def gauge(house: ZoneTiers, *, nodes: int) -> scaling.Gauge:
    return scaling.gauge(rented=rented_now(tiers=house, now=NOW), nodes=nodes, now=NOW)


def test_pressure_is_work_due_over_places_on_sale(house: ZoneTiers, zone: Zone) -> None:
    node = market_builders.node(zone)
    # 60 s of work due in 60 s; the node runs four jobs at once.
    job_builders.job(zone, *((slot, node) for slot in range(6)), deadline_at=at(60))
    measured = gauge(house, nodes=1)
    assert measured.pressure == 60.0 / (4 * 60.0)
    assert (measured.demand_s, measured.capacity, measured.waiting) == (60.0, 4.0, 0)


def test_demand_without_any_node_is_infinite_pressure(house: ZoneTiers, zone: Zone) -> None:
    node = market_builders.node(zone, status=NodeStatus.OFFLINE)
    job_builders.job(zone, (0, node), deadline_at=at(10))
    assert gauge(house, nodes=0).pressure == math.inf


def test_a_running_jobs_own_estimate_is_what_is_left(house: ZoneTiers, zone: Zone) -> None:
    node = market_builders.node(zone)
    job = job_builders.job(zone, (0, node), (1, node), deadline_at=at(100))
    Job.objects.filter(pk=job.pk).update(eta_at=at(100))
    assert gauge(house, nodes=1).demand_s == 100.0


def test_the_threshold_follows_algorithm_one_once_a_minute(house: ZoneTiers, zone: Zone) -> None:
    node = market_builders.node(zone, status=NodeStatus.OFFLINE)
    job_builders.job(zone, (0, node), deadline_at=at(10))
    ZoneTiers.objects.update(serverful_cap=0)
    for seconds, expected in ((0, 400.0), (30, 400.0), (60, 500.0)):
        tiers_tick(now=at(seconds))
        house.refresh_from_db()
        assert (house.threshold_s, house.pressure) == (expected, math.inf)


def test_a_job_without_a_place_gets_a_machine_whose_node_is_new_capacity(
    house: ZoneTiers, zone: Zone, backend: MemoryBackend
) -> None:
    node = market_builders.node(zone, status=NodeStatus.OFFLINE)
    job = job_builders.job(zone, (0, node), deadline_at=at(600))
    job_replan_request(job=job, reason="its node is gone", now=NOW)
    tiers_tick(now=NOW)
    tiers_tick(now=at(1))
    machine = Machine.objects.get()
    assert (machine.offer, machine.tier) == (CHEAP.name, Tier.MARKETPLACE)
    made = backend.join(machine.pk, now=at(2))
    machines_reconcile(now=at(2))
    from marketplace.fleet.selectors import nodes_on_sale

    assert [one.pk for one in nodes_on_sale(zone)] == [made.pk]


def test_machines_never_exceed_the_cap(
    house: ZoneTiers, zone: Zone, backend: MemoryBackend
) -> None:
    node = market_builders.node(zone, status=NodeStatus.OFFLINE)
    for _ in range(20):
        job = job_builders.job(zone, (0, node), deadline_at=at(600))
        job_replan_request(job=job, reason="its node is gone", now=NOW)
    for seconds in range(5):
        tiers_tick(now=at(seconds))
    assert Machine.objects.count() == 2
    assert len(backend.running) == 2


def test_idle_machines_go_dearest_first_and_not_before_their_time(
    house: ZoneTiers, zone: Zone, backend: MemoryBackend
) -> None:
    made = []
    for name, price in (("cheap", 740_000), ("dear", 1_290_000)):
        machine = Machine.objects.create(
            zone=zone,
            backend="memory",
            tier=Tier.MARKETPLACE,
            offer=name,
            price_micros_per_h=price,
            requested_at=NOW,
        )
        made.append(machine)
    tiers_tick(now=NOW)
    for machine in made:
        backend.join(machine.pk, now=NOW)
    machines_reconcile(now=NOW)
    assert idle(house, at(59)) == []
    assert idle(house, at(60)) == [made[1], made[0]]
    Node.objects.update(last_heartbeat_at=at(60))
    tiers_tick(now=at(60))
    machines_reconcile(now=at(61))
    machines_reconcile(now=at(62))
    assert set(backend.terminated) == {machine.pk for machine in made}
    assert {m.status for m in Machine.objects.all()} == {MachineStatus.ENDED}


def test_a_machine_with_work_is_not_idle(
    house: ZoneTiers, zone: Zone, backend: MemoryBackend
) -> None:
    Machine.objects.create(
        zone=zone,
        backend="memory",
        tier=Tier.MARKETPLACE,
        offer="cheap",
        price_micros_per_h=1,
        requested_at=NOW,
    )
    tiers_tick(now=NOW)
    node = backend.join(Machine.objects.get().pk, now=NOW)
    machines_reconcile(now=NOW)
    job_builders.job(zone, (0, node), (1, node))
    from marketplace.jobs.services import slots_dispatch

    slots_dispatch(now=NOW)
    assert idle(house, NOW + timedelta(hours=1)) == []
    assert Machine.objects.get().idle_since_at is None


def test_a_tick_that_looked_before_another_one_rented_rents_no_second_machine(
    house: ZoneTiers, zone: Zone, backend: MemoryBackend, monkeypatch: pytest.MonkeyPatch
) -> None:
    ZoneTiers.objects.update(serverful_cap=1)
    node = market_builders.node(zone, status=NodeStatus.OFFLINE)
    job = job_builders.job(zone, (0, node), deadline_at=at(600))
    job_replan_request(job=job, reason="its node is gone", now=NOW)
    whole, ticks = locks.zone_tiers_lock, []

    def another_tick_first(zone_id: str) -> ZoneTiers:
        if not ticks:
            ticks.append(zone_id)
            tiers_tick(now=NOW)
        return whole(zone_id)

    monkeypatch.setattr(locks, "zone_tiers_lock", another_tick_first)
    tiers_tick(now=NOW)
    assert Machine.objects.count() == 1


def test_one_broken_zone_does_not_stop_the_others(
    house: ZoneTiers, backend: MemoryBackend, monkeypatch: pytest.MonkeyPatch
) -> None:
    other = tiers(market_builders.zone())
    first, second = sorted((house.pk, other.pk))
    whole = scaling.gauge

    def gauge(*, rented: Rented, **rest: object) -> object:
        if rented.tiers.pk == first:
            raise RuntimeError("broken")
        return whole(rented=rented, **rest)

    monkeypatch.setattr(scaling, "gauge", gauge)
    tiers_tick(now=NOW)
    assert ZoneTiers.objects.get(pk=second).ticked_at == NOW
    assert ZoneTiers.objects.get(pk=first).ticked_at is None


def test_prometheus_reads_pressure_threshold_machines_and_rent(
    house: ZoneTiers, zone: Zone, backend: MemoryBackend
) -> None:
    Machine.objects.create(
        zone=zone,
        backend="memory",
        tier=Tier.MARKETPLACE,
        offer="cheap",
        price_micros_per_h=740_000,
        requested_at=NOW,
    )
    tiers_tick(now=NOW)
    labels = {"zone": zone.name}
    assert REGISTRY.get_sample_value("finetender_tiers_pressure", labels) == 0.0
    assert REGISTRY.get_sample_value("finetender_tiers_threshold_seconds", labels) == 298.0
    assert REGISTRY.get_sample_value("finetender_tiers_cost_usd_per_hour") == 0.74
    booting = {"tier": "marketplace", "status": "booting"}
    assert REGISTRY.get_sample_value("finetender_tiers_machines", booting) == 1
