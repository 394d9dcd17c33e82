"""What Prometheus is told of the tiers, and that it changes as the tiers do."""

from __future__ import annotations

import math

import pytest
from prometheus_client import REGISTRY

from marketplace.fleet.models import NodeStatus, Tier, Zone
from marketplace.jobs.models import Job, JobStatus
from marketplace.tiers.gauges import TiersCollector
from marketplace.tiers.machines import reconcile_machines
from marketplace.tiers.models import Machine, ZoneTiers
from tests import job_builders, market_builders
from tests.job_builders import at, lease
from tests.unit.marketplace.tiers.backends import MemoryBackend
from tests.unit.marketplace.tiers.handoff import booked_machine, point, runs, tick, worker_booked
from workers.protocol.reports import SliceEnd as Ended

pytestmark = pytest.mark.django_db


def told(name: str, **labels: str) -> float | None:
    return REGISTRY.get_sample_value(f"finetender_tiers_{name}", labels)


def workers(tier: str) -> dict[str, float | None]:
    states = ("booting", "idle", "busy", "ending")
    return {state: told("workers", tier=tier, state=state) for state in states}


def none(**but: int) -> dict[str, int]:
    return {"booting": 0, "idle": 0, "busy": 0, "ending": 0} | but


def test_every_figure_is_documented_and_every_documented_one_is_told(house: ZoneTiers) -> None:
    from marketplace.tiers import gauges

    families = list(TiersCollector().collect())
    names = {
        f"{family.name}_total" if family.type == "counter" else family.name for family in families
    }
    assert gauges.__doc__ is not None
    documented = {
        line.split()[0] for line in gauges.__doc__.splitlines() if line.startswith("finetender_")
    }
    assert names == documented


def test_workers_boots_and_rent_follow_a_machine_through_its_life(
    job: Job,
    backend: MemoryBackend,
) -> None:
    assert workers("serverless") == none(busy=1)
    assert told("cost_usd_per_hour") == 2.10
    worker_booked(job)
    assert workers("marketplace") == none(booting=1)
    assert told("tier_cost_usd_per_hour", tier="marketplace") == 0.74
    assert told("cost_usd_per_hour") == 2.84
    assert told("boot_seconds_count", tier="marketplace") == 0

    backend.join(booked_machine().pk, now=at(31))
    reconcile_machines(now=at(31))
    assert workers("marketplace") == none(idle=1)
    assert told("boot_seconds_count", tier="marketplace") == 1
    assert told("boot_seconds_sum", tier="marketplace") == 21
    buckets = {
        end: told("boot_seconds_bucket", tier="marketplace", le=end)
        for end in ("20.0", "40.0", "+Inf")
    }
    assert buckets == {"20.0": 0, "40.0": 1, "+Inf": 1}

    backend.running.clear()
    reconcile_machines(now=at(1831))
    assert workers("marketplace") == none()
    assert told("cost_usd_per_hour") == 0.0
    assert told("cost_usd_total", tier="marketplace") == pytest.approx(0.74 * 1821 / 3600, abs=1e-6)
    assert told("boots_failed_total", tier="marketplace") == 0


def test_a_boot_that_fails_is_counted(job: Job, backend: MemoryBackend) -> None:
    backend.running.discard(worker_booked(job).pk)
    reconcile_machines(now=at(45))
    tick(46)
    assert told("boots_failed_total", tier="marketplace") == 1
    assert told("demotions_total", outcome="failed") == 1
    assert told("demotions_total", outcome="moved") == 0


def test_a_demotion_is_counted_with_its_pause_and_its_saving(
    job: Job,
    backend: MemoryBackend,
) -> None:
    backend.join(worker_booked(job).pk, now=at(31))
    runs(job, since_s=2, left_s=379, now_s=31, step=30)
    tick(31)
    point(lease(job), seq=1, step=30, seconds=38)
    tick(40)
    market_builders.end_slice(job, status=Ended.PAUSED, now=at(41), step=30)
    tick(41)
    assert told("demotion_seconds_count") == 0
    point(lease(job), seq=1, step=31, seconds=44)
    tick(45)
    assert told("demotions_total", outcome="moved") == 1
    assert (told("demotion_seconds_count"), told("demotion_seconds_sum")) == (1, 6.0)
    assert told("demotion_seconds_bucket", le="5.0") == 0
    assert told("demotion_seconds_bucket", le="10.0") == 1
    saved = told("saved_usd_total")
    assert saved is not None
    assert saved > 0.1
    assert workers("marketplace") == none(busy=1)
    assert told("stays") == 1


def test_pressure_threshold_and_surplus_are_told_by_zone(house: ZoneTiers, zone: Zone) -> None:
    node = market_builders.node(zone, status=NodeStatus.OFFLINE)
    job_builders.job(zone, (0, node), deadline_at=at(10))
    ZoneTiers.objects.update(serverful_cap=0, surplus=7200.0)
    tick(0)
    assert told("pressure", zone=zone.name) == math.inf
    assert told("threshold_seconds", zone=zone.name) == 400.0
    assert told("surplus_usd", zone=zone.name) == 2.0


def test_deadlines_missed_and_overdue_are_told(zone: Zone) -> None:
    node = market_builders.node(zone)
    late = job_builders.job(zone, (0, node), deadline_at=at(5))
    assert (told("deadlines_missed"), told("deadlines_overdue")) == (0, 1)
    Job.objects.filter(pk=late.pk).update(status=JobStatus.SUCCEEDED, finished_at=at(9))
    assert (told("deadlines_missed"), told("deadlines_overdue")) == (1, 0)


def test_tiers_without_machines_are_told_as_none(zone: Zone) -> None:
    for tier in Tier.values:
        assert workers(tier) == none()
        assert told("boot_seconds_count", tier=tier) == 0
    assert not Machine.objects.exists()
    assert told("cost_usd_per_hour") == 0.0
