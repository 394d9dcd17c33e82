"""A job on several seats of one node: sold where one seat would not end it in time."""

from __future__ import annotations

from collections import Counter
from datetime import timedelta

import pytest

from marketplace.auction.bidding.job_request import JobRequest
from marketplace.auction.book.verify import verify_zone
from marketplace.auction.models import Bid
from marketplace.auction.settlement import settle_finished
from marketplace.express.models import GangSeat, RequestStatus, Seat
from marketplace.express.previews import list_slo_previews
from marketplace.express.requests import measure_express_job
from marketplace.express.seats import load_lane_state, load_seats
from marketplace.jobs.services import dispatch_slots
from tests import market_builders as market
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
    zone_with_nodes,
)

pytestmark = pytest.mark.django_db
#: Between what a job takes on one seat, 4.25 s, and on two, 2 s and three quarters of the rest.
TIGHT_S = 4.0


@pytest.fixture
def zone():
    """One node of four places, all of them the lane's; an organisation may have two."""
    return zone_with_nodes(1)


@pytest.fixture
def lane(zone):
    return open_lane(zone, least_seats=4, most_seats=4)


def test_a_tight_slo_gets_two_seats_of_the_node_and_pays_for_both(zone, lane):
    owner = customer()
    terms = measure_express_job(
        JobRequest(owner, zone, market.dataset(owner, zone, rows=20), ADAPTER, TRAINING),
        now=OPEN_AT,
    )
    assert terms.least_slo_s == 3.6875
    request = answered(ask(owner, zone, slo_s=TIGHT_S))
    assert (request.status, len(request.answer["seats"])) == (RequestStatus.ADMITTED, 2)
    rate = terms.posted["rate_micros"]
    assert request.answer["price_micros"] == pytest.approx(rate * 2 * 3.6875 * 1.5, abs=1)
    assert Bid.objects.get(pk=request.bid_id).payment_micros == terms.price_micros(TIGHT_S)
    assert load_lane_state(lane, now=OPEN_AT).held[owner.pk] == 2
    busy = [seat for seat in load_seats(lane, now=OPEN_AT) if seat.idle_since is None]
    assert len(busy) == 2
    job = job_of(request)
    assert len({tuple(cell) for cell in job.cells}) == len(job.cells)
    assert dispatch_slots(now=OPEN_AT).started == (job.pk,)
    assert verify_zone(zone).problems == []


def test_other_jobs_sit_on_other_seats_or_wait_until_the_gang_has_ended(zone, lane):
    gang = answered(ask(customer(), zone, slo_s=TIGHT_S))
    others = [answered(ask(customer(), zone, slo_s=60.0)) for _ in range(4)]
    assert {one.status for one in others} == {RequestStatus.ADMITTED}
    places = Counter()
    for request in (gang, *others):
        for slot, _ in job_of(request).cells:
            places[slot] += 1 + GangSeat.objects.filter(request=request).count()
    assert max(places.values()) <= 4
    assert verify_zone(zone).problems == []


def test_a_gang_is_no_larger_than_an_organisations_share(zone, lane):
    owner = customer()
    answered(ask(owner, zone, slo_s=60.0))
    second = answered(ask(owner, zone, slo_s=TIGHT_S))
    # One seat of its two is taken.
    assert second.status == RequestStatus.OFFERED
    assert not GangSeat.objects.exists()


def test_a_gang_that_ended_frees_all_its_seats_and_is_settled_once(zone, lane):
    request = answered(ask(customer(), zone, slo_s=TIGHT_S))
    dispatch_slots(now=OPEN_AT)
    finish(job_of(request), now=OPEN_AT + timedelta(seconds=3))
    after = OPEN_AT + timedelta(seconds=4)
    assert settle_finished(now=after) == 1
    assert settle_finished(now=after) == 0
    assert [seat.idle_since is None for seat in load_seats(lane, now=after)] == [False] * 4
    assert Bid.objects.get(pk=request.bid_id).refund_micros == 0
    assert verify_zone(zone).problems == []


def test_the_form_previews_what_a_gang_keeps(zone, lane):
    owner = customer()
    terms = measure_express_job(
        JobRequest(owner, zone, market.dataset(owner, zone, rows=20), ADAPTER, TRAINING),
        now=OPEN_AT,
    )
    first, second = list_slo_previews(terms, organisation=owner, now=OPEN_AT)[:2]
    assert (first.slo_s, first.is_certain) == (4, True)
    assert first.price_micros > second.price_micros
    assert Seat.objects.count() == 4
