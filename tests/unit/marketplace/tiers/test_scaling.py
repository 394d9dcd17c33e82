"""Pressure over admitted jobs and the serverful machines it asks for."""

from __future__ import annotations

import math
from datetime import datetime, timedelta

import pytest
from prometheus_client import REGISTRY

from marketplace.fleet.models import Node, NodeStatus, Tier, Zone
from marketplace.jobs.models import Job
from marketplace.jobs.services import request_job_replan
from marketplace.tiers import locks, scaling
from marketplace.tiers.machines import reconcile_machines
from marketplace.tiers.models import Machine, MachineStatus, ZoneTiers
from marketplace.tiers.services import run_tier_tick
from marketplace.tiers.tier_state import TierState, load_tier_state
from tests import job_builders, market_builders
from tests.builders import NOW
from tests.job_builders import at
from tests.unit.marketplace.tiers.backends import CHEAP, MemoryBackend, tiers

pytestmark = pytest.mark.django_db


@pytest.fixture
def house(zone: Zone, backend: MemoryBackend) -> ZoneTiers:
    return tiers(zone, serverless_cap=0)


def idle(house: ZoneTiers, now: datetime) -> list[Machine]:
    return scaling.find_idle_machines(load_tier_state(tiers=house, now=now), now=now)


def measure_pressure(house: ZoneTiers, *, nodes: int) -> scaling.PressureReading:
    return scaling.measure_pressure(
        rented=load_tier_state(tiers=house, now=NOW), nodes=nodes, now=NOW
    )


def test_pressure_is_work_due_over_places_on_sale(house: ZoneTiers, zone: Zone) -> None:
    node = market_builders.node(zone)
    # 60 s of work due in 60 s; the node runs four jobs at once.
    job_builders.job(zone, *((slot, node) for slot in range(6)), deadline_at=at(60))
    measured = measure_pressure(house, nodes=1)
    assert measured.pressure == 60.0 / (4 * 60.0)
    assert (measured.demand_s, measured.capacity, measured.waiting) == (60.0, 4.0, 0)


def test_demand_without_any_node_is_infinite_pressure(house: ZoneTiers, zone: Zone) -> None:
    node = market_builders.node(zone, status=NodeStatus.OFFLINE)
    job_builders.job(zone, (0, node), deadline_at=at(10))
    assert measure_pressure(house, nodes=0).pressure == math.inf


def test_a_running_jobs_own_estimate_is_what_is_left(house: ZoneTiers, zone: Zone) -> None:
    node = market_builders.node(zone)
    job = job_builders.job(zone, (0, node), (1, node), deadline_at=at(100))
    Job.objects.filter(pk=job.pk).update(eta_at=at(100))
    assert measure_pressure(house, nodes=1).demand_s == 100.0


def test_the_threshold_follows_algorithm_one_once_a_minute(house: ZoneTiers, zone: Zone) -> None:
    node = market_builders.node(zone, status=NodeStatus.OFFLINE)
    job_builders.job(zone, (0, node), deadline_at=at(10))
    ZoneTiers.objects.update(serverful_cap=0)
    for seconds, expected in ((0, 400.0), (30, 400.0), (60, 500.0)):
        run_tier_tick(now=at(seconds))
        house.refresh_from_db()
        assert (house.threshold_s, house.pressure) == (expected, math.inf)


def test_a_job_without_a_place_gets_a_machine_whose_node_is_new_capacity(
    house: ZoneTiers, zone: Zone, backend: MemoryBackend
) -> None:
    node = market_builders.node(zone, status=NodeStatus.OFFLINE)
    job = job_builders.job(zone, (0, node), deadline_at=at(600))
    request_job_replan(job=job, reason="its node is gone", now=NOW)
    run_tier_tick(now=NOW)
    run_tier_tick(now=at(1))
    machine = Machine.objects.get()
    assert (machine.offer, machine.tier) == (CHEAP.name, Tier.MARKETPLACE)
    made = backend.join(machine.pk, now=at(2))
    reconcile_machines(now=at(2))
    from marketplace.fleet.selectors import list_nodes_on_sale

    assert [one.pk for one in list_nodes_on_sale(zone)] == [made.pk]


def test_machines_never_exceed_the_cap(
    house: ZoneTiers, zone: Zone, backend: MemoryBackend
) -> None:
    node = market_builders.node(zone, status=NodeStatus.OFFLINE)
    for _ in range(20):
        job = job_builders.job(zone, (0, node), deadline_at=at(600))
        request_job_replan(job=job, reason="its node is gone", now=NOW)
    for seconds in range(5):
        run_tier_tick(now=at(seconds))
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
    run_tier_tick(now=NOW)
    for machine in made:
        backend.join(machine.pk, now=NOW)
    reconcile_machines(now=NOW)
    assert idle(house, at(59)) == []
    assert idle(house, at(60)) == [made[1], made[0]]
    Node.objects.update(last_heartbeat_at=at(60))
    run_tier_tick(now=at(60))
    reconcile_machines(now=at(61))
    reconcile_machines(now=at(62))
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
    run_tier_tick(now=NOW)
    node = backend.join(Machine.objects.get().pk, now=NOW)
    reconcile_machines(now=NOW)
    job_builders.job(zone, (0, node), (1, node))
    from marketplace.jobs.services import dispatch_slots

    dispatch_slots(now=NOW)
    assert idle(house, NOW + timedelta(hours=1)) == []
    assert Machine.objects.get().idle_since_at is None


def test_a_tick_that_looked_before_another_one_rented_rents_no_second_machine(
    house: ZoneTiers, zone: Zone, backend: MemoryBackend, monkeypatch: pytest.MonkeyPatch
) -> None:
    ZoneTiers.objects.update(serverful_cap=1)
    node = market_builders.node(zone, status=NodeStatus.OFFLINE)
    job = job_builders.job(zone, (0, node), deadline_at=at(600))
    request_job_replan(job=job, reason="its node is gone", now=NOW)
    whole, ticks = locks.lock_zone_tiers, []

    def another_tick_first(zone_id: str) -> ZoneTiers:
        if not ticks:
            ticks.append(zone_id)
            run_tier_tick(now=NOW)
        return whole(zone_id)

    monkeypatch.setattr(locks, "lock_zone_tiers", another_tick_first)
    run_tier_tick(now=NOW)
    assert Machine.objects.count() == 1


def test_one_broken_zone_does_not_stop_the_others(
    house: ZoneTiers, backend: MemoryBackend, monkeypatch: pytest.MonkeyPatch
) -> None:
    other = tiers(market_builders.zone())
    first, second = sorted((house.pk, other.pk))
    whole = scaling.measure_pressure

    def measure_pressure(*, rented: TierState, **rest: object) -> object:
        if rented.tiers.pk == first:
            raise RuntimeError("broken")
        return whole(rented=rented, **rest)

    monkeypatch.setattr(scaling, "measure_pressure", measure_pressure)
    run_tier_tick(now=NOW)
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
    run_tier_tick(now=NOW)
    labels = {"zone": zone.name}
    assert REGISTRY.get_sample_value("finetender_tiers_pressure", labels) == 0.0
    assert REGISTRY.get_sample_value("finetender_tiers_threshold_seconds", labels) == 298.0
    assert REGISTRY.get_sample_value("finetender_tiers_cost_usd_per_hour") == 0.74
    booting = {"tier": "marketplace", "status": "booting"}
    assert REGISTRY.get_sample_value("finetender_tiers_machines", booting) == 1
