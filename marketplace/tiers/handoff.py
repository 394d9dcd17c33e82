"""The hand-off of a running job to the worker booked for it, just in time.

Only when the worker is on sale does the auction plan the job again, at no cost to its
owner: on that worker alone if the rest fits there in time. The job leaves at the end of its
slot, by checkpoint and restore as between any two cells. What a backend does not bring up
costs the market, is noted in the job's history, and its offer is left alone for a while: the
next one is booked.
"""

from __future__ import annotations

from datetime import datetime, timedelta

from django.db.models import F

from marketplace.auction.lane.enter import enter_lane
from marketplace.auction.lane.replan import replan_jobs
from marketplace.auction.models import Bid
from marketplace.common.money import format_usd
from marketplace.fleet.models import Node, NodeStatus
from marketplace.fleet.selectors import last_slot_until, slot_at
from marketplace.jobs.models import EventKind, Job, Slice, SliceStatus
from marketplace.jobs.services import add_job_event, request_job_replan
from marketplace.jobs.work import compute_work_left_share, measure_job_work
from marketplace.tiers.bookings import estimate_probed_left_s
from marketplace.tiers.direct_starts import has_not_begun
from marketplace.tiers.machines import compute_rent_micros, find_machine_node
from marketplace.tiers.models import Booking, BookingOutcome, Machine, MachineStatus, ZoneTiers
from marketplace.tiers.switch_latency import find_resumed_at, pause_s
from scheduler.tiers.break_even import compute_break_even_s, compute_move_cost, is_move_due


def hand_off_bookings(*, tiers: ZoneTiers, now: datetime) -> int:
    """Re-plan the jobs whose workers are on sale; the number of jobs.

    Call outside other locks: it enters the zone's lane.
    """
    ready = Booking.objects.filter(
        closed_at__isnull=True,
        handed_at__isnull=True,
        machine__zone=tiers.zone,
        machine__status=MachineStatus.RUNNING,
        machine__join_token__node__status=NodeStatus.ONLINE,
    )
    return sum(
        _hand_off(tiers, booking_id, now) for booking_id in ready.values_list("pk", flat=True)
    )


def _hand_off(tiers: ZoneTiers, booking_id: int, now: datetime) -> bool:
    with enter_lane(zone=tiers.zone, now=now) as lane:
        # Read under the lane's lock: a second call finds what the first one did.
        booking = Booking.objects.select_related(
            "job__zone", "job__dataset", "machine__join_token", "origin"
        ).get(pk=booking_id)
        job, node = booking.job, find_machine_node(booking.machine)
        if booking.closed_at is not None or booking.handed_at is not None or node is None:
            return False
        lease = Slice.objects.filter(job=job, status=SliceStatus.OPEN).first()
        origin, machine = booking.origin, booking.machine
        if origin is None:
            left_s = booking.left_s
            still_repays = has_not_begun(job)
        else:
            left_s = estimate_probed_left_s(tiers, job, lease, now)
            if left_s is None:
                # It waits for a plan, or reports no speed: looked at again at the next tick.
                return False
            still_repays = _move_still_repays(tiers, origin, machine, left_s)
        if not (still_repays and _rest_fits(tiers, job, node, lane.first_free_slot)):
            _close_booking(booking, BookingOutcome.NEEDLESS, now)
            # The tick reads it under the row's lock, which this waits for.
            ZoneTiers.objects.filter(pk=tiers.pk).update(surplus=F("surplus") - booking.credit)
            return False
        request_job_replan(
            job=job,
            reason=_explain_hand_off(origin, machine, left_s),
            now=now,
            is_trouble=False,
        )
        Bid.objects.filter(pk=job.bid_id).update(replanned_slot=None)
        replan_jobs(lane, preferred={job.pk: node.pk})
        booking.handed_at, booking.left_s = now, left_s
        if origin is not None:
            booking.saved_micros = _saved_micros(tiers, booking, origin, left_s, now)
        booking.save(update_fields=["handed_at", "left_s", "saved_micros"])
        return True


