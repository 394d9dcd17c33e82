"""Pressure over admitted jobs, and how many serverful machines it asks for."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta

import numpy as np

from marketplace.fleet.selectors import slot_at
from marketplace.jobs.queries import load_due_work
from marketplace.tiers.models import Booking, Machine, MachineStatus, Sample, ZoneTiers
from marketplace.tiers.provisioning import MachineOffer
from marketplace.tiers.tier_state import TierState, filter_offers
from scheduler.tiers.demand import compute_pressure, list_window_lengths, measure_demand
from scheduler.tiers.holding import is_worth_holding
from scheduler.tiers.serverful_scaler import TierLoad, compute_worker_change
from scheduler.tiers.serverless_scaler import compute_next_threshold

#: How far back the operator's chart goes.
SAMPLES_KEPT = timedelta(hours=24)
#: Hand-offs that tell how often a worker is needed, and for how long.
TAKES_REMEMBERED = 20


@dataclass(frozen=True, slots=True)
class PressureReading:
    """What a tick measured."""

    #: p of equation 2.
    pressure: float
    #: D of the longest window, seconds of one job's share of a node.
    demand_s: float
    #: Jobs the nodes on sale, and those booting, can run at once.
    capacity: float
    #: Jobs that have no place yet.
    waiting: int


def measure_pressure(*, rented: TierState, nodes: int, now: datetime) -> PressureReading:
    """Demand and pressure over the zone's admitted jobs that are not on serverless.

    Parameters
    ----------
    nodes
        Nodes on sale now; those booting are counted here.
    """
    rules, zone = rented.tiers.rules, rented.tiers.zone
    windows = list_window_lengths(step_s=rules.tick_s, count=rules.windows)
    # Jobs on serverless do not count; nor does the demand of a job that can start later
    # (``scheduler.tiers.demand``).
    due = load_due_work(
        zone_id=zone.pk,
        slot=slot_at(zone, now),
        slot_s=float(zone.slot_s),
        now=now,
        window_s=rules.window_s,
        away=[stay.job_id for stay in rented.stays],
    )
    found = measure_demand(
        remaining_s=due.remaining_s,
        slack_s=due.slack_s,
        gpus=np.ones(len(due.remaining_s)),
        windows_s=windows,
    )
    capacity = float((nodes + rented.coming(serverless=False)) * zone.jobs_per_node)
    return PressureReading(
        pressure=compute_pressure(found, windows, capacity),
        demand_s=float(found[-1]),
        capacity=capacity,
        waiting=due.waiting,
    )


def compute_threshold(*, tiers: ZoneTiers, measured: PressureReading) -> float:
    """F after this tick (Algorithm 1)."""
    rules = tiers.rules
    lowest, highest = rules.threshold_bounds
    return compute_next_threshold(
        tiers.threshold_s,
        measured.pressure,
        rules.gain_up,
        rules.rate_up_s,
        rules.gain_down,
        rules.rate_down_s,
        lowest,
        highest,
    )


def record_sample(*, rented: TierState, now: datetime) -> Sample:
    """Note where the tiers stand, for the operator's chart; old samples go."""
    tiers = rented.tiers
    Sample.objects.filter(zone=tiers.zone, at__lt=now - SAMPLES_KEPT).delete()
    return Sample.objects.create(
        zone=tiers.zone,
        at=now,
        pressure=tiers.pressure if np.isfinite(tiers.pressure) else None,
        threshold_s=tiers.threshold_s,
        serverless=len(rented.of_tier(serverless=True)),
        serverful=len(rented.of_tier(serverless=False)),
        cost_micros_per_h=sum(one.price_micros_per_h for one in rented.machines.values()),
    )


