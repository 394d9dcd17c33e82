"""A full tier's dear idle worker is exchanged for a cheaper offer; half of the saving buys time."""

from __future__ import annotations

from dataclasses import replace

import pytest

from marketplace.auction.book.verify import verify_zone
from marketplace.auction.models import Bid
from marketplace.fleet.models import Node, NodeStatus, Tier
from marketplace.jobs.models import Job
from marketplace.payments.ledger_checks import check_ledger
from marketplace.tiers import bookings, tier_state
from marketplace.tiers.machines import launch_machines, reconcile_machines, request_machine
from marketplace.tiers.models import (
    Booking,
    BookingOutcome,
    Machine,
    MachineStatus,
    Stay,
    ZoneTiers,
)
from marketplace.tiers.services import run_tier_tick
from tests import market_builders
from tests.job_builders import at, lease
from tests.unit.marketplace.tiers.backends import CHEAP, DEAR, SERVERLESS, MemoryBackend
from tests.unit.marketplace.tiers.crashes import Killed, dies_in
from tests.unit.marketplace.tiers.handoff import point, runs, tick
from workers.protocol.reports import SliceEnd as Ended

pytestmark = pytest.mark.django_db

#: Twenty seconds of boot, at $0.74 and on serverless at $2.10, are repaid by $0.55 an hour less
#: in 103.3 s.
SLOW = replace(CHEAP, boot_s=20.0)
WORTH_S = 20.0 * (0.74 + 2.10) / (1.29 - 0.74)


@pytest.fixture
def dear(job: Job, backend: MemoryBackend) -> Machine:
    """The only worker the house may rent: idle, and dearer than what is offered now."""
    ZoneTiers.objects.update(serverful_cap=1, idle_s=1e6)
    machine = request_machine(tiers=ZoneTiers.objects.get(), offer=DEAR, reason="-", now=at(2))
    launch_machines(now=at(2))
    backend.join(machine.pk, now=at(3))
    reconcile_machines(now=at(3))
    backend.offered = (SERVERLESS, SLOW)
    return Machine.objects.get(pk=machine.pk)


def look(seconds: float) -> None:
    """One tick, the backends not looked at."""
    Node.objects.update(last_heartbeat_at=at(seconds))
    run_tier_tick(now=at(seconds))


def surplus() -> float:
    return ZoneTiers.objects.get().surplus


def saving(left_s: float) -> float:
    return (1.29 - 0.74) * left_s - 0.74 * 20.0


