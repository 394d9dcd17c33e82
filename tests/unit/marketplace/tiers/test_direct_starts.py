"""Jobs that begin on a worker of the house, machines held for them, and what moves take."""

from __future__ import annotations

import pytest

from marketplace.auction.book.verify import verify_zone
from marketplace.auction.lane.decide import decide_pending_bids
from marketplace.fleet.models import Tier
from marketplace.fleet.selectors import slot_at
from marketplace.jobs.models import Job
from marketplace.jobs.services import cancel_job
from marketplace.tiers import scaling, switch_latency
from marketplace.tiers.models import (
    Booking,
    BookingOutcome,
    Machine,
    MachineStatus,
    Stay,
    ZoneTiers,
)
from marketplace.tiers.provisioning import MachineOffer
from marketplace.tiers.tier_state import TierState
from tests import builders, market_builders
from tests.builders import NOW
from tests.job_builders import at, lease
from tests.unit.marketplace.tiers.backends import CHEAP, SERVERLESS, MemoryBackend
from tests.unit.marketplace.tiers.handoff import RESERVED_ASK, RESERVED_FROM_S, point, tick

pytestmark = pytest.mark.django_db


@pytest.fixture
def waiting(house: ZoneTiers) -> Job:
    """A job of 180 s whose reserved cells begin in five minutes."""
    market_builders.node(house.zone, ask_micros=RESERVED_ASK, available_from_at=at(RESERVED_FROM_S))
    owner = builders.organisation(usd="100")
    bid = market_builders.bid(owner, house.zone, epochs=20, slots=55)
    decide_pending_bids(zone=house.zone, now=NOW)
    return Job.objects.get(bid_id=bid.pk)


def test_a_job_whose_work_repays_a_worker_begins_there_without_serverless(
    waiting: Job, house: ZoneTiers, backend: MemoryBackend
) -> None:
    tick(0)
    booking = Booking.objects.get()
    assert (booking.origin, booking.machine.offer, booking.left_s) == (None, CHEAP.name, 180.0)
    made = backend.join(booking.machine_id, now=at(1))
    tick(1)
    waiting.refresh_from_db()
    assert {where for _, where in waiting.cells} == {made.pk}
    assert waiting.cells[0][0] == slot_at(house.zone, at(1)) + 1
    tick(10)
    arrived = lease(waiting)
    assert arrived.node_id == made.pk
    point(arrived, seq=1, step=1, seconds=12)
    tick(13)
    booking.refresh_from_db()
    assert (booking.outcome, booking.pause_s) == (BookingOutcome.MOVED, None)
    told = list(waiting.events.values_list("message", flat=True))
    assert any("begins there, without serverless" in text for text in told)
    assert any(text.startswith("Began on cheap ($0.74 an hour)") for text in told)
    assert not Stay.objects.exists()
    assert {machine.tier for machine in Machine.objects.all()} == {Tier.MARKETPLACE}
    assert verify_zone(house.zone).problems == []


def test_a_job_begins_on_serverless_where_its_worker_boots_much_longer_than_a_move_takes(
    waiting: Job, backend: MemoryBackend
) -> None:
    slow = MachineOffer("slow", Tier.MARKETPLACE, 740_000, 60.0)
    backend.offered = (SERVERLESS, slow)
    tick(0)
    assert not Booking.objects.exists()
    assert Machine.objects.get().tier == Tier.SERVERLESS


def test_a_job_begins_on_serverless_where_the_operator_says_so(
    waiting: Job, house: ZoneTiers
) -> None:
    ZoneTiers.objects.update(starts_directly=False)
    tick(0)
    assert not Booking.objects.exists()
    assert Machine.objects.get().tier == Tier.SERVERLESS


def test_a_job_that_does_not_wait_longer_than_the_boot_keeps_its_plan(
    waiting: Job, backend: MemoryBackend
) -> None:
    backend.offered = (SERVERLESS, MachineOffer("later", Tier.MARKETPLACE, 740_000, 300.0))
    tick(0)
    assert not Booking.objects.exists()


def test_a_worker_whose_job_ends_before_it_began_is_not_needed_and_takes_its_credit_back(
    waiting: Job, house: ZoneTiers
) -> None:
    tick(0)
    credit = Booking.objects.get().credit
    assert credit > 0.0
    assert ZoneTiers.objects.get().surplus == credit
    cancel_job(job=waiting, cancelled_by=None, now=at(1))
    tick(1)
    assert Booking.objects.get().outcome == BookingOutcome.NEEDLESS
    assert ZoneTiers.objects.get().surplus == 0.0


def rented_machine(house: ZoneTiers, **fields: object) -> Machine:
    return Machine.objects.create(
        zone=house.zone,
        backend="memory",
        tier=Tier.MARKETPLACE,
        offer="cheap",
        price_micros_per_h=400_000,
        requested_at=NOW,
        **fields,
    )


def test_an_idle_machine_is_held_while_jobs_keep_coming_that_repay_its_rent(
    house: ZoneTiers, waiting: Job
) -> None:
    idle = rented_machine(house, status=MachineStatus.RUNNING, idle_since_at=NOW)
    for seconds in (0, 100):
        Booking.objects.create(
            job=waiting,
            machine=rented_machine(house),
            made_at=at(seconds),
            handed_at=at(seconds),
            closed_at=at(seconds),
            outcome=BookingOutcome.MOVED,
            left_s=3600.0,
        )
    rented = TierState(tiers=house)

    def gone(seconds: float) -> list[Machine]:
        return scaling.find_unworthy(rented, [idle], [CHEAP], now=at(seconds))

    # $0.34 an hour for an hour of use, 1224, against $0.40 an hour until the next job comes.
    assert gone(200) == []
    assert gone(100 + 3059) == []
    assert gone(100 + 3061) == [idle]
    Booking.objects.filter(made_at=NOW).delete()
    assert gone(200) == [idle]


def test_what_a_move_takes_is_the_median_of_the_last_ones_once_there_are_five(
    house: ZoneTiers, waiting: Job
) -> None:
    machine = rented_machine(house)
    ZoneTiers.objects.update(checkpoint_s=2.0, restore_s=6.0)
    for number, pause in enumerate((3.0, 9.0, 4.0, 3.5, 5.0)):
        house.refresh_from_db()
        switch_latency.measure_pauses(tiers=house)
        assert (house.checkpoint_s, house.restore_s) == (2.0, 6.0)
        Stay.objects.create(
            job=waiting,
            machine=machine,
            started_at=at(number),
            ended_at=at(number),
            pause_s=pause,
        )
    switch_latency.measure_pauses(tiers=house)
    assert (house.checkpoint_s, house.restore_s) == (1.0, 3.0)
