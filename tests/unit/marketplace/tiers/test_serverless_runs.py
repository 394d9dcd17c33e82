"""Jobs that start on serverless before their reserved cells."""

from __future__ import annotations

from datetime import timedelta

import pytest

from marketplace.auction.lane.decide import decide_pending_bids
from marketplace.auction.models import Bid, BidStatus, Reservation
from marketplace.fleet.models import Node, Tier, Zone
from marketplace.fleet.selectors import slot_starts_at
from marketplace.jobs.models import Job, JobStatus, Slice, SliceStatus
from marketplace.jobs.services import cancel_job, dispatch_slots
from marketplace.tiers.machines import compute_rent_micros, reconcile_machines, request_machine
from marketplace.tiers.models import Machine, MachineStatus, Stay, ZoneTiers
from marketplace.tiers.services import run_tier_tick
from scheduler.types import Cell
from tests import builders, job_builders, market_builders
from tests.builders import NOW
from tests.job_builders import SLOT, at
from tests.unit.marketplace.tiers.backends import MemoryBackend, tiers
from workers.protocol.reports import SliceEnd as Ended

pytestmark = pytest.mark.django_db


@pytest.fixture
def house(zone: Zone, backend: MemoryBackend) -> ZoneTiers:
    made = tiers(zone, serverful_cap=0)
    # A move of 4 s: an earlier start by two slots of 10 s repays it.
    ZoneTiers.objects.update(checkpoint_s=2.0, restore_s=2.0)
    return made


@pytest.fixture
def reserved(zone: Zone) -> Node:
    return market_builders.node(zone)


def tick(seconds: float) -> None:
    run_tier_tick(now=at(seconds))
    reconcile_machines(now=at(seconds))
    dispatch_slots(now=at(seconds))


def serverless_up(backend: MemoryBackend, seconds: float) -> Node:
    [machine_id] = backend.running
    node = backend.join(machine_id, now=at(seconds))
    reconcile_machines(now=at(seconds))
    return node


def cells(job: Job) -> list[tuple[int, str]]:
    return [(slot - SLOT, node) for slot, node in Job.objects.get(pk=job.pk).cells]


def alive(*nodes: Node, seconds: float) -> None:
    Node.objects.filter(pk__in=[node.pk for node in nodes]).update(last_heartbeat_at=at(seconds))


def test_a_waiting_job_gets_a_machine_and_starts_there_at_once(
    house: ZoneTiers, backend: MemoryBackend, reserved: Node
) -> None:
    job = job_builders.job(house.zone, (5, reserved), (6, reserved))
    tick(0)
    fast = serverless_up(backend, 2)
    tick(3)
    assert cells(job) == [(s, fast.pk) for s in range(5)] + [(5, reserved.pk), (6, reserved.pk)]
    assert job_builders.lease(job).node_id == fast.pk
    said = job.events.filter(kind="replanned").get()
    assert "Starts at once on serverless" in said.message
    assert "$2.10" in said.message
    stay = Stay.objects.get()
    assert (stay.job_id, stay.started_at, stay.ended_at) == (job.pk, at(3), None)


def test_the_job_moves_to_its_reserved_node_when_its_slot_begins(
    house: ZoneTiers, backend: MemoryBackend, reserved: Node
) -> None:
    job = job_builders.job(house.zone, (2, reserved), (3, reserved))
    tick(0)
    fast = serverless_up(backend, 1)
    tick(1)
    alive(reserved, fast, seconds=20)
    tick(20)
    job.refresh_from_db()
    assert job.status == JobStatus.MOVING
    market_builders.end_slice(job, status=Ended.PAUSED, now=at(21), step=5)
    tick(21)
    assert job_builders.lease(job).node_id == reserved.pk
    stay = Stay.objects.get()
    assert stay.ended_at == at(21)
    assert stay.cost_micros == compute_rent_micros(2_100_000, at(1), at(21))
    left = [event for event in job.events.filter(kind="moving") if "cost_micros" in event.data]
    assert [event.data["cost_micros"] for event in left] == [stay.cost_micros]
    assert "the house paid" in left[0].message


def test_a_job_that_waits_too_little_to_repay_the_move_stays_in_its_plan(
    house: ZoneTiers, backend: MemoryBackend, reserved: Node
) -> None:
    job = job_builders.job(house.zone, (1, reserved))
    tick(7)
    assert cells(job) == [(1, reserved.pk)]
    assert backend.running == set()
    assert not Machine.objects.exists()


