"""The express lane: seats bought from the auction, answers in its log, and the money of both."""

from __future__ import annotations

from datetime import timedelta

import pytest
from django.db import connection
from django.test.utils import CaptureQueriesContext

from marketplace.auction.bidding.job_request import JobRequest
from marketplace.auction.book.verify import verify_zone
from marketplace.auction.lane.decide import decide_pending_bids
from marketplace.auction.lane.enter import enter_lane
from marketplace.auction.lane.sweep import decide_all_pending
from marketplace.auction.models import Bid, BidStatus, LogEntry, Reservation
from marketplace.auction.settlement import settle_finished
from marketplace.common.errors import Conflict, PaymentRequired, UserError
from marketplace.express import answering, seats
from marketplace.express.answering import answer_requests
from marketplace.express.lanes import LaneTerms, set_lane
from marketplace.express.models import ExpressLane, ExpressRequest, RequestStatus, Seat
from marketplace.express.requests import measure_express_job
from marketplace.express.seat_autoscaler import keep_floor, settle_seats
from marketplace.express.seats import load_seats
from marketplace.fleet.models import Node, NodeStatus, Provider
from marketplace.jobs.models import Job, JobStatus, Slice
from marketplace.jobs.services import dispatch_slots, sweep_leases
from marketplace.payments.ledger_checks import check_ledger
from marketplace.payments.models import Earning
from marketplace.payments.selectors import get_wallet
from tests import builders
from tests import market_builders as market
from tests.builders import NOW
from tests.express_builders import (
    ADAPTER,
    OPEN_AT,
    TRAINING,
    answered,
    ask,
    customer,
    finish,
    job_of,
    open_lane,
)

pytestmark = pytest.mark.django_db


def is_verified(zone):
    report = verify_zone(zone)
    return report.problems


def test_a_prompt_longer_than_a_seat_has_memory_for_is_refused(lane, zone, owner):
    with pytest.raises(UserError, match="a soft prompt of 100 tokens at most") as refused:
        ask(owner, zone, adapter={"virtual_tokens": 101}, sequence_length=16)
    assert (refused.value.code, refused.value.param) == (
        "too_large_for_the_lane",
        "adapter.virtual_tokens",
    )


def test_the_floor_is_bought_from_the_auction_and_opens_no_job(zone, lane):
    [seat] = Seat.objects.all()
    bid = Bid.objects.get(pk=seat.pk)
    assert (bid.status, bid.dataset_id) == (BidStatus.ADMITTED, None)
    assert 0 < bid.payment_micros < bid.price_micros
    cells = Reservation.objects.filter(bid=bid, released_at=None).order_by("slot")
    assert [cell.slot for cell in cells] == list(range(seat.first_slot, seat.last_slot + 1))
    assert not Job.objects.exists()
    lane.refresh_from_db()
    assert lane.rate_micros > 0
    # What is covered is not bid for again.
    assert keep_floor(lane, now=NOW) == 0
    assert is_verified(zone) == []


def test_a_chain_goes_on_where_it_ends_and_no_slot_is_bought_twice(zone, lane):
    [first] = Seat.objects.all()
    later = market.slot_at(zone, first.last_slot - 4)
    assert keep_floor(lane, now=later) == 1
    # Not decided yet: not bid for again.
    assert keep_floor(lane, now=later) == 0
    decide_pending_bids(zone=zone, now=later)
    second = Seat.objects.exclude(pk=first.pk).get()
    assert (second.root, second.first_slot) == (first.pk, first.last_slot + 1)
    slots = Reservation.objects.filter(released_at=None).values_list("slot", flat=True)
    assert len(set(slots)) == len(slots)
    assert keep_floor(lane, now=later) == 0
    assert is_verified(zone) == []


