"""Workers booked for jobs that run.

A job on serverless whose rest repays a move gets a serverful worker of the house booked;
the worker boots while the job still runs where it is (``handover`` tells what then). The
same rule moves a job on from a worker of the house to one that is so much cheaper that the
rest repays another move.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta

from marketplace.common.money import format_usd
from marketplace.fleet.models import Node, NodeStatus, Tier
from marketplace.fleet.selectors import slot_at, slot_starts_at
from marketplace.jobs.models import Job, JobStatus, Slice, SliceStatus
from marketplace.tiers.allowance import Target, stay_moves
from marketplace.tiers.history import Learned
from marketplace.tiers.machines import boot_s, cells_held, machine_request, node_of
from marketplace.tiers.models import (
    LIVE,
    Booking,
    BookingOutcome,
    Machine,
    MachineStatus,
    Stay,
    ZoneTiers,
)
from marketplace.tiers.provisioning import Offer
from scheduler.tiers.break_even import break_even_s, move_cost, moves
from scheduler.tiers.rules import TierRules

#: A job whose booking came to nothing is not booked for again before this.
NEEDLESS_PAUSE = timedelta(minutes=2)


@dataclass(frozen=True, slots=True)
class Worker:
    """A serverful worker that could be booked: an idle one, or one to rent."""

    price_micros_per_h: int
    boot_s: float
    machine: Machine | None = None
    offer: Offer | None = None


def bookings_make(
    *, tiers: ZoneTiers, offers: Sequence[Offer], tables: Learned, now: datetime
) -> int:
    """Book workers for the jobs on serverless that should move; how many."""
    booked = Booking.objects.filter(closed_at__isnull=True).values("job_id")
    lately = Booking.objects.filter(
        outcome=BookingOutcome.NEEDLESS, closed_at__gt=now - NEEDLESS_PAUSE
    ).values("job_id")
    stays = (
        Stay.objects.filter(ended_at__isnull=True, machine__zone=tiers.zone)
        .exclude(job__in=booked)
        .exclude(job__in=lately)
        .select_related("job__zone", "machine__join_token")
        .order_by("job__deadline_at", "pk")
    )
    made = 0
    for stay in stays:
        left_s = probed_left_s(tiers, stay.job, now)
        worker = None if left_s is None else cheapest_worker(tiers, offers, now=now)
        if left_s is None or worker is None:
            continue
        done_s = (now - stay.started_at).total_seconds()
        expected_s = tables.expected_left_s(done_s=done_s, left_s=left_s)
        if stay_moves(
            tiers=tiers,
            stay=stay,
            target=Target(worker.price_micros_per_h, worker.boot_s),
            left_s=left_s,
            expected_s=min(expected_s, _served_s(tiers, stay, worker, now)),
            now=now,
        ):
            reason = (
                f"Booked for a job with {left_s:.0f} s left, on serverless at "
                f"{format_usd(stay.machine.price_micros_per_h)} an hour."
            )
            _book(tiers, stay.job, stay.machine, worker, reason, now)
            made += 1
    return made


def probed_left_s(tiers: ZoneTiers, job: Job, now: datetime) -> float | None:
    """What a running job has left, once it has run long enough for its speed to be known."""
    if job.status != JobStatus.RUNNING or job.needs_replan or job.eta_at is None:
        return None
    held = Slice.objects.filter(job=job, status=SliceStatus.OPEN).first()
    if held is None or held.acknowledged_at is None:
        return None
    if (now - held.acknowledged_at).total_seconds() < tiers.probe_s:
        return None
    return max(0.0, (job.eta_at - now).total_seconds())


def _served_s(tiers: ZoneTiers, stay: Stay, worker: Worker, now: datetime) -> float:
    """How long the worker would spare serverless: where the reserved node is no dearer, only
    until the reserved cells begin."""
    slot, own = slot_at(tiers.zone, now), node_of(stay.machine)
    ahead = [(at, where) for at, where in stay.job.cells if at > slot and own and where != own.pk]
    if not ahead:
        return float("inf")
    ask = Node.objects.values_list("ask_micros", flat=True).get(pk=ahead[0][1])
    if ask * 3600 > worker.price_micros_per_h * tiers.zone.slot_s:
        return float("inf")
    return max(0.0, (slot_starts_at(tiers.zone, ahead[0][0]) - now).total_seconds())


def cheapest_worker(
    tiers: ZoneTiers, offers: Sequence[Offer], *, now: datetime, below_micros: int | None = None
) -> Worker | None:
    """An idle worker of the house, else the cheapest offer if the cap leaves room."""
    found = []
    for machine in _idle_workers(tiers, now):
        found.append(Worker(machine.price_micros_per_h, 0.0, machine=machine))
    live = Machine.objects.filter(zone=tiers.zone, status__in=LIVE).exclude(tier=Tier.SERVERLESS)
    if not found and live.count() < tiers.serverful_cap:
        found = [
            Worker(offer.price_micros_per_h, boot_s(tiers, offer), offer=offer)
            for offer in offers
            if offer.tier != Tier.SERVERLESS
        ]
    if below_micros is not None:
        found = [worker for worker in found if worker.price_micros_per_h < below_micros]
    return min(found, key=lambda one: (one.price_micros_per_h, one.boot_s), default=None)


def _idle_workers(tiers: ZoneTiers, now: datetime) -> list[Machine]:
    """Workers that run nothing and of which nothing is sold or booked."""
    booked = Booking.objects.filter(closed_at__isnull=True).values("machine_id")
    rows = (
        Machine.objects.filter(
            zone=tiers.zone,
            status=MachineStatus.RUNNING,
            join_token__node__status=NodeStatus.ONLINE,
        )
        .exclude(tier=Tier.SERVERLESS)
        .exclude(pk__in=booked)
        .select_related("join_token")
    )
    found = []
    for machine in rows.order_by("price_micros_per_h", "pk"):
        node = node_of(machine)
        leased = Slice.objects.filter(node=node, status=SliceStatus.OPEN).exists()
        if node is not None and not leased and not cells_held(node, now=now):
            found.append(machine)
    return found


def _book(
    tiers: ZoneTiers, job: Job, origin: Machine, worker: Worker, reason: str, now: datetime
) -> None:
    machine = worker.machine
    if machine is None:
        assert worker.offer is not None
        machine = machine_request(tiers=tiers, offer=worker.offer, reason=reason, now=now)
    Booking.objects.create(job=job, machine=machine, origin=origin, made_at=now)


def moves_on_make(
    *, tiers: ZoneTiers, offers: Sequence[Offer], tables: Learned, now: datetime
) -> int:
    """Book cheaper workers for jobs on the house's own dearer ones; how many.

    Only for a job that has its worker to itself: the rent of a shared one would go on.
    """
    booked = Booking.objects.filter(closed_at__isnull=True).values("job_id")
    rows = (
        Machine.objects.filter(zone=tiers.zone, status=MachineStatus.RUNNING)
        .exclude(tier=Tier.SERVERLESS)
        .select_related("join_token")
    )
    made = 0
    rules = TierRules(checkpoint_s=tiers.checkpoint_s, restore_s=tiers.restore_s)
    for machine in rows.order_by("-price_micros_per_h", "pk"):
        node = node_of(machine)
        running = list(
            Slice.objects.filter(node=node, status=SliceStatus.OPEN)
            .exclude(job__in=booked)
            .select_related("job__zone")[:2]
        )
        if node is None or len(running) != 1 or _others_sold(node, running[0].job, now):
            continue
        job = running[0].job
        left_s = probed_left_s(tiers, job, now)
        if left_s is None:
            continue
        worker = cheapest_worker(tiers, offers, now=now, below_micros=machine.price_micros_per_h)
        pause_s = tiers.checkpoint_s + tiers.restore_s
        ends_at = now + timedelta(seconds=left_s)
        if worker is None or ends_at <= job.deadline_at < ends_at + timedelta(seconds=pause_s):
            continue
        paid, offered = machine.price_micros_per_h / 1e6, worker.price_micros_per_h / 1e6
        cost = move_cost(
            tiers.checkpoint_s,
            tiers.restore_s,
            worker.boot_s,
            pause_s,
            paid,
            offered,
            rules.rehome_delay_usd_per_h,
        )
        done_s = (now - (job.started_at or now)).total_seconds()
        expected_s = tables.expected_left_s(done_s=done_s, left_s=left_s)
        if moves(expected_s, worker.boot_s, break_even_s(cost, paid, offered)):
            reason = (
                f"Booked for a job with {left_s:.0f} s left on {machine.offer} at "
                f"{format_usd(machine.price_micros_per_h)} an hour."
            )
            _book(tiers, job, machine, worker, reason, now)
            made += 1
    return made


def _others_sold(node: Node, job: Job, now: datetime) -> bool:
    """Whether cells of the node are sold to jobs besides this one."""
    active = Job.objects.filter(zone=node.zone_id, status__in=Job.ACTIVE).exclude(pk=job.pk)
    slot = slot_at(node.zone, now)
    return any(
        at >= slot and where == node.pk
        for cells in active.values_list("cells", flat=True)
        for at, where in cells
    )
