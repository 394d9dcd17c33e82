"""The floor against those who would play with it: idle seats, floods of requests, free seats."""

from __future__ import annotations

from datetime import timedelta

import pytest

from marketplace.auction.book.verify import verify_zone
from marketplace.auction.cancelling import cancel_sold_job
from marketplace.auction.lane.decide import decide_pending_bids
from marketplace.auction.lane.sweep import refresh_zone
from marketplace.auction.models import Bid, Reservation
from marketplace.auction.settlement import settle_finished
from marketplace.common.errors import UserError
from marketplace.express.answering import answer_requests
from marketplace.express.fair_share import find_share
from marketplace.express.models import ExpressRequest, RequestStatus, Seat
from marketplace.express.requests import PENDING_MAX
from marketplace.express.seat_autoscaler import list_demand, reclaim_seats, settle_seats
from marketplace.express.selectors import summarize_lanes
from marketplace.fleet.models import Node
from marketplace.jobs.models import Job
from marketplace.jobs.services import cancel_job, dispatch_slots
from marketplace.payments.models import Earning
from marketplace.payments.selectors import get_wallet
from tests import market_builders as market
from tests.builders import NOW
from tests.express_builders import (
    OPEN_AT,
    answered,
    ask,
    customer,
    finish,
    job_of,
    open_lane,
    zone_with_nodes,
)
from tests.unit.marketplace.auction.test_resold import check_log

pytestmark = pytest.mark.django_db


def after(seconds):
    return OPEN_AT + timedelta(seconds=seconds)


@pytest.fixture
def burst(zone, owner):
    """A lane of one seat with a burst of another, bought while the first was taken."""
    lane = open_lane(zone, most_seats=2)
    answered(ask(owner, zone, slo_s=60.0))
    request = answered(ask(customer(), zone, slo_s=60.0), now=after(0))
    [seat] = Seat.objects.filter(lane=lane, is_burst=True)
    assert request.seat_bid_id == seat.pk
    return lane, request, seat


def test_a_seat_above_the_floor_goes_back_on_sale_after_ten_seconds_without_work(burst):
    lane, request, seat = burst
    dispatch_slots(now=after(10))
    # At work, it stays.
    assert reclaim_seats(lane, now=after(11)) == 0
    finish(job_of(request), now=after(12))
    assert reclaim_seats(lane, now=after(21)) == 0
    lane.floor_seats = 2
    assert reclaim_seats(lane, now=after(23)) == 0
    lane.floor_seats = 1
    assert reclaim_seats(lane, now=after(23)) == 1
    assert reclaim_seats(lane, now=after(24)) == 0
    coming = Reservation.objects.filter(bid_id=seat.pk, slot__gt=105)
    assert coming.exists()
    assert not coming.filter(released_at=None).exists()
    assert verify_zone(lane.zone).problems == []


def test_what_given_back_cells_cost_returns_to_the_lane_and_providers_get_the_rest(burst):
    lane, request, seat = burst
    dispatch_slots(now=after(10))
    finish(job_of(request), now=after(12))
    reclaim_seats(lane, now=after(23))
    before = get_wallet(organisation=lane.organisation).available_micros
    assert settle_seats(lane, now=after(60)) == 1
    costs = dict(
        Reservation.objects.filter(bid_id=seat.pk).values_list("slot", "operational_cost_micros")
    )
    kept = Reservation.objects.filter(bid_id=seat.pk, released_at=None)
    used = sum(costs[slot] for slot in kept.values_list("slot", flat=True))
    returned = sum(costs.values()) - used
    assert get_wallet(organisation=lane.organisation).available_micros == before + returned
    assert sum(Earning.objects.values_list("amount_micros", flat=True)) == used
    assert Bid.objects.get(pk=seat.pk).refund_micros == returned > 0