def test_a_job_is_certified_starts_at_once_and_pays_the_posted_price(zone, lane, owner):
    price = measure_express_job(
        JobRequest(owner, zone, market.dataset(owner, zone, rows=20), ADAPTER, TRAINING),
        now=OPEN_AT,
    ).price_micros(100.0)
    before = get_wallet(organisation=owner).available_micros
    request = answered(ask(owner, zone))
    assert request.status == RequestStatus.ADMITTED
    assert request.answer["price_micros"] == price
    assert get_wallet(organisation=owner).available_micros == before - price

    [started] = dispatch_slots(now=OPEN_AT).started
    job = Job.objects.get(pk=started)
    held = {(cell.slot, cell.node) for _, cell in load_seats(lane, now=OPEN_AT)[0].cells}
    assert {tuple(cell) for cell in job.cells} <= held
    assert job.deadline_at == OPEN_AT + timedelta(seconds=100)
    entry = LogEntry.objects.get(zone=zone, position=request.position)
    assert (entry.kind, entry.hash) == ("ExpressAnswered", request.decision_hash)
    assert is_verified(zone) == []


def test_a_second_answer_changes_nothing(zone, lane, owner):
    request = answered(ask(owner, zone))
    assert answer_requests(zone_id=zone.pk, now=OPEN_AT) == 0
    assert Job.objects.count() == 1
    assert ask(owner, zone, key=None).pk != request.pk


def test_one_key_is_one_request(zone, lane, owner):
    data = market.dataset(owner, zone, rows=20)
    first = ask(owner, zone, key="k", dataset=data)
    assert ask(owner, zone, key="k", dataset=data).pk == first.pk
    with pytest.raises(Conflict) as refused:
        ask(owner, zone, key="k", dataset=data, slo_s=90.0)
    assert refused.value.code == "idempotency_key_reused"
    assert ExpressRequest.objects.count() == 1


def test_a_taken_seat_gives_a_later_slo_or_a_no_and_everything_back(zone, lane, owner):
    answered(ask(owner, zone, slo_s=60.0))
    other = builders.organisation()
    builders.fund_wallet(other, usd="1000")
    before = get_wallet(organisation=other)
    later = answered(ask(other, zone, slo_s=16.0))
    full = answered(ask(other, zone, slo_s=4.5, key="full"))
    assert later.status == RequestStatus.OFFERED
    assert later.answer["slo_s"] == 20.0
    assert later.answer["price_micros"] < later.limit_micros
    assert full.status in (RequestStatus.OFFERED, RequestStatus.REFUSED)
    assert get_wallet(organisation=other) == before
    assert Job.objects.count() == 1
    assert is_verified(zone) == []


@pytest.mark.parametrize("slo_s", [-1.0, 0.0, 1.0, 1e9, float("nan")])
def test_an_slo_that_cannot_be_kept_is_refused_with_the_least(zone, lane, owner, slo_s):
    with pytest.raises(UserError) as refused:
        ask(owner, zone, slo_s=slo_s)
    assert (refused.value.code, refused.value.param) == ("invalid_slo", "slo_s")
    assert refused.value.extra["least_slo_s"] > 0
    assert not ExpressRequest.objects.exists()


def test_a_lora_and_an_empty_wallet_are_refused(zone, lane, owner):
    with pytest.raises(UserError) as refused:
        measure_express_job(
            JobRequest(owner, zone, market.dataset(owner, zone), {"kind": "lora"}, TRAINING),
            now=OPEN_AT,
        )
    assert refused.value.code == "not_prompt_tuning"
    with pytest.raises(PaymentRequired):
        ask(builders.organisation(), zone)
    assert not ExpressRequest.objects.exists()


def test_a_zone_without_a_lane_says_so(zone, owner):
    with pytest.raises(Conflict) as refused:
        ask(owner, zone)
    assert refused.value.code == "no_express_lane"


