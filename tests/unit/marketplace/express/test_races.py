"""Lanes and bids at the same moment: one cell is sold once, one request answered once."""

from __future__ import annotations

from collections import Counter
from datetime import timedelta

import pytest

from marketplace.auction.book.verify import verify_zone
from marketplace.auction.lane.decide import decide_pending_bids
from marketplace.auction.models import Reservation
from marketplace.auction.settlement import settle_finished
from marketplace.express.answering import answer_requests
from marketplace.express.models import ExpressRequest, RequestStatus
from marketplace.express.seat_autoscaler import keep_floor, reclaim_seats
from marketplace.express.seat_queue import bring_forward
from marketplace.jobs.models import Job
from marketplace.jobs.services import cancel_job, dispatch_slots
from marketplace.payments.ledger_checks import check_ledger
from marketplace.payments.selectors import Wallet, get_wallet
from tests import builders
from tests import market_builders as market
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
from tests.unit.marketplace.common.threads import at_once

pytestmark = pytest.mark.django_db(transaction=True)


def test_auction_and_lane_at_once_sell_no_cell_twice_and_answer_each_request_once():
    zone = zone_with_nodes()
    lane = open_lane(zone, most_seats=4)
    for _ in range(6):
        market.bid(customer(), zone, slots=10, epochs=4, price_micros=50_000_000, now=OPEN_AT)
        ask(customer(), zone, slo_s=60.0)
    results = at_once(
        [
            lambda: decide_pending_bids(zone=zone, now=OPEN_AT),
            lambda: answer_requests(zone_id=zone.pk, now=OPEN_AT),
            lambda: answer_requests(zone_id=zone.pk, now=OPEN_AT),
            lambda: keep_floor(lane, now=OPEN_AT),
            lambda: reclaim_seats(lane, now=OPEN_AT),
            lambda: bring_forward(lane, now=OPEN_AT),
        ]
    )
    assert [one for one in results if isinstance(one, Exception)] == []
    decide_pending_bids(zone=zone, now=OPEN_AT)
    sold = Counter()
    for cell in Reservation.objects.filter(released_at=None):
        sold[cell.slot, cell.node_id] += cell.samples
    assert max(sold.values()) <= 400.0
    certified = ExpressRequest.objects.filter(status=RequestStatus.ADMITTED)
    assert not ExpressRequest.objects.filter(status=RequestStatus.PENDING).exists()
    assert (
        Job.objects.filter(bid_id__in=certified.values("bid_id")).count() == certified.count() > 0
    )
    assert verify_zone(zone).problems == []


def test_one_key_sent_six_times_at_once_is_one_request_one_hold_and_one_job():
    zone = zone_with_nodes()
    open_lane(zone)
    owner = customer()
    data = market.dataset(owner, zone, rows=20)
    builders.owner_of(owner)
    found = at_once([lambda: ask(owner, zone, key="same", dataset=data)] * 6)
    assert [one for one in found if isinstance(one, Exception)] == []
    assert len({one.pk for one in found}) == 1
    request = ExpressRequest.objects.get()
    assert get_wallet(organisation=owner).held_micros == request.limit_micros
    at_once([lambda: answer_requests(zone_id=zone.pk, now=OPEN_AT)] * 3)
    request.refresh_from_db()
    assert request.status == RequestStatus.ADMITTED
    assert Job.objects.count() == 1
    wallet = get_wallet(organisation=owner)
    paid = request.answer["price_micros"]
    assert wallet == Wallet(available_micros=1_000_000_000 - paid, held_micros=0)
    assert check_ledger().balanced


def test_a_cancellation_and_the_end_of_a_job_at_once_settle_it_once():
    zone = zone_with_nodes()
    open_lane(zone)
    owner = customer()
    request = answered(ask(owner, zone))
    dispatch_slots(now=OPEN_AT)
    job = job_of(request)
    later = OPEN_AT + timedelta(seconds=3)
    at_once(
        [
            lambda: cancel_job(job=job_of(request), cancelled_by=None, now=later),
            lambda: finish(job_of(request), now=later),
        ]
    )
    results = at_once([lambda: settle_finished(now=later)] * 3)
    assert [one for one in results if isinstance(one, Exception)] == []
    job.refresh_from_db()
    price = request.answer["price_micros"]
    kept = {"cancelled": -(-price // 4), "succeeded": price}[job.status]
    assert get_wallet(organisation=owner).available_micros == 1_000_000_000 - kept
    assert check_ledger().balanced


def test_two_lanes_at_once_give_the_last_seat_to_one_of_two_requests():
    zone = zone_with_nodes(1)
    open_lane(zone, most_seats=1)
    asked = [ask(customer(), zone, slo_s=5.0) for _ in range(2)]
    results = at_once([lambda: answer_requests(zone_id=zone.pk, now=OPEN_AT)] * 2)
    assert sum(one for one in results if isinstance(one, int)) == 2
    for request in asked:
        request.refresh_from_db()
    statuses = Counter(request.status for request in asked)
    assert statuses[RequestStatus.ADMITTED] == 1
    assert Job.objects.count() == 1
    assert verify_zone(zone).problems == []
