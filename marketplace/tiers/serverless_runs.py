"""Jobs on serverless machines until their reserved cells begin, at the market's expense.

The auction's cells are the promise; a stay only fills the time before them. A stay is written as
further cells of the job on a node that is never on sale. So dispatch moves the job by checkpoint
and restore, as between any two cells. A job whose rest would not repay the move (``allowance``)
stays to its end instead.
"""

from __future__ import annotations

from collections.abc import Sequence
from datetime import datetime, timedelta

from django.db import transaction
from django.db.models import Exists, OuterRef, Q

from marketplace.auction.book.reservations import release_reservations
from marketplace.auction.lane.enter import enter_lane
from marketplace.auction.models import Reservation
from marketplace.common.clock import format_moment
from marketplace.common.money import format_usd
from marketplace.fleet.models import Node
from marketplace.fleet.selectors import slot_at, slot_starts_at
from marketplace.jobs.locks import lock_job
from marketplace.jobs.models import EventKind, Job, JobStatus, Slice, SliceStatus
from marketplace.jobs.queries import find_first_slot
from marketplace.jobs.services import add_job_event, replace_job_cells
from marketplace.jobs.work import compute_work_left_share, measure_job_work
from marketplace.tiers.hazard_tables import HazardTables
from marketplace.tiers.machines import compute_rent_micros
from marketplace.tiers.models import Machine, MachineStatus, Stay, ZoneTiers
from marketplace.tiers.provisioning import MachineOffer
from marketplace.tiers.stay_or_move import MoveTarget, decide_stay, save_stay_accounts, settle_stay
from marketplace.tiers.tier_state import TierState, filter_offers, get_loaded_node
from scheduler.auction.log import events
from scheduler.types import Cell

#: A cell is given back only if the work left, with this margin, fits in the others.
WORK_MARGIN = 1.1


def close_stays(*, rented: TierState, now: datetime) -> int:
    """End the stays of jobs that left or ended; how many."""
    tiers = rented.tiers
    slot = slot_at(tiers.zone, now)
    gone: list[Stay] = []
    for stay in rented.stays:
        node = get_loaded_node(stay.machine)
        held = rented.lease_of.get(stay.job_id)
        here = held is not None and node is not None and held.node_id == node.pk
        cells = node is not None and stay.job.has_cells_on(node.pk, from_slot=slot)
        lives = stay.machine.status == MachineStatus.RUNNING
        if not here and not (stay.job.is_active and cells and lives):
            gone.append(stay)
    for stay in gone:
        settle_stay(tiers=tiers, stay=stay, moved=stay.job.is_active, now=now)
        _close_stay(stay, now)
        rented.stays.remove(stay)
    return len(gone)


def _close_stay(stay: Stay, now: datetime) -> None:
    with transaction.atomic():
        stay.ended_at = now
        stay.cost_micros = compute_rent_micros(
            stay.machine.price_micros_per_h, stay.started_at, now
        )
        stay.save(update_fields=["ended_at", "cost_micros"])
        stay.machine.idle_since_at = now
        stay.machine.save(update_fields=["idle_since_at"])
        seconds = (now - stay.started_at).total_seconds()
        ended = "It left" if stay.job.is_active else "It ended on"
        add_job_event(
            job=stay.job,
            kind=EventKind.MOVING if stay.job.is_active else EventKind.REPLANNED,
            message=(
                f"{ended} serverless after {seconds:.0f} s; "
                f"the house paid {format_usd(stay.cost_micros)} for it."
            ),
            now=now,
            data={"machine": stay.machine_id, "cost_micros": stay.cost_micros},
        )


def extend_stays(*, rented: TierState, tables: HazardTables, now: datetime) -> int:
    """Keep jobs on serverless up to their next cells, or to their end; how many changed."""
    tiers, slot = rented.tiers, slot_at(rented.tiers.zone, now)
    changed, looked_at = 0, []
    for stay in rented.stays:
        node = get_loaded_node(stay.machine)
        following = None if node is None else _find_following_cell(stay.job, node, slot)
        if node is None or following is None:
            continue
        if following.slot == slot + 1:
            looked_at.append(stay)
            if _should_leave(rented, tables, stay, following, now):
                continue
        with transaction.atomic():
            # Lanes re-plan jobs at any time: cells are read and written under one lock.
            job = lock_job(stay.job_id)
            if _find_following_cell(job, node, slot) == following:
                stay.job = _extend_stay(tiers, job, node, slot, now)
                changed += 1
    save_stay_accounts(looked_at)
    return changed


def _find_following_cell(job: Job, node: Node, slot: int) -> Cell | None:
    """The reserved cell that a running job's stay does not reach up to yet, or ends at."""
    if job.needs_replan or job.status != JobStatus.RUNNING or job.node_in(slot) != node.pk:
        return None
    reserved = _reserved_cells(job, node, slot)
    if not reserved:
        return None
    if reserved[0].slot == slot + 1:
        return reserved[0] if job.eta_at is not None else None
    nodes = dict(job.cells)
    filled = all(nodes.get(at) == node.pk for at in range(slot, reserved[0].slot))
    return None if filled else reserved[0]