def test_a_dear_idle_worker_is_exchanged_and_the_cap_is_kept(
    job: Job, dear: Machine, backend: MemoryBackend, house: ZoneTiers
) -> None:
    runs(job, since_s=2, left_s=200, now_s=10)
    look(10)
    dear.refresh_from_db()
    assert dear.status == MachineStatus.ENDING
    assert dear.reason == (
        "Exchanged for cheap at $0.74 an hour: the 200 s it would serve repay the boot."
    )
    assert Node.objects.get(name=dear.pk).status == NodeStatus.DRAINING
    booking = Booking.objects.get()
    assert booking.credit == pytest.approx(0.5 * saving(200))
    # Not asked for while the old one is paid for.
    assert booking.machine.status == MachineStatus.REQUESTED
    assert booking.machine_id not in backend.running
    look(11)
    assert Booking.objects.get().machine.status == MachineStatus.REQUESTED

    reconcile_machines(now=at(12))
    reconcile_machines(now=at(13))
    look(14)
    assert dear.pk not in backend.running
    assert booking.machine_id in backend.running
    made = backend.join(booking.machine_id, now=at(34))
    runs(job, since_s=2, left_s=176, now_s=34, step=30)
    tick(34)
    tick(40)
    market_builders.end_slice(job, status=Ended.PAUSED, now=at(41), step=30)
    tick(41)
    point(lease(job), seq=1, step=31, seconds=44)
    tick(45)
    booking.refresh_from_db()
    assert (booking.outcome, lease(job).node_id) == (BookingOutcome.MOVED, made.pk)
    dear.refresh_from_db()
    assert (dear.status, dear.ended_at) == (MachineStatus.ENDED, at(13))
    assert dear.cost_micros == -(-1_290_000 * 11 // 3600)
    # The owner pays what they paid.
    assert Bid.objects.get(pk=job.bid_id).payment_micros == job.price_micros
    assert check_ledger().balanced
    assert verify_zone(house.zone).problems == []


@pytest.mark.parametrize(("left_s", "renews"), [(WORTH_S - 1.0, False), (WORTH_S + 1.0, True)])
def test_a_rent_is_renewed_only_where_what_is_left_repays_the_boot(
    job: Job, dear: Machine, left_s: float, renews: bool
) -> None:
    runs(job, since_s=2, left_s=left_s, now_s=10)
    look(10)
    booking = Booking.objects.get()
    assert booking.machine.offer == (SLOW.name if renews else DEAR.name)
    assert booking.credit == pytest.approx(0.5 * saving(left_s) if renews else 0.0)
    dear.refresh_from_db()
    assert dear.status == (MachineStatus.ENDING if renews else MachineStatus.RUNNING)


def test_the_time_until_the_reserved_cells_is_all_that_a_worker_serves(
    job: Job, dear: Machine
) -> None:
    # The provider's own node, on sale from 300 s on, asks no more than the worker costs.
    Node.objects.filter(ask_micros=3000).update(ask_micros=1000)
    runs(job, since_s=2, left_s=400, now_s=210)
    look(210)
    assert Booking.objects.get().machine_id == dear.pk


def test_a_new_rent_for_which_the_cap_leaves_no_room_is_given_up(
    job: Job, dear: Machine, backend: MemoryBackend
) -> None:
    runs(job, since_s=2, left_s=200, now_s=10)
    look(10)
    booking = Booking.objects.get()
    ZoneTiers.objects.update(serverful_cap=0)
    for seconds in (11, 12):
        reconcile_machines(now=at(seconds))
    look(13)
    asked = booking.machine
    asked.refresh_from_db()
    assert (asked.status, asked.reason) == (MachineStatus.ENDED, "The cap leaves no room for it.")
    assert (asked.cost_micros, asked.pk in backend.running) == (0, False)
    look(14)
    booking.refresh_from_db()
    assert booking.outcome == BookingOutcome.FAILED
    assert job.pk in set(Stay.objects.filter(ended_at=None).values_list("job_id", flat=True))


def test_a_tier_with_room_keeps_its_idle_worker(job: Job, dear: Machine) -> None:
    ZoneTiers.objects.update(serverful_cap=2)
    runs(job, since_s=2, left_s=4000, now_s=10)
    look(10)
    booking = Booking.objects.get()
    assert (booking.machine_id, booking.credit) == (dear.pk, 0.0)


def test_what_a_renewal_was_to_save_leaves_the_surplus_if_its_worker_never_comes_up(
    job: Job, dear: Machine, backend: MemoryBackend
) -> None:
    runs(job, since_s=2, left_s=200, now_s=10)
    look(10)
    for seconds in (11, 12):
        reconcile_machines(now=at(seconds))
    look(13)
    booking = Booking.objects.get()
    before = surplus()
    backend.offered = (SERVERLESS,)
    backend.running.discard(booking.machine_id)
    reconcile_machines(now=at(50))
    runs(job, since_s=2, left_s=150, now_s=51)
    look(51)
    booking.refresh_from_db()
    assert booking.outcome == BookingOutcome.FAILED
    assert surplus() == pytest.approx(before - booking.credit)
    look(52)
    assert surplus() == pytest.approx(before - booking.credit)


def test_what_a_renewal_was_to_save_leaves_the_surplus_if_the_job_no_longer_needs_it(
    job: Job, dear: Machine, backend: MemoryBackend
) -> None:
    runs(job, since_s=2, left_s=200, now_s=10)
    look(10)
    for seconds in (11, 12):
        reconcile_machines(now=at(seconds))
    look(13)
    booking = Booking.objects.get()
    before = surplus()
    backend.join(booking.machine_id, now=at(60))
    reconcile_machines(now=at(60))
    # The hand-off itself finds that the rest repays nothing.
    runs(job, since_s=2, left_s=1, now_s=60)
    look(60)
    booking.refresh_from_db()
    assert booking.outcome == BookingOutcome.NEEDLESS
    assert surplus() == pytest.approx(before - booking.credit)


@pytest.mark.parametrize("after", [False, True], ids=["before", "after"])
@pytest.mark.parametrize(
    ("owner", "name"),
    [
        (tier_state, "end_machine"),
        (tier_state, "request_machine"),
        (Booking.objects, "create"),
        (bookings, "save_stay_accounts"),
        (ZoneTiers, "save"),
    ],
    ids=["the old rent's end", "the new rent", "the booking", "the books", "the surplus"],
)
def test_a_renewal_that_dies_leaves_all_as_it_was_and_is_done_once_by_the_next_tick(
    job: Job,
    dear: Machine,
    backend: MemoryBackend,
    monkeypatch: pytest.MonkeyPatch,
    owner: object,
    name: str,
    after: bool,
) -> None:
    runs(job, since_s=2, left_s=200, now_s=10)
    Node.objects.update(last_heartbeat_at=at(10))
    before = state()
    mend = dies_in(monkeypatch, owner, name, after=after)
    with pytest.raises(Killed):
        run_tier_tick(now=at(10))
    assert state() == before

    mend()
    look(10)
    look(11)
    booking = Booking.objects.get()
    assert booking.credit == pytest.approx(0.5 * saving(200))
    serverful = Machine.objects.exclude(tier=Tier.SERVERLESS).order_by("requested_at")
    assert [one.status for one in serverful] == [MachineStatus.ENDING, MachineStatus.REQUESTED]
    assert surplus() == pytest.approx(expected_surplus(booking))


def expected_surplus(booking: Booking) -> float:
    """What the stay brought, less what it is planned to take, and the renewal's half."""
    stay = Stay.objects.get(job=booking.job)
    assert stay.credit is not None
    return stay.credit - stay.planned + booking.credit


def state() -> tuple[object, ...]:
    return (
        list(Machine.objects.order_by("pk").values_list("pk", "status", "reason")),
        list(Node.objects.order_by("pk").values_list("pk", "status")),
        list(Booking.objects.values_list("pk", "credit", "outcome")),
        list(ZoneTiers.objects.values_list("surplus", "threshold_s", "pressure")),
        list(Stay.objects.order_by("pk").values_list("pk", "credit", "planned", "ended_at")),
    )