def test_a_price_that_rises_meanwhile_is_not_charged(zone, lane, owner):
    request = ask(owner, zone)
    ExpressLane.objects.update(rate_micros=10**9)
    assert answered(request).answer["price_micros"] == request.limit_micros
    # Nor while the job looks for its prompt and trains: the price was certified with the SLO.
    ExpressLane.objects.update(rate_micros=10**9, markup_percent=500)
    keep_floor(lane, now=OPEN_AT + timedelta(seconds=5))
    dispatch_slots(now=OPEN_AT)
    finish(Job.objects.get(bid_id=request.bid_id), now=OPEN_AT + timedelta(seconds=8))
    assert settle_finished(now=OPEN_AT + timedelta(seconds=9)) == 1
    bid = Bid.objects.get(pk=request.bid_id)
    assert (bid.payment_micros, bid.refund_micros) == (request.limit_micros, 0)


def test_a_burst_takes_unsold_cells_when_all_seats_are_taken(zone, owner):
    lane = open_lane(zone, most_seats=3)
    answered(ask(owner, zone, slo_s=60.0))
    other = builders.organisation()
    builders.fund_wallet(other, usd="1000")
    request = answered(ask(other, zone, slo_s=90.0))
    assert request.status == RequestStatus.ADMITTED
    assert Seat.objects.get(pk=request.seat_bid_id).is_burst
    assert lane.seats.count() == 2
    assert is_verified(zone) == []


def test_a_burst_that_was_refused_is_not_bid_for_again_at_once_unless_it_is_shorter(
    zone, owner, monkeypatch
):
    lane = open_lane(zone, most_seats=3)
    answered(ask(owner, zone, slo_s=60.0))
    ExpressLane.objects.update(seat_limit_micros=1)
    bursts = lane.seats.filter(is_burst=True)

    def ask_another(slo_s):
        answered(ask(customer(), zone, slo_s=slo_s))
        return list(bursts.order_by("created_at", "pk").values_list("first_slot", "last_slot"))

    assert ask_another(15.0) == [(104, 105)]
    assert Bid.objects.get(pk=bursts.get().pk).status == BidStatus.REFUSED
    assert ask_another(15.0) == [(104, 105)]
    assert sorted(ask_another(6.0)) == [(104, 104), (104, 105)]
    # More slots than were refused are not tried either.
    assert sorted(ask_another(30.0)) == [(104, 104), (104, 105)]
    monkeypatch.setattr(seats, "BURST_RETRY", timedelta(0))
    assert sorted(ask_another(6.0)) == [(104, 104), (104, 104), (104, 105)]
    assert is_verified(zone) == []


def test_one_organisation_does_not_get_all_seats(zone, owner):
    open_lane(zone, least_seats=2, most_seats=2)
    first, second = ask(owner, zone), ask(owner, zone)
    other = builders.organisation()
    builders.fund_wallet(other, usd="1000")
    third = ask(other, zone)
    answer_requests(zone_id=zone.pk, now=OPEN_AT)
    status = [ExpressRequest.objects.get(pk=one.pk).status for one in (first, second, third)]
    assert status == [RequestStatus.ADMITTED, RequestStatus.REFUSED, RequestStatus.ADMITTED]


@pytest.mark.parametrize(
    ("ends_after_s", "percent"), [(90.0, 0), (105.0, 25), (140.0, 50), (160.0, 100)]
)
def test_a_late_job_is_refunded_by_the_published_schedule(
    zone, lane, owner, ends_after_s, percent, settings
):
    # Whatever the house bore for the node's other faults today.
    settings.HOUSE_BEARS_MICROS_PER_DAY = 0
    before = get_wallet(organisation=owner).available_micros
    request = answered(ask(owner, zone))
    dispatch_slots(now=OPEN_AT)
    job = Job.objects.get(bid_id=request.bid_id)
    Slice.objects.update(lease_expires_at=OPEN_AT + timedelta(seconds=900))
    finish(job, now=OPEN_AT + timedelta(seconds=ends_after_s))
    settle_finished(now=OPEN_AT + timedelta(seconds=ends_after_s + 1))
    job.refresh_from_db()
    assert (job.status, job.settled_at is None) == (JobStatus.SUCCEEDED, False)
    price = request.answer["price_micros"]
    paid = before - get_wallet(organisation=owner).available_micros
    assert paid == price - price * percent // 100