def _should_leave(
    rented: TierState, tables: HazardTables, stay: Stay, following: Cell, now: datetime
) -> bool:
    """Whether the job moves to its reserved node, which begins in the next slot."""
    assert stay.job.eta_at is not None
    left_s = max(0.0, (stay.job.eta_at - now).total_seconds())
    done_s = (now - stay.started_at).total_seconds()
    return decide_stay(
        tiers=rented.tiers,
        stay=stay,
        target=MoveTarget(rented.price_micros_per_h(following.node)),
        left_s=left_s,
        expected_s=tables.expected_left_s(done_s=done_s, left_s=left_s),
        now=now,
    )


def _extend_stay(tiers: ZoneTiers, job: Job, node: Node, slot: int, now: datetime) -> Job:
    """Bridge the slots that a new plan left empty, or stay to the end.

    Call while holding the job.
    """
    reserved = _reserved_cells(job, node, slot)
    if reserved[0].slot == slot + 1:
        return _stay_to_end(tiers, job, node, reserved, slot, now)
    gap = [Cell(slot=at, node=node.pk) for at in range(slot, reserved[0].slot)]
    begins_at = slot_starts_at(tiers.zone, reserved[0].slot)
    return replace_job_cells(
        job=job,
        cells=[*gap, *reserved],
        reason="Goes on on serverless until its new slots begin at "
        f"{format_moment(begins_at, up=True)}.",
        now=now,
    )


def _stay_to_end(
    tiers: ZoneTiers, job: Job, node: Node, reserved: list[Cell], slot: int, now: datetime
) -> Job:
    assert job.eta_at is not None
    left_s = max(0.0, (job.eta_at - now).total_seconds())
    # One slot to spare; what is not needed is given back when the job ends.
    last = max(slot, slot_at(tiers.zone, job.eta_at)) + 1
    cells = [Cell(slot=at, node=node.pk) for at in range(slot, last + 1)]
    later = [cell for cell in reserved if cell.slot > last]
    return replace_job_cells(
        job=job,
        cells=[*cells, *later],
        reason=f"Stays on serverless to its end: the {left_s:.0f} s left would not repay a move.",
        now=now,
    )


def begin_stays(
    *, rented: TierState, waiting: Sequence[Job], offers: Sequence[MachineOffer], now: datetime
) -> int:
    """Start waiting jobs on free serverless machines, earliest deadline first; how many.

    For jobs that found none, further machines are requested up to the cap. ``waiting`` is what
    :func:`find_waiting_jobs` gave; those for which a worker was booked since are left out.
    """
    tiers = rented.tiers
    busy = {stay.machine_id for stay in rented.stays}
    free = [pair for pair in rented.online(serverless=True) if pair[0].pk not in busy]
    room = rented.room(serverless=True)
    if not free and room <= 0:
        return 0
    is_verified = tiers.provider.verified_at is not None
    waiting = [
        job
        for job in waiting
        if job.pk not in rented.booked_jobs and (is_verified or not job.verified_only)
    ]
    begun = 0
    for job, (machine, node) in zip(waiting, free, strict=False):
        stay = _begin_stay(tiers, job, machine, node, now)
        if stay is not None:
            rented.stays.append(stay)
            begun += 1
    _request_machines(rented, offers, waiting[len(free) :], room, now)
    return begun


def _begin_stay(
    tiers: ZoneTiers, job: Job, machine: Machine, node: Node, now: datetime
) -> Stay | None:
    slot = slot_at(tiers.zone, now)
    with transaction.atomic():
        job = lock_job(job.pk)
        if not _is_waiting(tiers, job, now):
            # A lane or a dispatch was quicker.
            return None
        reserved = _reserved_cells(job, node, slot)
        gap = [Cell(slot=at, node=node.pk) for at in range(slot, reserved[0].slot)]
        stay = Stay.objects.create(job=job, machine=machine, started_at=now)
        machine.idle_since_at = None
        machine.save(update_fields=["idle_since_at"])
        begins_at = slot_starts_at(tiers.zone, reserved[0].slot)
        starts = "Starts" if job.started_at is None else "Goes on"
        stay.job = replace_job_cells(
            job=job,
            cells=[*gap, *reserved],
            reason=(
                f"{starts} at once on serverless, at {format_usd(machine.price_micros_per_h)} an "
                f"hour paid by the house, until its reserved slots begin at "
                f"{format_moment(begins_at, up=True)}."
            ),
            now=now,
        )
    return stay