def scale_machines(
    *, rented: TierState, measured: PressureReading, offers: Sequence[MachineOffer], now: datetime
) -> int:
    """Request or end serverful machines as Algorithm 2 says; the change of their count."""
    tiers = rented.tiers
    idle = find_idle_machines(rented, now=now)
    per_node = tiers.zone.jobs_per_node
    change = compute_worker_change(
        TierLoad(
            demand_s=measured.demand_s,
            workers=measured.capacity / per_node,
            rate=per_node,
            window_s=tiers.rules.window_s,
            pressure=measured.pressure,
            waiting=measured.waiting / per_node,
            coming=rented.coming(serverless=False) + len(idle),
        )
    )
    if change > 0:
        wanted = min(change, rented.room(serverless=False))
        return _add_machines(rented, offers, wanted, now)
    ended = find_unworthy(rented, idle[: -change if change else 0], offers, now=now)
    for machine in ended:
        rented.end(machine, reason="Idle, and demand does not need it.", now=now)
    return -len(ended)


def find_unworthy(
    rented: TierState, idle: Sequence[Machine], offers: Sequence[MachineOffer], *, now: datetime
) -> list[Machine]:
    """Those of idle machines, dearest first, that no job to come is expected to repay.

    A rent holds its price, so a cheap one is kept while jobs that need workers keep coming
    (``scheduler.tiers.holding``).
    """
    offered = filter_offers(offers, serverless=False)
    recent = list(
        Booking.objects.filter(machine__zone=rented.tiers.zone, handed_at__isnull=False)
        .order_by("-handed_at")
        .values_list("handed_at", "left_s")[:TAKES_REMEMBERED]
        if idle and offered
        else ()
    )
    times = [at for at, _ in recent if at is not None]
    if len(times) < 2:
        return list(idle)
    gap_s = max(
        (times[0] - times[-1]).total_seconds() / (len(times) - 1),
        (now - times[0]).total_seconds(),
    )
    use_s = sum(left_s for _, left_s in recent) / len(recent)
    cheapest = offered[0]
    for number, machine in enumerate(idle):
        if is_worth_holding(
            machine.price_micros_per_h / 1e6,
            cheapest.price_micros_per_h / 1e6,
            rented.boot_s(cheapest),
            rented.tiers.delay_usd_per_h,
            use_s,
            gap_s * (len(idle) - number),
        ):
            return list(idle[:number])
    return list(idle)


def _add_machines(
    rented: TierState, offers: Sequence[MachineOffer], wanted: int, now: datetime
) -> int:
    serverful = filter_offers(offers, serverless=False)
    if wanted <= 0 or not serverful:
        return 0
    for _ in range(wanted):
        rented.request(serverful[0], reason="Demand exceeds capacity.", now=now)
    return wanted


def find_idle_machines(rented: TierState, *, now: datetime) -> list[Machine]:
    """Serverful machines with nothing sold, running or asked for long enough, dearest first."""
    long_s = timedelta(seconds=rented.tiers.idle_s)
    unused = {machine.pk for machine in rented.unused()}
    found: list[Machine] = []
    for machine, node in rented.online(serverless=False):
        # A booked one is about to get its job.
        if machine.pk in rented.booked:
            continue
        is_idle = machine.pk in unused and node.pk not in rented.asked
        since = (machine.idle_since_at or now) if is_idle else None
        if since != machine.idle_since_at:
            machine.idle_since_at = since
            machine.save(update_fields=["idle_since_at"])
        elif since is not None and now - since >= long_s:
            found.append(machine)
    return sorted(found, key=lambda one: (-one.price_micros_per_h, one.pk))


def release_serverless(*, rented: TierState, now: datetime) -> int:
    """End serverless machines that stood idle for long enough; how many."""
    busy = {stay.machine_id for stay in rented.stays}
    long_s = timedelta(seconds=rented.tiers.idle_s)
    unused = [
        machine
        for machine in rented.of_tier(serverless=True)
        if machine.status == MachineStatus.RUNNING
        and machine.pk not in busy
        and machine.idle_since_at is not None
        and now - machine.idle_since_at >= long_s
    ]
    for machine in unused:
        rented.end(machine, reason="No job has used it for a while.", now=now)
    return len(unused)
