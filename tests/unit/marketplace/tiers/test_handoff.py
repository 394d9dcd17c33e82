"""Workers booked for running jobs, and the hand-off to them, just in time."""

from __future__ import annotations

from datetime import timedelta

import pytest

from marketplace.auction.book.verify import verify_zone
from marketplace.auction.lane.decide import decide_pending_bids
from marketplace.auction.lane.sweep import replan_broken_jobs
from marketplace.auction.models import Bid, Reservation
from marketplace.fleet.models import Node
from marketplace.fleet.selectors import slot_at
from marketplace.jobs.models import Job, JobStatus, Slice, SliceStatus
from marketplace.jobs.services import cancel_job, dispatch_slots, sweep_leases
from marketplace.tiers import handoff
from marketplace.tiers.machines import measure_boot_s, reconcile_machines
from marketplace.tiers.models import Booking, BookingOutcome, Machine, Stay, ZoneTiers
from tests import market_builders
from tests.job_builders import SLOT, at, lease
from tests.unit.marketplace.tiers.backends import CHEAP, DEAR, SERVERLESS, MemoryBackend
from tests.unit.marketplace.tiers.handoff import (
    RESERVED_ASK,
    RESERVED_FROM_S,
    booked_machine,
    job_left,
    point,
    runs,
    tick,
    worker_booked,
)
from workers.protocol.reports import SliceEnd as Ended

pytestmark = pytest.mark.django_db


def told(job: Job) -> list[str]:
    return list(job.events.order_by("seq").values_list("message", flat=True))


def test_no_worker_is_booked_before_the_speed_is_known(job: Job) -> None:
    runs(job, since_s=2, left_s=400, now_s=6)
    tick(6)
    assert not Booking.objects.exists()
    tick(7)
    assert booked_machine().offer == CHEAP.name


def test_a_job_whose_rest_does_not_repay_a_move_gets_no_worker(job: Job) -> None:
    # F* is 4.1 s at lambda 0: what is left of the job is less.
    runs(job, since_s=2, left_s=4, now_s=10)
    tick(10)
    assert not Booking.objects.exists()
    assert Machine.objects.count() == 1


def test_the_surplus_lets_a_job_stay_whose_move_saves_less_than_its_delay_costs(job: Job) -> None:
    # Above F* but not with the delay at $5 an hour; a rich allowance pays for staying.
    ZoneTiers.objects.update(surplus=1e6)
    runs(job, since_s=2, left_s=12, now_s=10)
    tick(10)
    assert not Booking.objects.exists()
    ZoneTiers.objects.update(surplus=0.0)
    tick(11)
    assert booked_machine().offer == CHEAP.name


def test_the_job_runs_on_while_its_worker_boots_and_moves_when_it_is_ready(
    job: Job, house: ZoneTiers, backend: MemoryBackend
) -> None:
    worker = worker_booked(job)
    fast = lease(job).node
    tick(20)
    assert lease(job).node_id == fast.pk

    made = backend.join(worker.pk, now=at(31))
    runs(job, since_s=2, left_s=379, now_s=31, step=30)
    tick(31)
    job.refresh_from_db()
    slot = slot_at(house.zone, at(31))
    assert job.node_in(slot) == fast.pk
    # All that is left is planned on the worker: the dearer node's cells are free again.
    assert {where for number, where in job.cells if number > slot} == {made.pk}
    # 1572 of 1800 units, at 100 a cell.
    assert job.cells[-1][0] - slot == 16
    held = Reservation.objects.filter(bid_id=job.bid_id, released_at__isnull=True)
    assert {row.node_id for row in held} == {made.pk}
    assert any("repay moving there" in text for text in told(job))

    point(lease(job), seq=1, step=30, seconds=38)
    tick(40)
    assert Job.objects.get(pk=job.pk).status == JobStatus.MOVING
    market_builders.end_slice(job, status=Ended.PAUSED, now=at(41), step=30)
    tick(41)
    arrived = lease(job)
    assert arrived.node_id == made.pk
    point(arrived, seq=1, step=31, seconds=44)
    tick(45)
    booking = Booking.objects.get()
    assert (booking.outcome, booking.pause_s) == (BookingOutcome.MOVED, 6.0)
    move = job.events.get(message__startswith="Moved at step 30").data["move"]
    assert move["steps_lost"] == 0
    assert (move["from"], move["to"]) == (SERVERLESS.name, CHEAP.name)
    # 379 s at $2.10, less 2 s of it for the checkpoint, less 381 s and 21 s of boot at $0.74.
    expected = (379 - 2) * 2_100_000 / 3600 - (381 + 21) * 740_000 / 3600
    assert move["saved_micros"] == pytest.approx(expected, abs=3)
    # 2 s of the one for the checkpoint, 21 s of boot and 2 s of restoring on the other.
    assert move["cost_micros"] == pytest.approx((2 * 2_100_000 + 23 * 740_000) / 3600, abs=2)
    assert any("no step was lost. The move cost the house $0.0059." in text for text in told(job))
    assert Stay.objects.get().ended_at == at(41)
    assert verify_zone(house.zone).problems == []


