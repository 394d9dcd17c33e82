"""The money of jobs that ended, to the micro-dollar, and once."""

from __future__ import annotations

from datetime import timedelta

import pytest

from marketplace.auction.book.verify import verify_zone
from marketplace.auction.lane.decide import decide_pending_bids
from marketplace.auction.lane.sweep import refresh_zone
from marketplace.auction.models import LogEntry, Reservation
from marketplace.auction.settlement import compute_cancel_refund, settle_finished
from marketplace.fleet.models import NodeStatus
from marketplace.jobs.models import Job, JobEvent
from marketplace.jobs.services import cancel_job, leases_sweep, slots_dispatch
from marketplace.payments.selectors import Wallet, earnings, house_balances, ledger_check, wallet
from tests import builders
from tests import market_builders as market
from tests.builders import NOW
from workers.protocol.messages import Fault, SliceStatus

pytestmark = pytest.mark.django_db


@pytest.fixture
def zone():
    return market.zone()


@pytest.fixture
def owner():
    return builders.organisation(usd="10")


def sold(owner, zone, **terms):
    bid = market.bid(owner, zone, **terms)
    decide_pending_bids(zone=zone, now=NOW)
    bid.refresh_from_db()
    return bid, Job.objects.get(bid_id=bid.pk)


def run(job, zone, *slots):
    for slot in slots:
        slots_dispatch(now=market.slot_at(zone, slot))


def settled(job, bid, now):
    assert settle_finished(now=now) == 1
    assert settle_finished(now=now) == 0
    job.refresh_from_db()
    bid.refresh_from_db()
    assert job.settled_at == now
    check = ledger_check()
    assert check.balanced, check


def earned(node):
    return earnings(organisation=node.provider.organisation).pending_micros


def test_success_leaves_the_price_and_pays_the_provider_its_ask(zone, owner):
    node = market.node(zone)
    bid, job = sold(owner, zone, epochs=3)
    run(job, zone, 101, 102, 103)
    now = market.slot_at(zone, 103)
    market.end_slice(job, status=SliceStatus.FINISHED, step=100, now=now)
    settled(job, bid, now)
    assert (bid.refund_micros, bid.credit_micros) == (0, 0)
    assert wallet(organisation=owner) == Wallet(available_micros=9_700_000, held_micros=0)
    assert earned(node) == 300_000
    assert house_balances()["revenue"] == 0
    assert verify_zone(zone).problems == []


def test_early_success_puts_unused_cells_back_on_sale_and_keeps_the_price(zone, owner):
    node = market.node(zone)
    bid, job = sold(owner, zone, epochs=3)
    run(job, zone, 101)
    now = market.slot_at(zone, 101)
    market.end_slice(job, status=SliceStatus.FINISHED, step=100, now=now)
    settled(job, bid, now)
    assert LogEntry.objects.filter(zone=zone).latest("position").kind == "CellsReleased"
    held = Reservation.objects.filter(bid=bid, released_at=None)
    assert list(held.values_list("slot", flat=True)) == [101]
    assert bid.refund_micros == 0
    assert earned(node) == 100_000
    assert house_balances()["revenue"] == 200_000
    assert verify_zone(zone).problems == []


def test_missed_deadline_is_credited_by_the_house(zone, owner):
    node = market.node(zone)
    bid, job = sold(owner, zone, epochs=3, slots=3)
    run(job, zone, 101, 102, 103)
    Job.objects.filter(pk=job.pk).update(deadline_at=NOW + timedelta(seconds=5))
    now = market.slot_at(zone, 103)
    market.end_slice(job, status=SliceStatus.FINISHED, step=100, now=now)
    settled(job, bid, now)
    assert (bid.refund_micros, bid.credit_micros) == (0, 75_000)
    assert wallet(organisation=owner).available_micros == 9_775_000
    assert earned(node) == 300_000
    assert house_balances()["sla_credits"] == -75_000


