"""A job is cancelled while it starts, ends, fails or is settled: its money moves once."""

from __future__ import annotations

import pytest

from marketplace.auction.bidding.place import NewBid, place_bid
from marketplace.auction.book.verify import verify_zone
from marketplace.auction.cancelling import cancel_sold_job, quote_cancelling
from marketplace.auction.lane.decide import decide_pending_bids
from marketplace.auction.lane.enter import enter_lane
from marketplace.auction.lane.sweep import refresh_zone
from marketplace.auction.models import Bid, LogEntry
from marketplace.auction.pausing import pause_sold_job
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


def test_an_owner_gets_what_it_was_shown_while_a_turn_of_its_zone_lowers_prices(job: Job) -> None:
    bid = Bid.objects.get(pk=job.bid_id)
    shown = quote_cancelling(bid=bid, job=job, now=NOW).refund_micros
    market_builders.node(job.zone, ask_micros=market_builders.CELL_MICROS // 2)
    with enter_lane(zone=job.zone, now=NOW) as lane:
        # The turn knows of the cheaper node and has not been written yet.
        assert len(lane.entries) == 1
        [done] = at_once(
            [lambda: cancel_sold_job(job=job, cancelled_by=None, at_least_micros=shown, now=NOW)]
        )
    assert done.status == JobStatus.CANCELLED
    # To ask once more takes nothing away.
    cancel_sold_job(job=job, cancelled_by=None, at_least_micros=shown, now=NOW)
    assert read_paid(job) == bid.payment_micros - shown == KEPT
    [entry] = LogEntry.objects.filter(kind="CellsReleased")
    assert f'"promised":{shown}' in entry.event
    assert '"price":37500' in entry.outcome
    assert verify_zone(job.zone).problems == []


def test_an_owner_gets_what_it_was_shown_while_a_turn_of_its_zone_begins_a_cell(job: Job) -> None:
    bid = Bid.objects.get(pk=job.bid_id)
    # A tenth of the price is asks: no more would go back of a cell that runs.
    Bid.objects.update(parts=(bid.parts or {}) | {"operational": 30_000.0, "compute": 270_000.0})
    with enter_lane(zone=job.zone, now=market_builders.slot_at(job.zone, 101)):
        [done] = at_once(
            [lambda: cancel_sold_job(job=job, cancelled_by=None, at_least_micros=294_000, now=NOW)]
        )
    assert done.status == JobStatus.CANCELLED
    assert read_paid(job) == KEPT


def test_a_job_paused_and_cancelled_at_once_ends_in_one_way_and_pays_once(job: Job) -> None:
    now = market_builders.slot_at(job.zone, 101)
    found = at_once(
        [
            lambda: pause_sold_job(job=job, paused_by=None, now=now),
            lambda: cancel_sold_job(job=job, cancelled_by=None, now=now),
        ]
    )
    [refused] = [one for one in found if isinstance(one, Exception)]
    assert isinstance(refused, Conflict)
    assert refused.code == "job_ended"
    assert read_paid(job) == KEPT
    assert job.status in Job.STOPPED


def test_two_presses_at_once_buy_the_rest_of_a_paused_job_once(job: Job) -> None:
    now = market_builders.slot_at(job.zone, 101)
    pause_sold_job(job=job, paused_by=None, now=now)
    asked = NewBid(
        organisation=job.organisation,
        placed_by=builders.owner_of(job.organisation),
        zone=job.zone,
        dataset=job.dataset,
        name="the rest",
        adapter={},
        training={},
        model=f"resume:{job.pk}",
        price_micros=1_000_000,
        deadline_at=market_builders.slot_at(job.zone, 119),
        idempotency_key=None,
    )
    found = at_once([lambda: place_bid(asked=asked, now=now)] * 3)
    refused = [one for one in found if isinstance(one, Exception)]
    assert [getattr(one, "code", one) for one in refused] == ["already_resumed"] * 2
    assert Bid.objects.count() == 2
    assert get_wallet(organisation=job.organisation).held_micros == 1_000_000


def test_a_job_cancelled_while_it_is_settled_pays_once(job: Job) -> None:
    cancel_sold_job(job=job, cancelled_by=None, now=NOW)
    refresh_zone(zone=job.zone, now=NOW)
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