def test_the_job_that_is_due_first_gets_the_only_machine(
    house: ZoneTiers, backend: MemoryBackend, reserved: Node
) -> None:
    ZoneTiers.objects.update(serverless_cap=1)
    later = job_builders.job(house.zone, (5, reserved), deadline_at=at(900))
    sooner = job_builders.job(house.zone, (6, reserved), deadline_at=at(500))
    tick(0)
    assert Machine.objects.count() == 1
    serverless_up(backend, 1)
    tick(2)
    assert [stay.job_id for stay in Stay.objects.all()] == [sooner.pk]
    assert len(cells(later)) == 1


def test_ticking_twice_changes_nothing_more(
    house: ZoneTiers, backend: MemoryBackend, reserved: Node
) -> None:
    job = job_builders.job(house.zone, (5, reserved))
    tick(0)
    tick(0)
    assert Machine.objects.count() == 1
    serverless_up(backend, 1)
    tick(2)
    before = (cells(job), job.events.count())
    tick(2)
    assert (cells(job), job.events.count(), Stay.objects.count()) == (*before, 1)


def test_a_cancelled_job_frees_the_machine_for_the_next(
    house: ZoneTiers, backend: MemoryBackend, reserved: Node
) -> None:
    ZoneTiers.objects.update(serverless_cap=1)
    first = job_builders.job(house.zone, (5, reserved), deadline_at=at(500))
    second = job_builders.job(house.zone, (6, reserved), deadline_at=at(900))
    tick(0)
    serverless_up(backend, 1)
    tick(2)
    cancel_job(job=first, cancelled_by=None, now=at(3))
    tick(4)
    assert [stay.job_id for stay in Stay.objects.order_by("pk")] == [first.pk, second.pk]
    assert Stay.objects.filter(ended_at__isnull=True).get().job_id == second.pk


def test_a_lost_serverless_machine_ends_the_stay_and_the_promise_stands(
    house: ZoneTiers, backend: MemoryBackend, reserved: Node
) -> None:
    job = job_builders.job(house.zone, (5, reserved))
    tick(0)
    serverless_up(backend, 1)
    tick(2)
    backend.running.clear()
    reconcile_machines(now=at(40))
    from marketplace.jobs.services import sweep_leases

    sweep_leases(now=at(41))
    run_tier_tick(now=at(42))
    assert Stay.objects.get().ended_at == at(42)
    assert (5, reserved.pk) in cells(job)


def test_an_unused_machine_is_given_back_after_a_while(
    house: ZoneTiers, backend: MemoryBackend, reserved: Node
) -> None:
    job = job_builders.job(house.zone, (5, reserved))
    tick(0)
    node = serverless_up(backend, 1)
    cancel_job(job=job, cancelled_by=None, now=at(1))
    tick(60)
    assert Machine.objects.get().status == MachineStatus.RUNNING
    alive(node, seconds=62)
    tick(62)
    tick(63)
    machine = Machine.objects.get()
    assert (machine.status, backend.running) == (MachineStatus.ENDED, set())
    assert machine.cost_micros == compute_rent_micros(2_100_000, NOW, at(63))


def test_a_job_whose_rest_would_not_repay_the_move_stays_to_its_end(
    house: ZoneTiers, backend: MemoryBackend, reserved: Node
) -> None:
    # Moves cost 60 s of serverless: F* is far above the 12 s left.
    ZoneTiers.objects.update(checkpoint_s=60.0, restore_s=2.0)
    job = job_builders.job(house.zone, (8, reserved), (9, reserved), (14, reserved))
    tick(0)
    fast = serverless_up(backend, 1)
    tick(1)
    alive(reserved, fast, seconds=75)
    Slice.objects.update(lease_expires_at=at(500), last_slot=SLOT + 7)
    Job.objects.filter(pk=job.pk).update(eta_at=at(75 + 12))
    run_tier_tick(now=at(75))
    after = {slot: node for slot, node in cells(job) if slot >= 7}
    assert after == {7: fast.pk, 8: fast.pk, 9: fast.pk, 14: reserved.pk}
    last = job.events.order_by("seq").last()
    assert last is not None
    assert "would not repay a move" in last.message