def find_waiting_jobs(*, rented: TierState, now: datetime) -> list[Job]:
    """Jobs whose first cell is far enough away that an earlier start repays the later move.

    Also those that a lost node has left without one. Those that must end first come first, and
    no more than there can be machines for.
    """
    tiers = rented.tiers
    busy = {stay.job_id for stay in rented.stays} | rented.booked_jobs
    leased = Slice.objects.filter(job=OuterRef("pk"), status=SliceStatus.OPEN)
    slot = slot_at(tiers.zone, now)
    pause = timedelta(seconds=tiers.checkpoint_s + tiers.restore_s)
    queued = (
        Job.objects.filter(
            ~Exists(leased),
            ~Q(pk__in=busy),
            Job.MAY_START,
            zone=tiers.zone,
            status__in=(JobStatus.QUEUED, JobStatus.MOVING),
            needs_replan=False,
        )
        .annotate(next_slot=find_first_slot(from_slot=slot))
        .filter(next_slot__gt=max(slot, slot_at(tiers.zone, now + pause)))
        .select_related("zone", "dataset")
        .order_by("deadline_at", "pk")
    )
    return list(queued[: max(tiers.serverless_cap, tiers.serverful_cap)])


def _is_waiting(tiers: ZoneTiers, job: Job, now: datetime) -> bool:
    if job.needs_replan or job.status not in (JobStatus.QUEUED, JobStatus.MOVING):
        return False
    if _wait_s(tiers, job, now) <= tiers.checkpoint_s + tiers.restore_s:
        return False
    # One on its way off a node may still be there.
    return not Slice.objects.filter(job=job, status=SliceStatus.OPEN).exists()


def _wait_s(tiers: ZoneTiers, job: Job, now: datetime) -> float:
    """Seconds until the job's first cell; 0 for one that is due or has none."""
    slot = slot_at(tiers.zone, now)
    ahead = [at for at, _ in job.cells if at >= slot]
    if not ahead or ahead[0] == slot:
        return 0.0
    return (slot_starts_at(tiers.zone, ahead[0]) - now).total_seconds()


def _request_machines(
    rented: TierState,
    offers: Sequence[MachineOffer],
    without: Sequence[Job],
    room: int,
    now: datetime,
) -> None:
    """Request machines for jobs that found none, if their wait outlasts the boot."""
    tiers = rented.tiers
    serverless = filter_offers(offers, serverless=True)
    if not serverless or not without:
        return
    cheapest = serverless[0]
    repaid_s = rented.boot_s(cheapest) + tiers.checkpoint_s + tiers.restore_s
    worth = sum(_wait_s(tiers, job, now) > repaid_s for job in without)
    for _ in range(max(0, min(room, worth - rented.coming(serverless=True)))):
        rented.request(cheapest, reason="Jobs wait for their first slot.", now=now)


def release_unneeded_cells(*, tiers: ZoneTiers, now: datetime) -> int:
    """Give back reserved cells that work done on serverless made needless; how many cells.

    Call outside other locks: it enters the zone's lane.
    """
    released = 0
    done = Stay.objects.filter(
        machine__zone=tiers.zone, ended_at__isnull=False, released_at__isnull=True
    ).select_related("job__dataset", "job__zone")
    for stay in done.order_by("pk"):
        if stay.job.is_active and not stay.job.needs_replan:
            released += _release_cells(tiers, stay.job, now)
        stay.released_at = now
        stay.save(update_fields=["released_at"])
    return released


def _release_cells(tiers: ZoneTiers, job: Job, now: datetime) -> int:
    zone = tiers.zone
    work = measure_job_work(job)
    with enter_lane(zone=zone, now=now) as lane:
        rows = list(
            Reservation.objects.filter(
                bid_id=job.bid_id, released_at__isnull=True, slot__gte=lane.first_free_slot
            )
            .select_related("node")
            .order_by("slot")
        )
        need = work.compute_demand * compute_work_left_share(job) * WORK_MARGIN
        kept, units = [], 0.0
        while rows and (not kept or units < need):
            row = rows.pop(0)
            kept.append(row)
            units += row.samples
        if not rows:
            return 0
        cells = tuple(Cell(slot=row.slot, node=row.node.pk) for row in rows)
        # The job goes on, at the price that it was sold for.
        lane.apply(events.CellsReleased(task_id=job.bid_id, cells=cells, paid_share=1.0))
        release_reservations(
            bid_id=job.bid_id, which=Q(slot__in=[row.slot for row in rows]), now=now
        )
        replace_job_cells(
            job=job,
            cells=[Cell(slot=row.slot, node=row.node.pk) for row in kept],
            reason=(
                f"Work done on serverless made {len(cells)} reserved slots needless; "
                "they go back to the market."
            ),
            now=now,
        )
        return len(cells)


def _reserved_cells(job: Job, serverless: Node, slot: int) -> list[Cell]:
    """The job's cells after the present slot that are not on the serverless node."""
    return [
        Cell(slot=at, node=where) for at, where in job.cells if at > slot and where != serverless.pk
    ]