def test_a_worker_no_cheaper_than_the_reserved_node_is_booked_only_for_the_wait(
    job: Job, house: ZoneTiers
) -> None:
    Node.objects.filter(ask_micros=RESERVED_ASK).update(ask_micros=1000)
    runs(job, since_s=2, left_s=400, now_s=RESERVED_FROM_S - 4)
    tick(RESERVED_FROM_S - 4)
    # Four seconds until its own node, F* is 4.1: booked for them, a worker would not repay.
    assert not Booking.objects.exists()


def test_an_offer_that_vanishes_during_boot_costs_us_and_the_next_is_taken(
    job: Job, backend: MemoryBackend
) -> None:
    first = worker_booked(job)
    backend.running.discard(first.pk)
    reconcile_machines(now=at(45))
    runs(job, since_s=2, left_s=365, now_s=45)
    tick(45)
    assert Booking.objects.get(machine=first).outcome == BookingOutcome.FAILED
    assert booked_machine().offer == DEAR.name
    first.refresh_from_db()
    assert first.cost_micros == -(-740_000 * 35 // 3600)
    [text] = [text for text in told(job) if "did not come up" in text]
    assert "cheap, booked for this job" in text
    assert "the house pays $0.0072 for it" in text
    bid = Bid.objects.get(pk=job.bid_id)
    assert bid.payment_micros == job.price_micros


def test_a_worker_that_is_ready_too_late_to_repay_goes_to_the_pool(
    job: Job, backend: MemoryBackend
) -> None:
    runs(job, since_s=2, left_s=100, now_s=10)
    tick(10)
    backend.join(booked_machine().pk, now=at(106))
    runs(job, since_s=2, left_s=3, now_s=106)
    before = Job.objects.get(pk=job.pk).cells
    tick(106)
    assert Booking.objects.get().outcome == BookingOutcome.NEEDLESS
    after = Job.objects.get(pk=job.pk).cells
    assert after == before


def test_a_worker_whose_job_was_cancelled_is_free_for_the_next(job: Job) -> None:
    worker_booked(job)
    cancel_job(job=job, cancelled_by=None, now=at(11))
    tick(12)
    assert Booking.objects.get().outcome == BookingOutcome.NEEDLESS


def test_handing_over_twice_plans_once(job: Job, house: ZoneTiers, backend: MemoryBackend) -> None:
    backend.join(worker_booked(job).pk, now=at(21))
    reconcile_machines(now=at(21))
    runs(job, since_s=2, left_s=389, now_s=21)
    assert handoff.hand_off_bookings(tiers=house, now=at(21)) == 1
    after = (Job.objects.get(pk=job.pk).cells, job.events.count())
    assert handoff.hand_off_bookings(tiers=house, now=at(22)) == 0
    assert (Job.objects.get(pk=job.pk).cells, job.events.count()) == after


def test_no_hand_off_puts_the_deadline_at_risk(
    job: Job, house: ZoneTiers, backend: MemoryBackend
) -> None:
    made = backend.join(worker_booked(job).pk, now=at(21))
    reconcile_machines(now=at(21))
    runs(job, since_s=2, left_s=389, now_s=21, step=0)
    # Five slots for nineteen cells of work: the worker alone could not keep it.
    Job.objects.filter(pk=job.pk).update(deadline_at=at(79))
    tick(21)
    job.refresh_from_db()
    assert made.pk not in {where for _, where in job.cells}
    assert Booking.objects.get().outcome == BookingOutcome.NEEDLESS


def test_a_worker_that_dies_under_its_job_leads_to_a_new_plan(
    job: Job, house: ZoneTiers, backend: MemoryBackend
) -> None:
    made = job_left(job, backend)
    tick(41)
    arrived = lease(job)
    point(arrived, seq=1, step=31, seconds=44)
    tick(45)
    backend.running.discard(made.name)
    reconcile_machines(now=at(50))
    sweep_leases(now=at(50))
    assert not Slice.objects.filter(job=job, status=SliceStatus.OPEN).exists()
    decide_pending_bids(zone=house.zone, now=at(51))

    replan_broken_jobs(now=at(51))
    job.refresh_from_db()
    assert job.is_active
    assert not job.needs_replan
    assert {where for number, where in job.cells if number > SLOT + 5}.isdisjoint({made.pk})


def test_a_job_on_a_dear_worker_moves_on_to_one_so_much_cheaper_that_it_repays(
    job: Job, house: ZoneTiers, backend: MemoryBackend
) -> None:
    backend.offered = (SERVERLESS, DEAR)
    runs(job, since_s=2, left_s=4000, now_s=10)
    Job.objects.update(deadline_at=at(100_000))
    tick(10)
    dear = backend.join(booked_machine().pk, now=at(31))
    runs(job, since_s=2, left_s=3979, now_s=31, step=30)
    handed = _handed_to(job, dear, 31)
    point(handed, seq=1, step=31, seconds=44)
    runs(job, since_s=44, left_s=3960, now_s=50, step=35)
    tick(50)
    assert Booking.objects.count() == 1

    backend.offered = (SERVERLESS, CHEAP, DEAR)
    # $0.55 an hour less repays the move, and $3.50 beyond it, in 22,952 s, short as the pause is.
    runs(job, since_s=44, left_s=22_950, now_s=55, step=36)
    tick(55)
    assert Booking.objects.count() == 1
    before = ZoneTiers.objects.get().surplus
    runs(job, since_s=44, left_s=22_955, now_s=56, step=36)
    tick(56)
    booking = Booking.objects.get(closed_at__isnull=True)
    assert (booking.machine.offer, booking.origin.offer) == (CHEAP.name, DEAR.name)
    # Half of what it saves buys time: $0.55 an hour, less 2 s of the old rent and 2 s of the new.
    assert booking.credit == pytest.approx(0.5 * (0.55 * 22_955 - 2 * 1.29 - 2 * 0.74))
    assert ZoneTiers.objects.get().surplus == pytest.approx(before + booking.credit)
    # Its worker never comes up: nothing was saved.
    backend.running.discard(booking.machine_id)
    reconcile_machines(now=at(90))
    tick(91)
    assert ZoneTiers.objects.get().surplus == pytest.approx(before)


def _handed_to(job: Job, node: Node, seconds: float) -> Slice:
    """The hand-off as far as the lease on the worker; the plan is written, not sought."""
    Job.objects.filter(pk=job.pk).update(
        cells=[[SLOT, "node_gone"], *([SLOT + number, node.pk] for number in range(1, 40))]
    )
    Booking.objects.update(handed_at=at(seconds))
    market_builders.end_slice(job, status=Ended.PAUSED, now=at(seconds), step=30)
    dispatch_slots(now=at(seconds + 1))
    return lease(job)


def test_a_job_that_lost_its_place_starts_again_on_serverless_at_once(
    job: Job, backend: MemoryBackend
) -> None:
    fast = lease(job)
    Slice.objects.filter(pk=fast.pk).update(
        status=SliceStatus.LOST, closed_at=at(20), lease_expires_at=at(20)
    )
    Stay.objects.update(ended_at=at(20))
    Job.objects.filter(pk=job.pk).update(status=JobStatus.MOVING)
    Job.objects.filter(pk=job.pk).update(
        cells=[cell for cell in Job.objects.get(pk=job.pk).cells if cell[1] != fast.node_id]
    )
    tick(25)
    assert lease(job).node_id == fast.node_id
    assert any("Goes on at once on serverless" in text for text in told(job))
    assert Stay.objects.filter(ended_at__isnull=True).count() == 1


def test_boots_take_as_long_as_the_last_ones_did(house: ZoneTiers) -> None:
    assert measure_boot_s(house, CHEAP) == CHEAP.boot_s
    for number, took in enumerate((1000, 20, 30, 40, 50, 60)):
        Machine.objects.create(
            zone=house.zone,
            backend="memory",
            tier=CHEAP.tier,
            offer=CHEAP.name,
            price_micros_per_h=CHEAP.price_micros_per_h,
            requested_at=at(100 * number),
            ready_at=at(100 * number) + timedelta(seconds=took),
        )
    assert measure_boot_s(house, CHEAP) == 40.0
