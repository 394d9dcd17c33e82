"""What was promised when things change: slower jobs, lost nodes, missed deadlines."""

from __future__ import annotations

import pytest

from marketplace.auction.lane.decide import decide_pending_bids
from marketplace.auction.lane.sweep import replan_broken_jobs
from marketplace.auction.settlement import settle_finished
from marketplace.fleet.models import Node, NodeStatus, Zone
from marketplace.jobs.models import EventKind, Job, JobStatus
from marketplace.jobs.services import dispatch_slots, request_job_replan, sweep_leases
from marketplace.payments.ledger_checks import check_ledger
from marketplace.payments.selectors import get_house_balances, get_wallet
from tests import builders, market_builders
from tests.builders import NOW
from tests.job_builders import at, lease
from workers.protocol.reports import SliceEnd as Ended

pytestmark = pytest.mark.django_db


@pytest.fixture
def zone(db: None) -> Zone:
    return market_builders.zone()


def sold(zone: Zone, **terms: int) -> Job:
    owner = builders.organisation(usd="10")
    bid = market_builders.bid(owner, zone, **terms)
    decide_pending_bids(zone=zone, now=NOW)
    return Job.objects.get(bid_id=bid.pk)


def alive(seconds: float) -> None:
    Node.objects.exclude(status=NodeStatus.OFFLINE).update(last_heartbeat_at=at(seconds))


def test_a_job_slower_than_measured_is_planned_again_before_its_cells_are_over(zone: Zone) -> None:
    market_builders.node(zone)
    job = sold(zone, epochs=2, slots=20)
    alive(11)
    dispatch_slots(now=at(11))
    alive(21)
    dispatch_slots(now=at(21))
    Job.objects.filter(pk=job.pk).update(eta_at=at(60), step=50, total_steps=100)
    dispatch_slots(now=at(22))
    job.refresh_from_db()
    assert job.needs_replan
    before = len(job.cells)
    replan_broken_jobs(now=at(23))
    job.refresh_from_db()
    assert not job.needs_replan
    assert len(job.cells) > before
    said = job.events.filter(kind=EventKind.REPLANNED).get()
    assert said.message.endswith("at no cost to you; the deadline stands.")


def test_a_missed_deadline_is_counted_explained_and_credited_once(zone: Zone) -> None:
    first = market_builders.node(zone)
    job = sold(zone, epochs=3, slots=4)
    dispatch_slots(now=at(11))
    market_builders.node(zone, name="second", available_from_at=at(70))
    Node.objects.filter(pk=first.pk).update(status=NodeStatus.OFFLINE)
    sweep_leases(now=at(15))
    replan_broken_jobs(now=at(16))
    job.refresh_from_db()
    assert job.finish_planned_at > job.deadline_at
    assert "for which you get a credit" in job.events.filter(kind="replanned").get().message
    # That something better turned up held nobody up.
    request_job_replan(job=job, reason="A cheaper one is ready.", now=at(17), is_trouble=False)
    Job.objects.update(needs_replan=False)

    alive(71)
    dispatch_slots(now=at(71))
    assert lease(job).node.name == "second"
    market_builders.end_slice(job, status=Ended.FINISHED, now=at(95))
    assert settle_finished(now=at(96)) == 1
    assert settle_finished(now=at(97)) == 0
    job.refresh_from_db()
    assert job.status == JobStatus.SUCCEEDED
    late_s = (at(95) - job.deadline_at).total_seconds()
    [told] = [event for event in job.events.all() if "after its deadline" in event.message]
    assert told.message.startswith(f"Ended {late_s:.0f} s after its deadline. What held it up: ")
    assert f"Node {first.name} went silent" in told.message
    assert "cheaper" not in told.message
    assert told.data["late_s"] == late_s
    credit = job.price_micros // 4
    assert get_house_balances()["sla_credits"] == -credit
    assert get_wallet(organisation=job.organisation).available_micros == (
        10_000_000 - job.price_micros + credit
    )
    assert job.events.filter(kind=EventKind.REFUNDED).count() == 1
    assert check_ledger().balanced


def test_a_job_in_time_is_neither_explained_nor_credited(zone: Zone) -> None:
    market_builders.node(zone)
    job = sold(zone, epochs=1, slots=4)
    dispatch_slots(now=at(11))
    market_builders.end_slice(job, status=Ended.FINISHED, now=at(15))
    assert settle_finished(now=at(16)) == 1
    assert not job.events.filter(message__contains="after its deadline").exists()
    assert get_house_balances()["sla_credits"] == 0