def test_cells_that_a_lane_bought_of_an_owner_and_gives_back_stay_paid_for(owner):
    """Of such a seat only the operational cost returns; nobody else could buy its cells meanwhile.

    So an owner that gave them back before has the rent of them all the same.
    """
    zone = zone_with_nodes(1)
    market.price_rent(zone, Node.objects.get())
    bid = market.bid(owner, zone, epochs=4)
    decide_pending_bids(zone=zone, now=NOW)
    cancel_sold_job(job=Job.objects.get(bid_id=bid.pk), cancelled_by=None, now=NOW)
    settle_finished(now=NOW)
    # Four seats fill the node.
    lane = open_lane(zone, least_seats=4, most_seats=4)
    assert set(Seat.objects.values_list("first_slot", flat=True)) == {102}
    lane.floor_seats = 0
    assert reclaim_seats(lane, now=market.slot_at(zone, 103)) == 4
    assert not Reservation.objects.filter(slot=104, released_at=None).exists()
    refresh_zone(zone=zone, now=market.slot_at(zone, 104))
    cells = Reservation.objects.filter(bid=bid).order_by("slot")
    waited = [(101, 98_000, 0), *((slot, 98_000, 98_000) for slot in (102, 103, 104))]
    assert list(cells.values_list("slot", "waited_micros", "resold_micros")) == waited
    check_log(zone)


def test_what_a_lane_costs_in_an_hour_is_what_its_seats_cost_a_slot(zone, lane):
    [seat] = Seat.objects.all()
    slots = seat.last_slot - seat.first_slot + 1
    [found] = summarize_lanes(now=OPEN_AT)
    paid = Bid.objects.get(pk=seat.pk).payment_micros
    assert (found.seats, found.cost_micros) == (1, paid)
    assert found.hourly_micros == round(paid / slots * 360)


def test_a_flood_of_one_organisation_counts_as_its_share_of_demand(zone, owner):
    lane = open_lane(zone, most_seats=6)
    for _ in range(PENDING_MAX):
        ask(owner, zone, slo_s=6.0)
    with pytest.raises(UserError) as refused:
        ask(owner, zone, slo_s=6.0)
    assert (refused.value.code, refused.value.status) == ("too_many_requests", 429)
    before = get_wallet(organisation=owner)
    assert answer_requests(zone_id=zone.pk, now=OPEN_AT) == PENDING_MAX
    assert max(list_demand(lane, now=OPEN_AT)) == find_share(6) == 3
    # Nor does it buy more than its share ahead of others.
    assert lane.seats.count() <= 3
    told_no = ExpressRequest.objects.exclude(status=RequestStatus.ADMITTED)
    assert told_no.count() >= PENDING_MAX - 3
    assert get_wallet(organisation=owner).held_micros == 0 < before.held_micros


def test_a_seat_that_was_held_is_paid_for_in_part_when_its_owner_cancels(zone, lane, owner):
    before = get_wallet(organisation=owner).available_micros
    request = answered(ask(owner, zone))
    cancel_job(job=job_of(request), cancelled_by=None, now=after(1))
    settle_finished(now=after(2))
    price = request.answer["price_micros"]
    assert before - get_wallet(organisation=owner).available_micros == -(-price // 4)


@pytest.mark.parametrize("skew_s", [-5.0, 5.0])
def test_a_lane_whose_clock_is_off_by_seconds_certifies_by_the_clock_of_the_request(
    zone, lane, owner, skew_s
):
    request = answered(ask(owner, zone, now=after(5)), now=after(5 + skew_s))
    assert request.status == RequestStatus.ADMITTED
    assert job_of(request).deadline_at == after(105)
    assert job_of(request).last_slot == market_slot(zone, after(105))
    assert verify_zone(zone).problems == []


def test_a_request_answered_after_its_deadline_is_refused_and_costs_nothing(zone, lane, owner):
    before = get_wallet(organisation=owner)
    request = ask(owner, zone, slo_s=10.0)
    assert answered(request, now=after(30)).status != RequestStatus.ADMITTED
    assert get_wallet(organisation=owner) == before


def market_slot(zone, at):
    return int((at - zone.epoch_at).total_seconds() // market.SLOT_S)


def test_a_bid_in_the_auction_never_gets_a_cell_of_a_seat(zone, lane, owner):
    held = set(Reservation.objects.filter(bid__dataset=None).values_list("slot", "node_id"))
    # Bids for all that a node can do at once, in every slot of the horizon.
    for _ in range(12):
        market.bid(customer(), zone, slots=10, epochs=4, price_micros=50_000_000, now=OPEN_AT)
    decide_pending_bids(zone=zone, now=OPEN_AT)
    answered(ask(owner, zone))
    full = {}
    for cell in Reservation.objects.filter(released_at=None):
        full[cell.slot, cell.node_id] = full.get((cell.slot, cell.node_id), 0) + cell.samples
    assert max(full.values()) <= 400.0
    assert held <= full.keys()
    assert verify_zone(zone).problems == []