def _explain_hand_off(origin: Machine | None, machine: Machine, left_s: float) -> str:
    ready = f"{machine.offer} is ready at {format_usd(machine.price_micros_per_h)} an hour"
    if origin is None:
        return f"{ready}: the job of about {left_s:.0f} s begins there, without serverless."
    return (
        f"{ready}, against {format_usd(origin.price_micros_per_h)} on {origin.offer}: the "
        f"{left_s:.0f} s left repay moving there."
    )


def _move_still_repays(tiers: ZoneTiers, origin: Machine, machine: Machine, left_s: float) -> bool:
    """The worker is up: its boot is paid for in any case."""
    paid = origin.price_micros_per_h / 1e6
    worker = machine.price_micros_per_h / 1e6
    cost = compute_move_cost(tiers.checkpoint_s, tiers.restore_s, 0.0, 0.0, paid, worker, 0.0)
    return is_move_due(left_s, 0.0, compute_break_even_s(cost, paid, worker))


def _rest_fits(tiers: ZoneTiers, job: Job, node: Node, first_slot: int) -> bool:
    """Whether the rest can be done by the deadline on the worker alone.

    So that a new plan is never worse for the owner than the one it replaces.
    """
    work = measure_job_work(job)
    rate = work.rates.get(node.gpu_type_id, 0.0)
    slots = last_slot_until(tiers.zone, job.deadline_at) - first_slot + 1
    return work.compute_demand * compute_work_left_share(job) <= rate * slots


def _saved_micros(
    tiers: ZoneTiers, booking: Booking, origin: Machine, left_s: float, now: datetime
) -> int:
    """What going on would have cost, less what moving costs, the worker's boot included."""
    stays = now + timedelta(seconds=left_s)
    return (
        compute_rent_micros(origin.price_micros_per_h, now, stays)
        - compute_rent_micros(booking.machine.price_micros_per_h, now, stays)
        - _move_cost_micros(tiers, booking)
    )


def _move_cost_micros(tiers: ZoneTiers, booking: Booking) -> int:
    """What a move costs the market: the old rent while the checkpoint is written, the new one
    while the worker boots for this job and restores it."""
    machine, asked_at = booking.machine, booking.made_at
    booted_at = max(machine.ready_at or asked_at, asked_at)
    if booking.origin is None:
        return compute_rent_micros(machine.price_micros_per_h, asked_at, booted_at)
    saved_at = asked_at + timedelta(seconds=tiers.checkpoint_s)
    restored_at = booted_at + timedelta(seconds=tiers.restore_s)
    return compute_rent_micros(
        booking.origin.price_micros_per_h, asked_at, saved_at
    ) + compute_rent_micros(machine.price_micros_per_h, asked_at, restored_at)


def close_bookings(*, tiers: ZoneTiers, now: datetime) -> int:
    """Close the bookings of jobs that have moved or will not; the number closed.

    What a move that came to nothing was to save leaves the surplus again; the caller saves
    ``tiers``.
    """
    rows = Booking.objects.filter(closed_at__isnull=True, machine__zone=tiers.zone)
    closed = 0
    for booking in rows.select_related("job__zone", "machine__join_token", "origin__join_token"):
        if _try_close_booking(tiers, booking, now):
            closed += 1
            if booking.outcome != BookingOutcome.MOVED:
                tiers.surplus -= booking.credit
    return closed


def _try_close_booking(tiers: ZoneTiers, booking: Booking, now: datetime) -> bool:
    job, machine = booking.job, booking.machine
    arrived = _find_arrival(booking)
    if arrived is not None:
        if arrived.status == SliceStatus.OPEN and find_resumed_at(arrived) is None:
            return False
        _record_move(tiers, booking, arrived, now)
    elif machine.status in (MachineStatus.ENDING, MachineStatus.ENDED):
        _close_booking(booking, BookingOutcome.FAILED, now)
        if job.is_active:
            cost = machine.cost_micros or compute_rent_micros(
                machine.price_micros_per_h, machine.requested_at, now
            )
            went = "did not come up" if machine.ready_at is None else "went before it had moved"
            add_job_event(
                job=job,
                kind=EventKind.MOVING,
                message=(
                    f"{machine.offer}, booked for this job, {went}; the house pays "
                    f"{format_usd(cost)} for it and looks for another."
                ),
                now=now,
                data={"machine": machine.pk, "cost_micros": cost},
            )
    elif not job.is_active or not _is_on_its_way(booking, now):
        _close_booking(booking, BookingOutcome.NEEDLESS, now)
    else:
        return False
    return True


