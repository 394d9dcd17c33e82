"""Jobs that wait for a seat: earliest deadline first, sooner where a seat comes free."""

from __future__ import annotations

from datetime import timedelta

import pytest

from marketplace.auction.book.verify import verify_zone
from marketplace.auction.models import LogEntry
from marketplace.express import seat_queue
from marketplace.express.models import RequestStatus
from marketplace.express.seat_queue import bring_forward
from marketplace.express.seats import load_seats
from marketplace.jobs.models import Job, JobStatus
from marketplace.jobs.services import dispatch_slots
from tests.express_builders import OPEN_AT, answered, ask, customer, finish, job_of

pytestmark = pytest.mark.django_db


def slots_of(request):
    return [slot for slot, _ in job_of(request).cells]


def after(seconds):
    return OPEN_AT + timedelta(seconds=seconds)


@pytest.fixture
def first(zone, lane, owner):
    """A job at work on the only seat, from slot 103 on."""
    made = answered(ask(owner, zone))
    dispatch_slots(now=OPEN_AT)
    return made


def test_a_second_job_waits_for_the_seat_and_no_slot_has_two_jobs(zone, first):
    second = answered(ask(customer(), zone, slo_s=60.0))
    assert second.status == RequestStatus.ADMITTED
    # The first ends in its slot; the next job there begins in a later one.
    assert slots_of(first) == [103]
    assert slots_of(second)[0] == 104
    assert dispatch_slots(now=OPEN_AT).started == ()
    assert verify_zone(zone).problems == []


def test_an_earlier_deadline_goes_before_a_job_that_waits(zone, first):
    patient = answered(ask(customer(), zone, slo_s=100.0))
    urgent = answered(ask(customer(), zone, slo_s=20.0))
    assert urgent.status == RequestStatus.ADMITTED
    assert slots_of(urgent)[0] == 104
    assert slots_of(patient)[0] > slots_of(urgent)[-1]
    # What was certified stands.
    assert job_of(patient).deadline_at == OPEN_AT + timedelta(seconds=100)
    assert patient.answer["slo_s"] == 100.0
    assert verify_zone(zone).problems == []


def test_a_tick_that_moves_nothing_leaves_the_zone_to_others(zone, lane, first, monkeypatch):
    answered(ask(customer(), zone, slo_s=60.0))

    def fail(**_):
        raise AssertionError("the lane was entered")

    monkeypatch.setattr(seat_queue, "enter_lane", fail)
    assert bring_forward(lane, now=after(1)) == 0
    finish(job_of(first), now=after(2))
    with pytest.raises(AssertionError, match="the lane was entered"):
        bring_forward(lane, now=after(3))


def test_a_job_that_waits_is_never_pushed_over_its_deadline(zone, first):
    answered(ask(customer(), zone, slo_s=19.0))
    found = answered(ask(customer(), zone, slo_s=18.9))
    assert found.status == RequestStatus.OFFERED


def test_a_seat_that_comes_free_early_starts_the_next_job_at_once(zone, lane, first):
    second = answered(ask(customer(), zone, slo_s=60.0))
    assert bring_forward(lane, now=after(1)) == 0
    finish(job_of(first), now=after(2))
    assert bring_forward(lane, now=after(3)) == 1
    assert slots_of(second)[0] == 103
    assert dispatch_slots(now=after(3)).started == (job_of(second).pk,)
    assert LogEntry.objects.filter(zone=zone, kind="ExpressPlanned").count() == 1
    # Again changes nothing.
    assert bring_forward(lane, now=after(4)) == 0
    assert verify_zone(zone).problems == []


def test_all_that_wait_end_within_what_they_were_certified(zone, lane, first):
    asked = [answered(ask(customer(), zone, slo_s=s)) for s in (90.0, 50.0, 70.0, 35.0)]
    assert {one.status for one in asked} == {RequestStatus.ADMITTED}
    at, job = after(2), job_of(first)
    for _ in range(5):
        finish(job, now=at)
        bring_forward(lane, now=at + timedelta(seconds=1))
        dispatch_slots(now=at + timedelta(seconds=1))
        job = Job.objects.filter(status=JobStatus.RUNNING).first()
        at += timedelta(seconds=5)
        if job is None:
            break
    ended = list(Job.objects.order_by("finished_at").values_list("deadline_at", "finished_at"))
    assert len(ended) == 5
    assert all(finished_at <= deadline_at for deadline_at, finished_at in ended)
    # Behind the one that was at work, by their deadlines.
    assert [d for d, _ in ended[1:]] == sorted(d for d, _ in ended[1:])
    assert verify_zone(zone).problems == []


def test_a_job_that_outlives_its_prediction_keeps_the_seat_until_its_cells_end(zone, lane, first):
    [seat] = load_seats(lane, now=after(8))
    assert seat.running is not None
    assert seat.free_at == OPEN_AT - timedelta(seconds=1) + timedelta(seconds=110)
