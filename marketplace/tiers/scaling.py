"""Pressure over admitted jobs, and how many serverful machines it asks for."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import Any

import numpy as np
from django.db.models import F, FloatField, Q, Value
from django.db.models.functions import Cast, Extract
from numpy.typing import NDArray

from marketplace.fleet.models import NodeStatus, Tier, Zone
from marketplace.fleet.selectors import nodes_on_sale, slot_at
from marketplace.jobs.models import Job, Slice, SliceStatus
from marketplace.tiers.cells import slots_all, slots_from
from marketplace.tiers.machines import cells_held, machine_end, machine_request, node_of
from marketplace.tiers.models import (
    LIVE,
    Booking,
    Machine,
    MachineStatus,
    Sample,
    Stay,
    ZoneTiers,
)
from marketplace.tiers.provisioning import Offer
from scheduler.tiers.demand import demand, pressure, window_lengths
from scheduler.tiers.rules import TierRules
from scheduler.tiers.serverful_scaler import workers_change
from scheduler.tiers.serverless_scaler import next_threshold

#: How far back the operator's chart goes.
SAMPLES_KEPT = timedelta(hours=24)


@dataclass(frozen=True, slots=True)
class Gauge:
    """What a tick measured."""

    #: p of equation 2.
    pressure: float
    #: D of the longest window, seconds of one job's share of a node.
    demand_s: float
    #: Jobs the nodes on sale, and those booting, can run at once.
    capacity: float
    #: Jobs that have no place yet.
    waiting: int


def gauge(*, tiers: ZoneTiers, rules: TierRules, now: datetime) -> Gauge:
    """Demand and pressure over the zone's admitted jobs that are not on serverless."""
    zone = tiers.zone
    away = Stay.objects.filter(ended_at__isnull=True, machine__zone=zone).values("job_id")
    booting = Machine.objects.filter(
        zone=zone, status__in=(MachineStatus.REQUESTED, MachineStatus.BOOTING)
    ).exclude(tier=Tier.SERVERLESS)
    nodes = nodes_on_sale(zone).exclude(tier=Tier.SERVERLESS).count() + booting.count()
    jobs = live_jobs(zone, ~Q(pk__in=away), now)
    return gauge_of(tiers=tiers, rules=rules, jobs=jobs, nodes=nodes)


def gauge_of(
    *, tiers: ZoneTiers, rules: TierRules, jobs: dict[str, NDArray[np.float64]], nodes: float
) -> Gauge:
    """The same of columns that were read: arithmetic alone."""
    remaining = remaining_s(tiers.zone, jobs)
    windows = window_lengths(step_s=rules.tick_s, count=rules.windows)
    found = demand(
        remaining_s=remaining,
        slack_s=jobs["due_s"] - remaining,
        gpus=np.ones(len(remaining)),
        windows_s=windows,
    )
    capacity = float(nodes * tiers.zone.jobs_per_node)
    return Gauge(
        pressure=pressure(found, windows, capacity),
        demand_s=float(found[-1]),
        capacity=capacity,
        waiting=int(jobs["needs_replan"].sum()),
    )


def live_jobs(zone: Zone, which: Q, now: datetime) -> dict[str, NDArray[np.float64]]:
    """What the demand of admitted jobs follows from, as columns; NaN where not known.

    Cells are counted where they are: jobs have hundreds of them.
    """
    present = Value(now.timestamp(), output_field=FloatField())
    columns: dict[str, Any] = {
        "due_s": Cast(Extract("deadline_at", "epoch"), FloatField()) - present,
        "left_s": Cast(Extract("eta_at", "epoch"), FloatField()) - present,
        "ahead": slots_from(slot_at(zone, now)),
        "planned": slots_all(),
        "checkpoint": F("checkpoint_step"),
        "steps": F("total_steps"),
        "needs_replan": F("needs_replan"),
    }
    named = {f"live_{name}": column for name, column in columns.items()}
    jobs = Job.objects.filter(which, zone=zone, status__in=Job.ACTIVE).annotate(**named)
    rows = np.array(list(jobs.values_list(*named)), dtype=np.float64).reshape(-1, len(columns))
    return {name: rows[:, i] for i, name in enumerate(columns)}


def remaining_s(zone: Zone, jobs: dict[str, NDArray[np.float64]]) -> NDArray[np.float64]:
    """Seconds of one place on a node that each job still takes (r_j)."""
    # A job whose cells are lost or over: as many again, for the share no checkpoint holds.
    done = np.divide(
        jobs["checkpoint"],
        jobs["steps"],
        out=np.zeros_like(jobs["steps"]),
        where=jobs["steps"] > 0,
    )
    slots = np.where(jobs["ahead"] > 0, jobs["ahead"], jobs["planned"] * (1.0 - done))
    # A running job says itself.
    said = np.maximum(0.0, jobs["left_s"])
    return np.where(np.isnan(said), slots * float(zone.slot_s), said)


