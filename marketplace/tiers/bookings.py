"""Workers booked for jobs that run.

A job on serverless whose rest repays a move gets a serverful worker of the market booked;
the worker boots while the job still runs where it is (``handoff`` says what then). A full
tier renews a rent first where an offer is cheap enough that the exchange repays. A job moves on
from a worker of the market to another one where that is cheap enough that the
rest repays another move. The rules are the simulator's (``scheduler.tiers.demotion``), and
so is what becomes of the savings: half of them is added to the surplus of the allowance,
and taken back if the move comes to nothing.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta

from marketplace.common.money import format_usd
from marketplace.fleet.selectors import slot_at, slot_starts_at
from marketplace.jobs.models import Job, JobStatus, Slice
from marketplace.tiers.hazard_tables import HazardTables
from marketplace.tiers.models import (
    Booking,
    BookingOutcome,
    Machine,
    MachineStatus,
    Stay,
    ZoneTiers,
)
from marketplace.tiers.provisioning import MachineOffer
from marketplace.tiers.stay_or_move import MoveTarget, decide_stay, save_stay_accounts
from marketplace.tiers.tier_state import TierState, filter_offers, get_loaded_node
from scheduler.tiers.demotion import PossibleRehoming, compute_move_saving, compute_renewal_saving

#: After a failed booking, a job is not booked for again before this.
NEEDLESS_PAUSE = timedelta(minutes=2)


@dataclass(frozen=True, slots=True)
class WorkerChoice:
    """A serverful worker that could be booked: an idle one, or one to rent."""

    price_micros_per_h: int
    boot_s: float
    machine: Machine | None = None
    offer: MachineOffer | None = None


def book_workers(
    *, rented: TierState, offers: Sequence[MachineOffer], tables: HazardTables, now: datetime
) -> int:
    """Book workers for the jobs on serverless that should move; how many."""
    tiers = rented.tiers
    probed: list[tuple[Stay, float]] = []
    for stay in sorted(rented.stays, key=lambda one: (one.job.deadline_at, one.pk)):
        left_s = estimate_probed_left_s(tiers, stay.job, rented.lease_of.get(stay.job_id), now)
        if left_s is not None and stay.job_id not in rented.booked_jobs:
            probed.append((stay, left_s))
    if not probed or find_cheapest_worker(rented, offers) is None:
        return 0
    jobs = [stay.job_id for stay, _ in probed]
    lately = set(
        Booking.objects.filter(
            job__in=jobs, outcome=BookingOutcome.NEEDLESS, closed_at__gt=now - NEEDLESS_PAUSE
        ).values_list("job_id", flat=True)
    )
    made, looked_at = 0, []
    for stay, left_s in probed:
        worker = None if stay.job_id in lately else find_cheapest_worker(rented, offers)
        if worker is None:
            continue
        looked_at.append(stay)
        done_s = (now - stay.started_at).total_seconds()
        expected_s = tables.expected_left_s(done_s=done_s, left_s=left_s)
        served_s = _served_s(rented, stay, worker, now)
        if decide_stay(
            tiers=tiers,
            stay=stay,
            target=MoveTarget(worker.price_micros_per_h, worker.boot_s),
            left_s=left_s,
            expected_s=min(expected_s, served_s),
            now=now,
        ):
            worker, credit = _renew_worker(rented, offers, worker, stay, min(left_s, served_s), now)
            reason = (
                f"Booked for a job with {left_s:.0f} s left, on serverless at "
                f"{format_usd(stay.machine.price_micros_per_h)} an hour."
            )
            book_worker(
                rented, stay.job, stay.machine, worker, credit=credit, reason=reason, now=now
            )
            made += 1
    save_stay_accounts(looked_at)
    return made


def estimate_probed_left_s(
    tiers: ZoneTiers, job: Job, lease: Slice | None, now: datetime
) -> float | None:
    """What a running job has left, once it has run long enough for its speed to be known.

    ``lease`` is the one it holds.
    """
    if job.status != JobStatus.RUNNING or job.needs_replan or job.eta_at is None:
        return None
    if lease is None or lease.acknowledged_at is None:
        return None
    if (now - lease.acknowledged_at).total_seconds() < tiers.probe_s:
        return None
    return max(0.0, (job.eta_at - now).total_seconds())


def _served_s(rented: TierState, stay: Stay, worker: WorkerChoice, now: datetime) -> float:
    """How long the worker would spare serverless: where the reserved node costs no more, only
    until the reserved cells begin."""
    zone, own = rented.tiers.zone, get_loaded_node(stay.machine)
    slot = slot_at(zone, now)
    ahead = [(at, where) for at, where in stay.job.cells if at > slot and own and where != own.pk]
    if not ahead or rented.price_micros_per_h(ahead[0][1]) > worker.price_micros_per_h:
        return float("inf")
    return max(0.0, (slot_starts_at(zone, ahead[0][0]) - now).total_seconds())


def find_cheapest_worker(
    rented: TierState, offers: Sequence[MachineOffer], *, below_micros: int | None = None
) -> WorkerChoice | None:
    """An idle worker of the market, else the cheapest offer if the cap leaves room."""
    found = [
        WorkerChoice(machine.price_micros_per_h, 0.0, machine=machine)
        for machine in rented.unused()
    ]
    if not found and rented.room(serverless=False) > 0:
        found = _list_rentable(rented, offers)
    if below_micros is not None:
        found = [worker for worker in found if worker.price_micros_per_h < below_micros]
    return _pick_cheapest(found)


def _list_rentable(rented: TierState, offers: Sequence[MachineOffer]) -> list[WorkerChoice]:
    return [
        WorkerChoice(offer.price_micros_per_h, rented.boot_s(offer), offer=offer)
        for offer in filter_offers(offers, serverless=False)
    ]


def _pick_cheapest(workers: Sequence[WorkerChoice]) -> WorkerChoice | None:
    return min(workers, key=lambda one: (one.price_micros_per_h, one.boot_s), default=None)


def _renew_worker(
    rented: TierState,
    offers: Sequence[MachineOffer],
    worker: WorkerChoice,
    stay: Stay,
    left_s: float,
    now: datetime,
) -> tuple[WorkerChoice, float]:
    """A cheaper worker in the place of an idle one of a full tier, if that repays its boot.

    Also what the exchange gives the surplus. Where a simulated job waits for the boot, this
    one goes on on serverless, whose price stands in the place of the price of delay. The new
    machine is not asked for before the old one has ended (``launch_machines``).
    """
    offered = _pick_cheapest(_list_rentable(rented, offers))
    if worker.machine is None or offered is None or rented.room(serverless=False) > 0:
        return worker, 0.0
    saved = compute_renewal_saving(
        left_s,
        offered.boot_s,
        worker.price_micros_per_h / 1e6,
        offered.price_micros_per_h / 1e6,
        stay.machine.price_micros_per_h / 1e6,
    )
    if saved < 0.0:
        return worker, 0.0
    assert offered.offer is not None
    rented.end(
        worker.machine,
        reason=(
            f"Exchanged for {offered.offer.name} at {format_usd(offered.price_micros_per_h)} an "
            f"hour: the {left_s:.0f} s it would serve repay the boot."
        ),
        now=now,
    )
    return offered, rented.tiers.rules.saved_share * saved


def book_worker(
    rented: TierState,
    job: Job,
    origin: Machine | None,
    worker: WorkerChoice,
    *,
    credit: float,
    reason: str,
    now: datetime,
    left_s: float = 0.0,
) -> None:
    """Promise a worker to a job; one that is not rented yet is requested.

    Parameters
    ----------
    origin
        Where the job runs; ``None`` for one that has not begun.
    left_s
        Of one that has not begun: what it will run. Others say so at the hand-off.
    """
    machine = worker.machine
    if machine is None:
        assert worker.offer is not None
        machine = rented.request(worker.offer, reason=reason, now=now)
    rented.tiers.surplus += credit
    rented.book(
        Booking.objects.create(
            job=job, machine=machine, origin=origin, made_at=now, credit=credit, left_s=left_s
        )
    )


def book_cheaper_workers(
    *, rented: TierState, offers: Sequence[MachineOffer], tables: HazardTables, now: datetime
) -> int:
    """Book cheaper workers for jobs on the market's own, more expensive ones; how many.

    Only for a job that has its worker to itself: the rent of a shared one would go on.
    """
    tiers, made, rules = rented.tiers, 0, rented.tiers.rules
    if find_cheapest_worker(rented, offers) is None:
        return 0
    rows = sorted(
        rented.of_tier(serverless=False), key=lambda one: (-one.price_micros_per_h, one.pk)
    )
    for machine in rows:
        lease = _find_only_lease(rented, machine)
        if lease is None:
            continue
        job = lease.job
        left_s = estimate_probed_left_s(tiers, job, lease, now)
        worker = find_cheapest_worker(rented, offers, below_micros=machine.price_micros_per_h)
        if left_s is None or worker is None:
            continue
        done_s = (now - (job.started_at or now)).total_seconds()
        saved = compute_move_saving(
            PossibleRehoming(
                expected_s=tables.expected_left_s(done_s=done_s, left_s=left_s),
                ends_s=left_s,
                due_s=(job.deadline_at - now).total_seconds(),
                boot_s=worker.boot_s,
                checkpoint_s=tiers.checkpoint_s,
                restore_s=tiers.restore_s,
                price_paid=machine.price_micros_per_h / 1e6,
                price_offered=worker.price_micros_per_h / 1e6,
                delay_price=rules.rehome_delay_usd_per_h,
            )
        )
        if saved >= 0.0:
            reason = (
                f"Booked for a job with {left_s:.0f} s left on {machine.offer} at "
                f"{format_usd(machine.price_micros_per_h)} an hour."
            )
            credit = rules.saved_share * saved
            book_worker(rented, job, machine, worker, credit=credit, reason=reason, now=now)
            made += 1
    return made


def _find_only_lease(rented: TierState, machine: Machine) -> Slice | None:
    """The lease of the one job that runs on a machine and holds all that is sold of it."""
    node = get_loaded_node(machine)
    if node is None or machine.status != MachineStatus.RUNNING:
        return None
    leases = [one for one in rented.leases.get(node.pk, ()) if one.job_id not in rented.booked_jobs]
    if len(leases) != 1 or rented.sold[node.pk] - {leases[0].job.bid_id}:
        return None
    return leases[0]
