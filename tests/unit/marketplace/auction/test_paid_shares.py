"""Which share of its price a job pays that bought cells which another had given back.

The owner who gave them back gets its rent by that share, and the cells' provider what it asks for
the rest. So it has to be right however the buyer ends, also where it holds no cell to come.
"""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import replace
from datetime import datetime
from fractions import Fraction

import pytest
from django.db.models import Q

from marketplace.accounts.models import Organisation
from marketplace.auction import endings
from marketplace.auction.bidding.bundles import NewBundle, place_bundle
from marketplace.auction.book.reservations import release_reservations
from marketplace.auction.cancelling import cancel_sold_job
from marketplace.auction.lane import ended_jobs
from marketplace.auction.lane.decide import decide_pending_bids
from marketplace.auction.lane.enter import enter_lane
from marketplace.auction.lane.plan_changes import PlannedJob, measure_work_left, move_plans
from marketplace.auction.models import Bid, LogEntry, Reservation
from marketplace.auction.resold import settle_rents
from marketplace.auction.settlement import settle_finished
from marketplace.fleet.models import Node, Zone
from marketplace.jobs.models import FaultOf, Job
from marketplace.jobs.services import dispatch_slots, fail_job
from scheduler.auction.joint.least_laxity import JointPlan
from scheduler.auction.log import events
from scheduler.types import Cell
from tests import builders
from tests import market_builders as market
from tests.builders import NOW
from tests.unit.marketplace.auction.test_resold import (
    WAITS,
    begin,
    buy_all,
    cancel_rented,
    check_books,
    check_log,
    sold,
)
from workers.protocol.reports import SliceEnd

pytestmark = pytest.mark.django_db

#: Of each of the three cells that were given back, what waits.
RENT = WAITS // 3
#: Of the buyer's 36 steps, those that it does in its first cell, and then.
DONE, IN_101 = 12, 101


@pytest.fixture
def zone() -> Zone:
    return market.zone()


@pytest.fixture
def owner() -> Organisation:
    return builders.organisation(usd="10")


@pytest.fixture
def given_back(zone: Zone, owner: Organisation) -> Bid:
    """A job's three cells, slots 101 to 103, a quarter of their node each."""
    bid, _ = cancel_rented(zone, owner)
    settle_finished(now=NOW)
    return bid


@pytest.fixture
def buyer(given_back: Bid, zone: Zone, owner: Organisation) -> Job:
    """One of four who fill the node, and whose work the market has moved to another's."""
    buy_all(owner, zone)
    job = Job.objects.filter(finished_at=None).order_by("pk").first()
    assert job is not None
    move(job, Cell(101, market.node(zone).pk))
    return job


def move(job: Job, *cells: Cell) -> None:
    """Move a job to these cells alone; without any it is given up."""
    with enter_lane(zone=job.zone, now=NOW) as lane:
        bid = Bid.objects.get(pk=job.bid_id)
        promise = measure_work_left(zone=job.zone, job=job, bid=bid)
        promise = replace(promise, compute_demand=100.0 * len(cells))
        moved = events.PlanMove(
            bid.pk, promise.deadline_slot, 100.0 * len(cells), 2.0, promise.rates, cells
        )
        plan = JointPlan((moved,), 1) if cells else JointPlan((), 0, (bid.pk,))
        move_plans(lane, plan, [PlannedJob(job, bid, promise)], explain=lambda _: "Moved.")


def run(zone: Zone) -> datetime:
    """Let slot 101 begin, in which the jobs run; a moment in it."""
    begin(zone, IN_101)
    now = market.slot_at(zone, IN_101)
    Node.objects.update(last_heartbeat_at=now)
    dispatch_slots(now=now)
    return now


def said(job: Job) -> list[float]:
    """What the log says of a job's price, entry by entry."""
    found = LogEntry.objects.filter(kind="CellsReleased").order_by("position")
    of_job = [event for one in found if (event := json.loads(one.event))["task_id"] == job.bid_id]
    return [event.get("paid_share", 0.0) for event in of_job]


def find_rent_back(bid: Bid, zone: Zone) -> list[int]:
    """What goes back of each of the cells once all have begun."""
    begin(zone, *range(IN_101, 104))
    now = market.slot_at(zone, 103)
    settle_finished(now=now)
    assert settle_rents(now=now) >= 1
    cells = Reservation.objects.filter(bid=bid).order_by("slot")
    assert set(cells.values_list("waited_micros", flat=True)) == {RENT}
    found = list(cells.values_list("resold_micros", flat=True))
    assert Bid.objects.get(pk=bid.pk).refund_micros == WAITS + sum(found)
    check_books()
    check_log(zone)
    return found


def _finish(job: Job, now: datetime) -> None:
    market.end_slice(job, status=SliceEnd.FINISHED, now=now)


def _cancel(job: Job, now: datetime) -> None:
    market.end_slice(job, status=SliceEnd.PAUSED, step=DONE, now=now)
    cancel_sold_job(job=job, cancelled_by=None, now=now)


def _diverge(job: Job, now: datetime) -> None:
    market.end_slice(job, status=SliceEnd.PAUSED, step=DONE, now=now)
    fail_job(job=job, fault=FaultOf.USER, reason="It diverged.", now=now)