def test_a_zone_without_tiers_or_switched_off_is_left_alone(
    house: ZoneTiers, backend: MemoryBackend, reserved: Node
) -> None:
    ZoneTiers.objects.update(is_on=False)
    job_builders.job(house.zone, (5, reserved))
    tick(0)
    assert not Machine.objects.exists()


def test_work_done_on_serverless_gives_reserved_cells_back(
    zone: Zone, backend: MemoryBackend
) -> None:
    market_builders.node(zone)
    owner = builders.organisation(usd="100")
    bid = market_builders.bid(owner, zone, epochs=8)
    decide_pending_bids(zone=zone, now=NOW)
    bid = Bid.objects.get(pk=bid.pk)
    assert bid.status == BidStatus.ADMITTED
    job = Job.objects.get(bid_id=bid.pk)
    held = Reservation.objects.filter(bid=bid, released_at__isnull=True)
    before = held.count()
    assert before == 8
    house = tiers(zone, serverful_cap=0)
    machine = Machine.objects.create(
        zone=zone,
        backend="memory",
        tier="serverless",
        offer="fast",
        price_micros_per_h=1,
        status=MachineStatus.RUNNING,
        requested_at=NOW,
    )
    backend.running.add(machine.pk)
    # Three quarters were done during the stay.
    Job.objects.filter(pk=job.pk).update(total_steps=100, checkpoint_step=75, step=75)
    Stay.objects.create(job=job, machine=machine, started_at=NOW, ended_at=NOW)
    run_tier_tick(now=NOW)
    # 720 samples, a quarter left with a margin: 198, at 100 a cell.
    assert held.count() == 2
    job.refresh_from_db()
    assert len(job.cells) == 2
    assert Stay.objects.get().released_at == NOW
    run_tier_tick(now=NOW + timedelta(seconds=1))
    assert held.count() == 2
    assert house.zone_id == zone.pk
    released = job.events.filter(message__contains="go back to the market").count()
    assert released == 1
    assert slot_starts_at(zone, job.cells[0][0]) > NOW
    assert Cell(slot=job.cells[0][0], node=job.cells[0][1]).slot > SLOT


def test_a_slice_still_open_on_serverless_keeps_the_stay_open(
    house: ZoneTiers, backend: MemoryBackend, reserved: Node
) -> None:
    job = job_builders.job(house.zone, (2, reserved))
    tick(0)
    fast = serverless_up(backend, 1)
    tick(1)
    alive(reserved, fast, seconds=20)
    tick(20)
    assert Slice.objects.get(status=SliceStatus.OPEN).node_id == fast.pk
    assert Stay.objects.get().ended_at is None
    assert Job.objects.get(pk=job.pk).status == JobStatus.MOVING


def test_tiers_switched_off_let_what_runs_end_and_then_cost_nothing(
    house: ZoneTiers, backend: MemoryBackend, reserved: Node
) -> None:
    ZoneTiers.objects.update(serverful_cap=1)
    [offer] = [one for one in backend.offers() if one.name == "cheap"]
    request_machine(tiers=house, offer=offer, reason="wanted", now=NOW)
    job = job_builders.job(house.zone, (5, reserved), (6, reserved))
    tick(0)
    # The serverless one comes first, or the job would begin on the worker.
    for seconds, kind in enumerate((Tier.SERVERLESS, Tier.MARKETPLACE), start=1):
        backend.join(Machine.objects.get(tier=kind).pk, now=at(seconds))
        tick(seconds)
    assert Stay.objects.get().ended_at is None
    ZoneTiers.objects.update(is_on=False)
    Slice.objects.update(lease_expires_at=at(60))
    alive(*Node.objects.all(), seconds=50)
    tick(50)
    market_builders.end_slice(job, status=Ended.PAUSED, now=at(51), step=5)
    tick(51)
    assert Stay.objects.get().ended_at == at(51)
    alive(*Node.objects.all(), seconds=115)
    for seconds in (115, 116, 117):
        tick(seconds)
    assert {machine.status for machine in Machine.objects.all()} == {MachineStatus.ENDED}
    assert backend.running == set()
    later = job_builders.job(house.zone, (40, reserved))
    tick(118)
    assert Machine.objects.count() == 2
    assert cells(later) == [(40, reserved.pk)]