def threshold_next(*, tiers: ZoneTiers, rules: TierRules, measured: Gauge) -> float:
    """F after this tick (Algorithm 1)."""
    lowest, highest = rules.threshold_bounds
    return next_threshold(
        tiers.threshold_s,
        measured.pressure,
        rules.gain_up,
        rules.rate_up_s,
        rules.gain_down,
        rules.rate_down_s,
        lowest,
        highest,
    )


def sample_take(*, tiers: ZoneTiers, now: datetime) -> Sample:
    """Note where the tiers stand, for the operator's chart; old samples go."""
    Sample.objects.filter(zone=tiers.zone, at__lt=now - SAMPLES_KEPT).delete()
    live = Machine.objects.filter(zone=tiers.zone, status__in=LIVE)
    serverless = live.filter(tier=Tier.SERVERLESS).count()
    return Sample.objects.create(
        zone=tiers.zone,
        at=now,
        pressure=tiers.pressure if np.isfinite(tiers.pressure) else None,
        threshold_s=tiers.threshold_s,
        serverless=serverless,
        serverful=live.count() - serverless,
        cost_micros_per_h=sum(live.values_list("price_micros_per_h", flat=True)),
    )


def machines_scale(
    *,
    tiers: ZoneTiers,
    rules: TierRules,
    measured: Gauge,
    offers: Sequence[Offer],
    now: datetime,
) -> int:
    """Request or end serverful machines as Algorithm 2 says; the change of their count."""
    live = Machine.objects.filter(zone=tiers.zone, status__in=LIVE).exclude(tier=Tier.SERVERLESS)
    idle = idle_machines(tiers, now=now)
    per_node = tiers.zone.jobs_per_node
    coming = live.filter(status__in=(MachineStatus.REQUESTED, MachineStatus.BOOTING)).count()
    change = workers_change(
        measured.demand_s,
        measured.capacity / per_node,
        per_node,
        rules.window_s,
        measured.pressure,
        measured.waiting / per_node,
        coming + len(idle),
    )
    if change > 0:
        wanted = min(change, tiers.serverful_cap - live.count())
        return _machines_add(tiers, offers, wanted, now)
    ended = idle[: -change if change else 0]
    for machine in ended:
        machine_end(machine=machine, reason="Idle, and demand does not need it.", now=now)
    return -len(ended)


def _machines_add(tiers: ZoneTiers, offers: Sequence[Offer], wanted: int, now: datetime) -> int:
    serverful = [offer for offer in offers if offer.tier != Tier.SERVERLESS]
    if wanted <= 0 or not serverful:
        return 0
    cheapest = min(serverful, key=lambda offer: (offer.price_micros_per_h, offer.name))
    for _ in range(wanted):
        machine_request(tiers=tiers, offer=cheapest, reason="Demand exceeds capacity.", now=now)
    return wanted


def idle_machines(tiers: ZoneTiers, *, now: datetime) -> list[Machine]:
    """Serverful machines with nothing sold or running for long enough, dearest first."""
    rows = Machine.objects.filter(
        zone=tiers.zone,
        status=MachineStatus.RUNNING,
        join_token__node__status=NodeStatus.ONLINE,
    ).exclude(tier=Tier.SERVERLESS)
    # A booked one is about to get its job.
    rows = rows.exclude(pk__in=Booking.objects.filter(closed_at__isnull=True).values("machine_id"))
    found = []
    for machine in rows.select_related("join_token").order_by("-price_micros_per_h", "pk"):
        node = node_of(machine)
        leased = Slice.objects.filter(node=node, status=SliceStatus.OPEN).exists()
        if node is None or leased or cells_held(node, now=now):
            if machine.idle_since_at is not None:
                machine.idle_since_at = None
                machine.save(update_fields=["idle_since_at"])
        elif machine.idle_since_at is None:
            machine.idle_since_at = now
            machine.save(update_fields=["idle_since_at"])
        elif now - machine.idle_since_at >= timedelta(seconds=tiers.idle_s):
            found.append(machine)
    return found


def serverless_release(*, tiers: ZoneTiers, now: datetime) -> int:
    """End serverless machines that nobody used for long enough; how many."""
    busy = Stay.objects.filter(ended_at__isnull=True).values("machine_id")
    unused = Machine.objects.filter(
        zone=tiers.zone,
        tier=Tier.SERVERLESS,
        status=MachineStatus.RUNNING,
        idle_since_at__lte=now - timedelta(seconds=tiers.idle_s),
    ).exclude(pk__in=busy)
    for machine in unused.order_by("pk"):
        machine_end(machine=machine, reason="No job has used it for a while.", now=now)
    return len(unused)