def _be_failed(job: Job, now: datetime) -> None:
    market.end_slice(job, status=SliceEnd.PAUSED, step=DONE, now=now)
    fail_job(job=job, fault=FaultOf.SYSTEM, reason="It is gone.", now=now)


#: Of 270 units 90 are done, and the cell that runs has room for 100 of the others.
LEFT = Fraction(90 + 100, 270)


@pytest.mark.parametrize(
    ("end", "share"),
    [(_finish, 1), (_cancel, LEFT), (_diverge, LEFT), (_be_failed, 0)],
)
def test_a_buyer_without_a_cell_to_come_pays_by_how_it_ended(
    given_back: Bid, buyer: Job, zone: Zone, end: Callable[[Job, datetime], None], share: Fraction
) -> None:
    end(buyer, run(zone))
    back = find_rent_back(given_back, zone)
    assert said(buyer) == [float(share)]
    # Its own slot's cell was sold as it began; of the others so much is paid.
    assert back == [RENT, *[int(RENT * share)] * 2]


def test_a_buyer_that_the_market_fails_before_its_cells_pays_for_none(
    given_back: Bid, buyer: Job, zone: Zone
) -> None:
    move(buyer)
    fail_job(job=buyer, fault=FaultOf.SYSTEM, reason="No plan is left.", now=NOW)
    assert find_rent_back(given_back, zone) == [0, 0, 0]
    assert said(buyer) == [0.0]


def test_a_buyer_that_the_market_fails_after_its_end_pays_for_no_later_cell(
    given_back: Bid, buyer: Job, zone: Zone, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its result was measured again, and is worse than its node said."""
    _finish(buyer, run(zone))
    begin(zone, 102)
    node = market.node(zone)
    provider = node.provider.organisation_id
    monkeypatch.setattr(
        endings, "find_refuted_organisation", lambda job: provider if job == buyer else None
    )
    assert find_rent_back(given_back, zone) == [RENT, RENT, 0]
    assert said(buyer) == [1.0, 0.0]


def test_a_buyer_that_spared_a_cell_and_is_cancelled_pays_for_it_by_what_was_done(
    given_back: Bid, zone: Zone, owner: Organisation
) -> None:
    buy_all(owner, zone)
    job = Job.objects.filter(finished_at=None).order_by("pk").first()
    assert job is not None
    now = run(zone)
    with enter_lane(zone=zone, now=now) as lane:
        spare = Reservation.objects.get(bid_id=job.bid_id, slot=103)
        lane.apply(events.CellsReleased(job.bid_id, (Cell(103, spare.node_id),), paid_share=1.0))
        release_reservations(bid_id=job.bid_id, which=Q(pk=spare.pk), now=now)
    _cancel(job, now)
    # Of slot 102 two gave a quarter back, and one of these is sold.
    assert find_rent_back(given_back, zone) == [RENT, RENT // 2, RENT // 2]
    # Of 180 units that are left, 135 are not for the cell that runs.
    assert said(job) == [1.0, 0.5]


def test_a_job_of_a_bundle_that_the_market_fails_pays_for_none_and_the_others_for_all(
    given_back: Bid, zone: Zone, owner: Organisation
) -> None:
    terms = market.job_terms(epochs=3)
    place_bundle(
        asked=NewBundle(
            organisation=owner,
            placed_by=builders.owner_of(owner),
            zone=zone,
            dataset=market.dataset(owner, zone),
            name="a sweep",
            sweep={"training.seed": [1, 2, 3, 4]},
            all_or_none=True,
            price_micros=9_000_000,
            deadline_at=market.slot_at(zone, 104),
            idempotency_key=None,
            **terms,
        ),
        now=NOW,
    )
    decide_pending_bids(zone=zone, now=NOW)
    job, *others = Job.objects.filter(finished_at=None).order_by("pk")
    assert len(others) == 3
    move(job, Cell(101, market.node(zone).pk))
    _be_failed(job, run(zone))
    assert find_rent_back(given_back, zone) == [RENT, 0, 0]
    assert [said(one) for one in (job, *others)] == [[0.0], [], [], []]


def test_each_end_is_said_once_however_many_turns_follow(
    given_back: Bid, buyer: Job, zone: Zone
) -> None:
    now = run(zone)
    _finish(buyer, now)
    for _ in range(3):
        begin(zone, IN_101)
    assert said(buyer) == [1.0]


def test_a_turn_without_time_says_first_what_buyers_pay(
    given_back: Bid, zone: Zone, owner: Organisation, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Else a job that the market failed would count as one that goes on as a slot begins."""
    buy_all(owner, zone)
    other, _ = sold(owner, zone, slots=8)
    buyers = list(Job.objects.filter(finished_at=None).exclude(bid_id=other.pk))
    monkeypatch.setattr(ended_jobs, "RELEASE_FOR_S", 0.0)
    for job in (Job.objects.get(bid_id=other.pk), *buyers):
        fail_job(job=job, fault=FaultOf.SYSTEM, reason="It is gone.", now=NOW)
    begin(zone, IN_101)
    assert [said(job) for job in buyers] == [[0.0]] * 4
    assert said(Job.objects.get(bid_id=other.pk)) == []
