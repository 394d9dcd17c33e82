"""Machines rented for an express lane that is sold out, within its operator's budget."""

from __future__ import annotations

from collections import Counter
from datetime import timedelta

import pytest

from marketplace.auction.book.verify import verify_zone
from marketplace.auction.lane.decide import decide_pending_bids
from marketplace.auction.models import Bid, BidStatus, Reservation
from marketplace.express.models import ExpressLane, ExpressRequest, RequestStatus, Seat
from marketplace.fleet.models import Node, Zone
from marketplace.jobs.models import JobStatus, Slice
from marketplace.jobs.services import dispatch_slots
from marketplace.tiers.machines import compute_ask_micros
from marketplace.tiers.models import Machine, ZoneTiers
from marketplace.tiers.services import run_tier_tick
from tests import express_builders as build
from tests import market_builders as market
from tests.express_builders import OPEN_AT
from tests.unit.marketplace.tiers.backends import CHEAP, MemoryBackend, tiers

pytestmark = pytest.mark.django_db
#: When somebody has been told no for long enough to count in the lane's demand.
LATER = OPEN_AT + timedelta(seconds=10)


@pytest.fixture
def zone(db: None) -> Zone:
    made = build.zone_with_nodes(1)
    made.jobs_per_node = 1
    made.save()
    return made


@pytest.fixture
def house(zone: Zone, backend: MemoryBackend) -> ZoneTiers:
    return tiers(zone, serverless_cap=0)


@pytest.fixture
def lane(zone: Zone, house: ZoneTiers) -> ExpressLane:
    """A lane whose one seat is all that the zone has to sell."""
    return build.open_lane(zone, most_seats=2)


def turn_somebody_away(zone: Zone) -> None:
    """Two customers want the lane's one seat at once; the second is offered a later SLO."""
    for owner in (build.customer(), build.customer()):
        build.answered(build.ask(owner, zone, slo_s=12.0))
    statuses = set(ExpressRequest.objects.values_list("status", flat=True))
    assert statuses != {RequestStatus.ADMITTED}


def test_a_lane_that_is_sold_out_gets_one_machine_however_often_it_is_looked_at(zone, lane):
    run_tier_tick(now=OPEN_AT)
    assert not Machine.objects.exists()
    turn_somebody_away(zone)
    for _ in range(2):
        run_tier_tick(now=LATER)
    machine = Machine.objects.get()
    assert (machine.offer, machine.reason) == (CHEAP.name, "The express lane lacks seats.")


@pytest.mark.parametrize(
    "terms",
    [
        {"budget_micros_per_h": 1},
        {"most_seats": 1},
        {"is_open": False},
    ],
)
def test_a_lane_without_budget_bounds_or_leave_rents_nothing(zone, lane, terms):
    turn_somebody_away(zone)
    ExpressLane.objects.update(**terms)
    run_tier_tick(now=LATER)
    assert not Machine.objects.exists()


def test_a_machine_that_costs_more_than_a_seat_may_is_not_rented(zone, lane):
    turn_somebody_away(zone)
    dear = compute_ask_micros(zone, CHEAP.price_micros_per_h)
    ExpressLane.objects.update(seat_limit_micros=dear - 1)
    run_tier_tick(now=LATER)
    assert not Machine.objects.exists()
    ExpressLane.objects.update(seat_limit_micros=dear)
    run_tier_tick(now=LATER)
    assert Machine.objects.count() == 1


def test_the_lane_buys_a_rented_machines_cells_and_serves_a_job_there(zone, lane, backend):
    turn_somebody_away(zone)
    run_tier_tick(now=LATER)
    rented = backend.join(backend.only(), now=LATER)
    # As fast as the zone's own node: the zone sells its type at that rate.
    Node.objects.update(compute_capacity=400.0)
    run_tier_tick(now=LATER)

    # One seat keeps one of two such SLOs.
    asked = [build.ask(build.customer(), zone, slo_s=30.0, now=LATER) for _ in range(2)]
    build.answered(asked[0], now=LATER)
    # A bid that wants the same cells gets none that the lane has.
    rival = market.bid(build.customer(), zone, slots=2, price_micros=50_000_000, now=LATER)
    decide_pending_bids(zone=zone, now=LATER)
    asked[1].refresh_from_db()
    assert {request.status for request in asked} == {RequestStatus.ADMITTED}
    jobs = [build.job_of(request) for request in asked]
    [job] = [job for job in jobs if job.cells[0][1] == rented.pk]
    assert Seat.objects.get(pk=ExpressRequest.objects.get(bid_id=job.bid_id).seat_bid_id).is_burst
    assert {node for _, node in job.cells} == {rented.pk}
    assert Bid.objects.get(pk=rival.pk).status != BidStatus.PENDING

    begins = market.slot_at(zone, job.cells[0][0])
    Node.objects.update(last_heartbeat_at=begins)
    assert job.pk in dispatch_slots(now=begins).started
    assert Slice.objects.get(job=job).node_id == rented.pk
    build.finish(job, now=begins + timedelta(seconds=4))
    job.refresh_from_db()
    assert job.status == JobStatus.SUCCEEDED

    sold = Counter(Reservation.objects.filter(released_at=None).values_list("slot", "node_id"))
    assert set(sold.values()) == {1}
    assert verify_zone(zone).problems == []
