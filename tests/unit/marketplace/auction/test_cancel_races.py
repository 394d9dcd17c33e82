"""A job is cancelled while it starts, ends, fails or is settled: its money moves once."""

from __future__ import annotations

import pytest

from marketplace.auction.cancelling import cancel_sold_job
from marketplace.auction.lane.decide import decide_pending_bids
from marketplace.auction.models import Bid
from marketplace.auction.settlement import settle_finished, settle_job
from marketplace.common.errors import Conflict
from marketplace.jobs.models import FaultOf, Job, JobStatus, Slice, SliceStatus
from marketplace.jobs.services import dispatch_slots, fail_job
from marketplace.payments.ledger_checks import check_ledger
from marketplace.payments.selectors import get_house_balances, get_wallet
from tests import builders, market_builders
from tests.builders import NOW
from tests.unit.marketplace.common.threads import at_once

pytestmark = pytest.mark.django_db(transaction=True)
START_USD = 10_000_000
#: A fiftieth of what was paid for the whole job.
KEPT = 6_000


@pytest.fixture
def job() -> Job:
    zone = market_builders.zone()
    market_builders.node(zone)
    bid = market_builders.bid(builders.organisation(usd="10"), zone, epochs=3)
    decide_pending_bids(zone=zone, now=NOW)
    return Job.objects.select_related("zone").get(bid_id=bid.pk)


def read_paid(job: Job) -> int:
    """What its owner has paid, once everything about it is settled and the books balance."""
    settle_finished(now=market_builders.slot_at(job.zone, 101))
    job.refresh_from_db()
    assert job.settled_at is not None
    check = check_ledger()
    assert check.balanced, check
    bid = Bid.objects.select_related("organisation").get(pk=job.bid_id)
    paid = START_USD - get_wallet(organisation=bid.organisation).available_micros
    assert paid == bid.paid_micros
    return paid


def test_a_job_cancelled_while_its_slot_begins_pays_once(job: Job) -> None:
    now = market_builders.slot_at(job.zone, 101)
    found = at_once(
        [
            lambda: cancel_sold_job(job=job, cancelled_by=None, now=now),
            lambda: dispatch_slots(now=now),
            lambda: cancel_sold_job(job=job, cancelled_by=None, now=now),
        ]
    )
    assert [one for one in found if isinstance(one, Exception)] == []
    assert not Slice.objects.filter(status=SliceStatus.OPEN).exists()
    assert read_paid(job) == KEPT
    assert get_house_balances()["congestion"] == KEPT


def test_a_job_cancelled_while_it_is_settled_pays_once(job: Job) -> None:
    cancel_sold_job(job=job, cancelled_by=None, now=NOW)
    found = at_once(
        [
            lambda: settle_job(job=job, now=NOW),
            lambda: cancel_sold_job(job=job, cancelled_by=None, now=NOW),
            lambda: settle_job(job=job, now=NOW),
        ]
    )
    assert [one for one in found if isinstance(one, Exception)] == []
    assert read_paid(job) == KEPT
    assert get_house_balances()["congestion"] == KEPT


def test_a_job_that_is_cancelled_as_the_market_fails_it_pays_for_it_or_nothing(job: Job) -> None:
    cancelled, failed = at_once(
        [
            lambda: cancel_sold_job(job=job, cancelled_by=None, now=NOW),
            lambda: fail_job(job=job, fault=FaultOf.SYSTEM, reason="No plan is left.", now=NOW),
        ]
    )
    paid = read_paid(job)
    if job.status == JobStatus.FAILED:
        assert isinstance(cancelled, Conflict)
        assert paid == 0
    else:
        assert isinstance(failed, Conflict)
        assert paid == KEPT
    assert get_house_balances()["congestion"] == paid
