"""Hazards learned from the zone's own jobs, and what they change."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from marketplace.fleet.models import Node, Zone
from marketplace.jobs.models import FaultOf, Job, JobStatus, Slice, SliceStatus
from marketplace.tiers import hazard_tables
from marketplace.tiers.models import Machine, Stay, ZoneTiers
from scheduler.tiers.hazard import AGE_BINS, LENGTH_CLASSES, PRIOR_EXPOSURE_S, observe
from tests import job_builders, market_builders
from tests.job_builders import SLOT, at
from tests.unit.marketplace.tiers.backends import MemoryBackend, tiers

pytestmark = pytest.mark.django_db

LATER = 3600.0


@pytest.fixture
def house(zone: Zone, backend: MemoryBackend) -> ZoneTiers:
    return tiers(zone)


@pytest.fixture
def node(zone: Zone) -> Node:
    return market_builders.node(zone)


def ended(
    node: Node, *, ran_s: float, status: JobStatus, share: float = 1.0, fault: str = ""
) -> Job:
    """A job that ran so long and then ended so."""
    job = job_builders.job(node.zone, (0, node))
    Slice.objects.create(
        job=job,
        node=node,
        lease_token=job.pk,
        status=SliceStatus.REVOKED,
        first_slot=SLOT,
        last_slot=SLOT,
        lease_expires_at=at(ran_s),
        opened_at=at(0),
        closed_at=at(ran_s),
    )
    Job.objects.filter(pk=job.pk).update(
        status=status,
        fault=fault,
        finished_at=at(ran_s),
        step=round(100 * share),
        total_steps=100,
        started_at=at(0),
    )
    return job


def tables(house: ZoneTiers, seconds: float = LATER) -> hazard_tables.HazardTables:
    hazard_tables.learn_from_ended_jobs(tiers=house, now=at(seconds))
    return hazard_tables.build_hazard_tables(tiers=house, now=at(seconds))


def test_cancelled_jobs_and_those_with_bad_input_died_the_others_lived(
    house: ZoneTiers, node: Node
) -> None:
    ended(node, ran_s=20, share=0.5, status=JobStatus.CANCELLED)
    ended(node, ran_s=20, share=0.5, status=JobStatus.FAILED, fault=FaultOf.USER)
    ended(node, ran_s=20, share=0.5, status=JobStatus.FAILED, fault=FaultOf.SYSTEM)
    ended(node, ran_s=20, status=JobStatus.SUCCEEDED)
    found = tables(house)
    assert found.deaths[0, 0] == 2.0
    assert found.deaths.sum() == 2.0
    assert found.exposure_s[0, 0] == 80.0


def test_a_job_that_died_counts_in_the_class_of_its_predicted_length(
    house: ZoneTiers, node: Node
) -> None:
    # A tenth of it took 100 s: it would have run for 1000.
    ended(node, ran_s=100, share=0.1, status=JobStatus.CANCELLED)
    found = tables(house)
    assert list(np.argwhere(found.deaths > 0)[0]) == [1, 2]
    assert found.exposure_s[1, :3].tolist() == [30.0, 30.0, 40.0]


def test_each_ended_job_is_counted_once(house: ZoneTiers, node: Node) -> None:
    ended(node, ran_s=20, status=JobStatus.CANCELLED)
    assert hazard_tables.learn_from_ended_jobs(tiers=house, now=at(LATER)) == 1
    assert hazard_tables.learn_from_ended_jobs(tiers=house, now=at(LATER + 60)) == 0
    ended(node, ran_s=25, status=JobStatus.CANCELLED)
    assert hazard_tables.learn_from_ended_jobs(tiers=house, now=at(LATER + 60)) == 1
    assert house.deaths[0][0] == 2.0


def test_a_job_that_just_ended_waits_for_those_committed_late(house: ZoneTiers, node: Node) -> None:
    ended(node, ran_s=20, status=JobStatus.CANCELLED)
    assert hazard_tables.learn_from_ended_jobs(tiers=house, now=at(49)) == 0
    assert hazard_tables.learn_from_ended_jobs(tiers=house, now=at(50)) == 1


def test_running_jobs_count_as_long_as_they_have_lived(house: ZoneTiers, node: Node) -> None:
    job = job_builders.job(node.zone, (0, node))
    Job.objects.filter(pk=job.pk).update(
        status=JobStatus.RUNNING, started_at=at(0), eta_at=at(1000)
    )
    assert tables(house, 40.0).exposure_s[1, :2].tolist() == [30.0, 10.0]
    assert tables(house, 50.0).exposure_s[1, :2].tolist() == [30.0, 20.0]


def test_where_jobs_die_early_less_is_expected_of_them(house: ZoneTiers, node: Node) -> None:
    before = tables(house).expected_left_s(done_s=20.0, left_s=400.0)
    assert before == 400.0
    for _ in range(50):
        ended(node, ran_s=20, share=0.05, status=JobStatus.CANCELLED)
    after = tables(house, LATER + 1).expected_left_s(done_s=20.0, left_s=400.0)
    rate = 50 / (50 * 20 + PRIOR_EXPOSURE_S)
    assert after == pytest.approx((1 - np.exp(-rate * 400)) / rate)
    assert after < 100


def test_what_a_dead_job_brought_to_the_allowance_is_what_it_would_truly_have_cost(
    house: ZoneTiers, node: Node
) -> None:
    job = ended(node, ran_s=20, share=0.05, status=JobStatus.CANCELLED)
    machine = Machine.objects.create(
        zone=node.zone,
        backend="memory",
        tier="serverless",
        offer="fast",
        price_micros_per_h=2_100_000,
        requested_at=at(0),
    )
    Stay.objects.create(
        job=job,
        machine=machine,
        started_at=at(0),
        ended_at=at(20),
        premium=1.0,
        move_cost=10.0,
        budget_s=300.0,
        credit=310.0,
    )
    house.surplus = 310.0
    hazard_tables.learn_from_ended_jobs(tiers=house, now=at(LATER))
    assert house.surplus == 20.0
    assert Stay.objects.get().credit == 20.0


@given(st.lists(st.tuples(st.floats(0, 1e6), st.floats(0, 1e6)), max_size=20))
def test_many_living_jobs_are_observed_like_one_after_another(
    jobs: list[tuple[float, float]],
) -> None:
    from scheduler.tiers.hazard import find_length_class

    deaths, one_by_one = np.zeros((2, LENGTH_CLASSES, AGE_BINS))
    together = np.zeros_like(one_by_one)
    for lived_s, left_s in jobs:
        observe(deaths, one_by_one, find_length_class(lived_s + left_s), 0.0, lived_s, False)
    lived, left = np.array(jobs, dtype=np.float64).reshape(-1, 2).T
    hazard_tables.observe_running_jobs(together, lived_s=lived, predicted_s=lived + left)
    assert np.allclose(one_by_one, together, rtol=1e-12, atol=1e-6)
    assert not deaths.any()