def test_providers_are_paid_for_seats_used_or_not_once(zone, lane):
    [seat] = Seat.objects.all()
    assert settle_seats(lane, now=OPEN_AT) == 0
    over = market.slot_at(zone, seat.last_slot + 1)
    assert settle_seats(lane, now=over) == 1
    assert settle_seats(lane, now=over) == 0
    bid = Bid.objects.get(pk=seat.pk)
    due = sum(Reservation.objects.filter(bid=bid).values_list("operational_cost_micros", flat=True))
    assert sum(Earning.objects.values_list("amount_micros", flat=True)) == due > 0


@pytest.mark.parametrize(("ends_after_s", "percent"), [(90.0, 0), (105.0, 25), (160.0, 100)])
def test_a_seat_pays_less_by_what_its_provider_cost_the_owner_of_a_late_job(
    zone, lane, owner, ends_after_s, percent
):
    request = answered(ask(owner, zone))
    dispatch_slots(now=OPEN_AT)
    job = job_of(request)
    Slice.objects.update(lease_expires_at=OPEN_AT + timedelta(seconds=900))
    seat = Seat.objects.get(first_slot__lte=job.cells[0][0], last_slot__gte=job.cells[-1][0])
    over = max(market.slot_at(zone, seat.last_slot + 1), OPEN_AT + timedelta(seconds=170))
    # Its money waits for that of the job.
    assert settle_seats(lane, now=over) == 0
    finish(job, now=OPEN_AT + timedelta(seconds=ends_after_s))
    settle_finished(now=OPEN_AT + timedelta(seconds=ends_after_s + 1))
    assert settle_seats(lane, now=over) == 1
    bid = Bid.objects.get(pk=seat.pk)
    due = sum(Reservation.objects.filter(bid=bid).values_list("operational_cost_micros", flat=True))
    returned = request.answer["price_micros"] * percent // 100
    assert sum(Earning.objects.values_list("amount_micros", flat=True)) == due - min(due, returned)
    assert check_ledger().balanced


def test_an_altered_answer_is_found(zone, lane, owner):
    request = answered(ask(owner, zone))
    Bid.objects.filter(pk=request.bid_id).update(slo_s=5.0)
    assert any("the bid says" in problem for problem in is_verified(zone))


def test_a_lane_that_dies_in_an_answer_has_answered_nothing(zone, lane, owner, monkeypatch):
    request = ask(owner, zone)
    entries = LogEntry.objects.count()

    def die(**_):
        raise RuntimeError("killed")

    with monkeypatch.context() as broken:
        broken.setattr(answering, "settle_holds", die)
        with pytest.raises(RuntimeError, match="killed"):
            answer_requests(zone_id=zone.pk, now=OPEN_AT)
    request.refresh_from_db()
    assert request.status == RequestStatus.PENDING
    assert not Job.objects.exists()
    assert not Bid.objects.filter(pk=request.planned_bid_id).exists()
    assert LogEntry.objects.filter(kind="ExpressAnswered").count() == 0
    assert LogEntry.objects.count() >= entries
    assert answered(request).status == RequestStatus.ADMITTED
    assert Job.objects.count() == 1
    assert is_verified(zone) == []


def test_a_job_whose_node_dies_is_planned_again_at_no_cost(zone, lane, owner):
    request = answered(ask(owner, zone))
    dispatch_slots(now=OPEN_AT)
    job = Job.objects.get(bid_id=request.bid_id)
    lost = job.cells[0][1]
    paid = get_wallet(organisation=owner)
    Node.objects.filter(pk=lost).update(status=NodeStatus.OFFLINE)
    later = OPEN_AT + timedelta(seconds=2)
    sweep_leases(now=later)
    with enter_lane(zone=zone, now=later):
        pass
    job.refresh_from_db()
    assert not job.needs_replan
    ahead = [node for slot, node in job.cells if slot > 103]
    assert ahead
    assert lost not in ahead
    assert get_wallet(organisation=owner) == paid
    assert is_verified(zone) == []


