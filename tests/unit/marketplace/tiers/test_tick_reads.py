"""What a tick asks of the database: the same however much there is, and counted right there."""

from __future__ import annotations

import random
from datetime import timedelta

import pytest
from django.db import connection
from django.test.utils import CaptureQueriesContext

from marketplace.fleet.models import Node, Tier, Zone
from marketplace.jobs.models import Job, JobStatus, Slice
from marketplace.tiers import scaling
from marketplace.tiers.machines import reconcile_machines
from marketplace.tiers.models import Machine, Stay, ZoneTiers
from marketplace.tiers.services import run_tier_tick
from marketplace.tiers.tier_state import TierState, load_tier_state
from tests import job_builders, market_builders
from tests.builders import NOW
from tests.job_builders import SLOT, at
from tests.unit.marketplace.tiers.backends import SERVERLESS, MemoryBackend, tiers

pytestmark = pytest.mark.django_db
WINDOW_S = 1800.0


@pytest.fixture
def house(zone: Zone, backend: MemoryBackend) -> ZoneTiers:
    return tiers(zone, serverless_cap=9, serverful_cap=0)


def expected_demand_s(job: Job) -> float:
    """The rule in words, of one job: cells ahead, or what no checkpoint holds of all."""
    if job.eta_at is not None:
        left_s = max(0.0, (job.eta_at - NOW).total_seconds())
    else:
        ahead = sum(slot >= SLOT for slot, _ in job.cells)
        done = job.checkpoint_step / job.total_steps if job.total_steps else 0.0
        left_s = 10.0 * (ahead or len(job.cells) * (1.0 - done))
    slack_s = (job.deadline_at - NOW).total_seconds() - left_s
    return max(0.0, min(left_s, WINDOW_S - max(0.0, slack_s)))


@pytest.mark.parametrize("seed", range(5))
def test_the_demand_counted_in_the_database_is_that_of_every_job_by_itself(
    house: ZoneTiers, zone: Zone, seed: int
) -> None:
    draw = random.Random(seed)
    node = market_builders.node(zone)
    owner_and_data = None
    for number in range(40):
        job = job_builders.job(zone, (0, node), **(owner_and_data or {}))
        owner_and_data = {"organisation": job.organisation, "dataset": job.dataset}
        first = draw.randrange(-30, 60)
        slots = sorted(draw.sample(range(first, first + 60), draw.randrange(1, 40)))
        runs = draw.random() < 0.4
        Job.objects.filter(pk=job.pk).update(
            cells=[] if number == 0 else [[SLOT + slot, node.pk] for slot in slots],
            deadline_at=at(draw.uniform(-200, 4000)),
            eta_at=at(draw.uniform(-50, 3000)) if runs else None,
            status=JobStatus.RUNNING if runs else JobStatus.QUEUED,
            total_steps=draw.choice([None, 0, 200]),
            checkpoint_step=draw.choice([0, 50]),
            needs_replan=draw.random() < 0.2,
        )
    gone = job_builders.job(zone, (0, node), **(owner_and_data or {}))
    Job.objects.filter(pk=gone.pk).update(status=JobStatus.CANCELLED, finished_at=NOW)
    measured = scaling.measure_pressure(rented=TierState(tiers=house), nodes=1, now=NOW)
    jobs = Job.objects.filter(finished_at=None)
    assert measured.demand_s == pytest.approx(sum(expected_demand_s(job) for job in jobs))
    assert measured.waiting == jobs.filter(needs_replan=True).count()


def test_a_job_on_serverless_is_no_demand(house: ZoneTiers, zone: Zone) -> None:
    node = market_builders.node(zone)
    jobs = [job_builders.job(zone, (0, node), deadline_at=at(10)) for _ in range(2)]
    machine = Machine.objects.create(
        zone=zone,
        backend="memory",
        tier=Tier.SERVERLESS,
        offer=SERVERLESS.name,
        price_micros_per_h=1,
        requested_at=NOW,
    )
    Stay.objects.create(job=jobs[0], machine=machine, started_at=NOW)
    rented = load_tier_state(tiers=house, now=NOW)
    assert scaling.measure_pressure(rented=rented, nodes=1, now=NOW).demand_s == 10.0


def statements_of_a_tick(seconds: float) -> int:
    Node.objects.update(last_heartbeat_at=at(seconds))
    with CaptureQueriesContext(connection) as asked:
        run_tier_tick(now=at(seconds))
    return len(asked)


def test_a_tick_asks_no_more_of_many_machines_than_of_two(
    house: ZoneTiers, zone: Zone, backend: MemoryBackend
) -> None:
    reserved = market_builders.node(zone)
    Node.objects.filter(pk=reserved.pk).update(available_from_at=NOW + timedelta(hours=1))

    def many(count: int, seconds: float) -> None:
        """So many jobs, each on a serverless machine of its own, speed known."""
        for _ in range(count):
            job_builders.job(zone, (200, reserved), deadline_at=at(5000))
        run_tier_tick(now=at(seconds))
        for machine_id in sorted(backend.running):
            if Machine.objects.get(pk=machine_id).ready_at is None:
                node = backend.join(machine_id, now=at(seconds))
                Node.objects.filter(pk=node.pk).update(last_heartbeat_at=at(seconds))
        reconcile_machines(now=at(seconds))
        run_tier_tick(now=at(seconds))
        for stay in Stay.objects.filter(job__status=JobStatus.QUEUED):
            token = stay.machine.join_token
            assert token is not None
            Slice.objects.create(
                job=stay.job,
                node_id=token.node_id,
                lease_token=stay.job_id,
                first_slot=SLOT,
                last_slot=SLOT + 199,
                opened_at=at(seconds),
                acknowledged_at=at(seconds - 100),
                lease_expires_at=at(seconds + 1000),
            )
        Job.objects.update(status=JobStatus.RUNNING, eta_at=at(seconds + 900))

    many(2, 0)
    assert Stay.objects.count() == 2
    few = statements_of_a_tick(1)
    many(7, 2)
    assert Stay.objects.count() == 9
    assert statements_of_a_tick(3) <= few