def test_failure_of_the_house_is_refunded_whole_and_providers_are_paid_for_what_ran(zone, owner):
    node = market.node(zone)
    bid, job = sold(owner, zone, epochs=3, slots=4)
    run(job, zone, 101, 102)
    node.status = NodeStatus.OFFLINE
    node.save()
    refresh_zone(zone=zone, now=market.slot_at(zone, 103))
    leases_sweep(now=market.slot_at(zone, 103))
    now = market.slot_at(zone, 106)
    refresh_zone(zone=zone, now=now)
    job.refresh_from_db()
    assert (job.status, job.fault) == ("failed", "system")
    settled(job, bid, now)
    assert bid.refund_micros == 300_000
    assert wallet(organisation=owner) == Wallet(available_micros=10_000_000, held_micros=0)
    # The lease was opened in slot 101 and nothing was heard after that.
    assert earned(node) == 0
    refunds = JobEvent.objects.filter(job=job, kind="refunded")
    assert [event.data for event in refunds] == [{"amount_micros": 300_000}]
    assert verify_zone(zone).problems == []


def test_failure_by_the_owners_data_is_refunded_for_the_cells_not_used(zone, owner):
    node = market.node(zone)
    bid, job = sold(owner, zone, epochs=3)
    run(job, zone, 101)
    now = market.slot_at(zone, 101)
    market.end_slice(
        job,
        status=SliceStatus.FAILED,
        step=3,
        now=now,
        fault=Fault.USER,
        reason="Row 3 has no answer.",
    )
    settled(job, bid, now)
    assert bid.refund_micros == 200_000
    assert wallet(organisation=owner).available_micros == 9_900_000
    assert earned(node) == 100_000
    assert house_balances()["revenue"] == 0


def test_cancelled_job_is_refunded_for_the_cells_not_used(zone, owner):
    node = market.node(zone)
    bid, job = sold(owner, zone, epochs=3)
    run(job, zone, 101, 102)
    now = market.slot_at(zone, 102)
    assert compute_cancel_refund(bid=bid, job=job) == 100_000
    cancel_job(job=job, cancelled_by=None, now=now)
    settled(job, bid, now)
    assert bid.refund_micros == 100_000
    assert earned(node) == 200_000
    assert verify_zone(zone).problems == []


def test_job_cancelled_before_it_began_is_refunded_whole_and_its_cells_are_sold_again(zone, owner):
    node = market.node(zone)
    sold_out = [sold(owner, zone, slots=1, price_micros=1_000_000) for _ in range(4)]
    bid, job = sold_out[0]
    cancel_job(job=job, cancelled_by=None, now=NOW)
    settled(job, bid, NOW)
    assert bid.refund_micros == bid.payment_micros == 100_000
    assert earned(node) == 0
    again, _ = sold(owner, zone, slots=1, price_micros=1_000_000)
    assert again.status == "admitted"
    assert verify_zone(zone).problems == []


def test_providers_of_a_moved_job_are_each_paid_for_their_own_cells(zone, owner):
    first = market.node(zone)
    bid, job = sold(owner, zone, epochs=3)
    run(job, zone, 101)
    now = market.slot_at(zone, 101)
    market.end_slice(job, status=SliceStatus.PAUSED, step=40, now=now + timedelta(seconds=8))
    Job.objects.filter(pk=job.pk).update(checkpoint_step=40)
    second = market.node(zone, last_heartbeat_at=market.slot_at(zone, 103))
    first.status = NodeStatus.OFFLINE
    first.save()
    refresh_zone(zone=zone, now=market.slot_at(zone, 102))
    run(job, zone, 103, 104)
    now = market.slot_at(zone, 104)
    market.end_slice(job, status=SliceStatus.FINISHED, step=100, now=now)
    settled(job, bid, now)
    assert (earned(first), earned(second)) == (100_000, 200_000)
    assert bid.refund_micros == 0
    assert house_balances()["revenue"] == 0
    assert verify_zone(zone).problems == []


def test_running_jobs_are_left_alone(zone, owner):
    market.node(zone)
    _, job = sold(owner, zone, epochs=3)
    run(job, zone, 101)
    assert settle_finished(now=market.slot_at(zone, 102)) == 0
    assert wallet(organisation=owner).available_micros == 9_700_000