def test_a_request_waits_for_one_batch_of_bids_and_not_for_a_crowd_of_them(zone, lane, owner):
    request = ask(owner, zone)
    market.bid(customer(), zone, now=OPEN_AT)
    assert decide_all_pending(zone_id=zone.pk, clock=lambda: OPEN_AT) == 1
    request.refresh_from_db()
    assert request.status == RequestStatus.ADMITTED
    assert is_verified(zone) == []


def test_bids_go_on_where_the_lane_between_them_fails(zone, lane, owner, monkeypatch):
    request = ask(owner, zone)

    def fail(**_):
        raise RuntimeError("broken")

    with monkeypatch.context() as broken:
        broken.setattr(answering, "settle_holds", fail)
        for _ in range(2):
            bid = market.bid(customer(), zone, now=OPEN_AT)
            assert decide_all_pending(zone_id=zone.pk, clock=lambda: OPEN_AT) == 1
            assert Bid.objects.get(pk=bid.pk).status != BidStatus.PENDING
    request.refresh_from_db()
    assert request.status == RequestStatus.PENDING
    assert answered(request).status == RequestStatus.ADMITTED


def test_an_answer_looks_at_the_seats_once(zone, lane, owner):
    for _ in range(3):
        ask(owner, zone, slo_s=5.0)
    answer_requests(zone_id=zone.pk, now=OPEN_AT)
    ask(owner, zone, slo_s=5.0)
    with CaptureQueriesContext(connection) as sent:
        assert answer_requests(zone_id=zone.pk, now=OPEN_AT) == 1
    asked = [one["sql"] for one in sent.captured_queries]
    assert sum('FROM "express_seat"' in sql for sql in asked) == 1
    # The job's row, and on the way in jobs that ended and those that need another plan.
    assert sum("jobs_job" in sql for sql in asked) == 3


def test_a_job_for_verified_providers_sits_only_in_a_lane_that_buys_their_slots(zone, owner):
    Provider.objects.update(verified_at=NOW)
    lane = open_lane(zone)
    with pytest.raises(Conflict) as refused:
        ask(owner, zone, verified_only=True)
    assert refused.value.code == "lane_not_verified"
    # A lane that will buy such seats still has the others.
    ExpressLane.objects.update(verified_only=True)
    owner.verified_only = True
    owner.save()
    with pytest.raises(Conflict):
        ask(owner, zone)
    Bid.objects.filter(pk__in=Seat.objects.filter(lane=lane).values("bid_id")).update(
        verified_only=True
    )
    request = answered(ask(owner, zone))
    assert request.status == RequestStatus.ADMITTED
    assert (Bid.objects.get(pk=request.bid_id).verified_only, request.verified_only) == (True, True)
    assert Job.objects.get(bid_id=request.bid_id).verified_only
    buyer = lane.organisation
    terms = LaneTerms(
        is_open=True,
        least_seats=1,
        most_seats=1,
        seat_limit_micros=20_000_000,
        budget_micros_per_h=10**12,
        slo_max_s=150.0,
    )
    with pytest.raises(UserError, match="Jobs that ask for verified providers are in the lane"):
        set_lane(zone=zone, organisation=buyer, terms=terms)
    Job.objects.filter(bid_id=request.bid_id).update(status="cancelled", finished_at=OPEN_AT)
    assert not set_lane(zone=zone, organisation=buyer, terms=terms).verified_only


def test_seats_of_a_lane_for_verified_providers_are_bid_for_so(zone):
    Node.objects.filter(zone=zone).update(ask_micros=1)
    known = market.node(zone, last_heartbeat_at=OPEN_AT)
    Provider.objects.filter(pk=known.provider_id).update(verified_at=NOW)
    open_lane(zone, verified_only=True)
    bids = Bid.objects.filter(pk__in=Seat.objects.values("bid_id"))
    assert {bid.verified_only for bid in bids} == {True}
    assert {node for bid in bids for _, node in bid.cells} == {known.pk}
    assert is_verified(zone) == []