def _find_arrival(booking: Booking) -> Slice | None:
    """The job's lease on the worker, once there was one."""
    node = find_machine_node(booking.machine)
    if booking.handed_at is None or node is None:
        return None
    slices = Slice.objects.filter(job=booking.job, node=node, opened_at__gte=booking.handed_at)
    return slices.order_by("opened_at").first()


def _is_on_its_way(booking: Booking, now: datetime) -> bool:
    """Whether the job still runs where the booking found it, or has cells on the worker."""
    node = find_machine_node(booking.machine)
    slot = slot_at(booking.job.zone, now)
    if node is not None and booking.job.has_cells_on(node.pk, from_slot=slot):
        return True
    if booking.origin is None:
        return booking.handed_at is None and has_not_begun(booking.job)
    origin = find_machine_node(booking.origin)
    return booking.handed_at is None and (
        Slice.objects.filter(job=booking.job, node=origin, status=SliceStatus.OPEN).exists()
    )


def _record_move(tiers: ZoneTiers, booking: Booking, arrived: Slice, now: datetime) -> None:
    job, origin, machine = booking.job, booking.origin, booking.machine
    if origin is None:
        _record_direct_start(tiers, booking, now)
        return
    left = (
        Slice.objects.filter(job=job, closed_at__lte=arrived.opened_at)
        .exclude(pk=arrived.pk)
        .order_by("-closed_at")
        .first()
    )
    step, lost = arrived.first_step, 0
    if left is not None:
        lost = left.steps_lost
        booking.pause_s = pause_s(left, arrived)
    _close_booking(booking, BookingOutcome.MOVED, now)
    kept = "no step was lost" if lost == 0 else f"{lost} steps are done again"
    cost = _move_cost_micros(tiers, booking)
    saved = (
        f" Staying would have cost about {format_usd(booking.saved_micros)} more."
        if booking.saved_micros > 0
        else ""
    )
    add_job_event(
        job=job,
        kind=EventKind.MOVING,
        message=(
            f"Moved at step {step} from {origin.offer} ({format_usd(origin.price_micros_per_h)} "
            f"an hour) to {machine.offer} ({format_usd(machine.price_micros_per_h)} an hour); "
            f"{kept}. The move cost the house {format_usd(cost)}.{saved}"
        ),
        now=now,
        data={
            "move": {
                "from": origin.offer,
                "to": machine.offer,
                "from_machine": origin.pk,
                "to_machine": machine.pk,
                "from_price_micros_per_h": origin.price_micros_per_h,
                "to_price_micros_per_h": machine.price_micros_per_h,
                "step": step,
                "steps_lost": lost,
                "cost_micros": cost,
                "saved_micros": booking.saved_micros,
                "pause_s": booking.pause_s,
            }
        },
    )


def _record_direct_start(tiers: ZoneTiers, booking: Booking, now: datetime) -> None:
    machine = booking.machine
    _close_booking(booking, BookingOutcome.MOVED, now)
    cost = _move_cost_micros(tiers, booking)
    add_job_event(
        job=booking.job,
        kind=EventKind.MOVING,
        message=(
            f"Began on {machine.offer} ({format_usd(machine.price_micros_per_h)} an hour), without "
            f"serverless. Its boot cost the house {format_usd(cost)}."
        ),
        now=now,
        data={"machine": machine.pk, "cost_micros": cost},
    )


def _close_booking(booking: Booking, outcome: BookingOutcome, now: datetime) -> None:
    booking.closed_at, booking.outcome = now, outcome
    booking.save(update_fields=["closed_at", "outcome", "pause_s"])
