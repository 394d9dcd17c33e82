"""A hand-off that dies halfway: nothing lost, nothing doubled, and it is done by the next tick."""

from __future__ import annotations

import pytest

from marketplace.auction.book.verify import verify_zone
from marketplace.auction.models import Bid, Reservation
from marketplace.fleet.models import Node
from marketplace.jobs.models import Job, JobStatus, NodePlan, Slice, SliceStatus
from marketplace.jobs.services import dispatch_slots
from marketplace.payments.ledger_checks import check_ledger
from marketplace.tiers import handoff, serverless_runs
from marketplace.tiers.models import Booking, BookingOutcome, Machine, Stay, ZoneTiers
from marketplace.tiers.services import run_tier_tick
from tests import market_builders
from tests.job_builders import at, lease
from tests.unit.marketplace.tiers.backends import MemoryBackend
from tests.unit.marketplace.tiers.crashes import Killed, dies_in
from tests.unit.marketplace.tiers.handoff import job_left, point, tick, worker_ready
from workers.protocol.reports import SliceEnd as Ended

pytestmark = pytest.mark.django_db


def state(job: Job) -> tuple[object, ...]:
    """All that a hand-off changes."""
    row = Job.objects.get(pk=job.pk)
    held = Reservation.objects.filter(bid_id=job.bid_id, released_at__isnull=True)
    return (
        row.cells,
        row.needs_replan,
        row.seq,
        row.status,
        sorted(held.values_list("slot", "node_id")),
        list(Booking.objects.values_list("handed_at", "closed_at", "outcome")),
        list(Stay.objects.values_list("ended_at", "cost_micros")),
        list(Slice.objects.values_list("pk", "status")),
        list(ZoneTiers.objects.values_list("surplus", "threshold_s")),
    )


@pytest.mark.parametrize("after", [False, True], ids=["before", "after"])
@pytest.mark.parametrize(
    ("owner", "name"),
    [
        (handoff, "request_job_replan"),
        (handoff, "replan_jobs"),
        (handoff, "_saved_micros"),
        (Booking, "save"),
    ],
    ids=["the wish", "the plan", "the sum", "the note"],
)
def test_a_hand_off_that_dies_leaves_the_job_where_it_runs(
    job: Job,
    house: ZoneTiers,
    backend: MemoryBackend,
    monkeypatch: pytest.MonkeyPatch,
    owner: object,
    name: str,
    after: bool,
) -> None:
    made = worker_ready(job, backend)
    Node.objects.update(last_heartbeat_at=at(31))
    before = state(job)
    mend = dies_in(monkeypatch, owner, name, after=after)
    with pytest.raises(Killed):
        run_tier_tick(now=at(31))
    assert state(job) == before

    mend()
    _arrives(job, house, made)


@pytest.mark.parametrize("after", [False, True], ids=["before", "after"])
@pytest.mark.parametrize(
    ("owner", "name"),
    [
        (serverless_runs, "_close_stay"),
        (serverless_runs, "add_job_event"),
        (handoff, "_record_move"),
        (handoff, "add_job_event"),
        (handoff, "_close_booking"),
    ],
    ids=["the stay's end", "its word", "the arrival", "the move's word", "the booking's end"],
)
def test_a_tick_that_dies_after_the_job_has_moved_books_it_once(
    job: Job,
    house: ZoneTiers,
    backend: MemoryBackend,
    monkeypatch: pytest.MonkeyPatch,
    owner: object,
    name: str,
    after: bool,
) -> None:
    made = job_left(job, backend)
    dispatch_slots(now=at(41))
    point(lease(job), seq=1, step=31, seconds=44)
    before = state(job)
    mend = dies_in(monkeypatch, owner, name, after=after)
    Node.objects.update(last_heartbeat_at=at(45))
    with pytest.raises(Killed):
        run_tier_tick(now=at(45))
    assert state(job) == before

    mend()
    tick(46)
    tick(47)
    _is_booked_once(job, made)


def test_a_dispatch_that_dies_gives_no_second_lease(
    job: Job,
    house: ZoneTiers,
    backend: MemoryBackend,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    from marketplace.jobs.services import dispatch

    made = job_left(job, backend)
    plans = NodePlan.objects.count()
    mend = dies_in(monkeypatch, dispatch, "_record_plans", after=False)
    with pytest.raises(Killed):
        dispatch_slots(now=at(41))
    assert not Slice.objects.filter(job=job, status=SliceStatus.OPEN).exists()
    assert NodePlan.objects.count() == plans
    mend()
    dispatch_slots(now=at(42))
    dispatch_slots(now=at(42))
    assert lease(job).node_id == made.pk
    assert Slice.objects.filter(job=job).count() == 2


def _arrives(job: Job, house: ZoneTiers, made: Node) -> None:
    """What was begun anew goes to its end: one lease at a time, paid once."""
    tick(32)
    tick(40)
    market_builders.end_slice(job, status=Ended.PAUSED, now=at(41), step=30)
    tick(41)
    point(lease(job), seq=1, step=31, seconds=44)
    tick(45)
    _is_booked_once(job, made)
    assert verify_zone(house.zone).problems == []


def _is_booked_once(job: Job, made: Node) -> None:
    row = Job.objects.get(pk=job.pk)
    assert (row.status, row.needs_replan) == (JobStatus.RUNNING, False)
    first, second = Slice.objects.filter(job=job).order_by("opened_at")
    assert first.closed_at is not None
    assert second.opened_at >= first.closed_at
    assert (second.node_id, second.status) == (made.pk, SliceStatus.OPEN)
    assert Booking.objects.get().outcome == BookingOutcome.MOVED
    assert Machine.objects.exclude(tier="serverless").count() == 1
    told = list(job.events.values_list("message", flat=True))
    assert sum("It left serverless" in text for text in told) == 1
    assert sum(text.startswith("Moved at step") for text in told) == 1
    assert check_ledger().balanced
    assert Bid.objects.get(pk=job.bid_id).payment_micros == row.price_micros
