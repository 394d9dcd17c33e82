"""What the operator is shown of the rented machines."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import datetime, timedelta

from django.db.models import Avg, Q, QuerySet

from marketplace.fleet.models import Tier
from marketplace.fleet.selectors import count_offered_nodes
from marketplace.tiers.machines import compute_rent_micros
from marketplace.tiers.models import (
    LIVE,
    Booking,
    BookingOutcome,
    Machine,
    MachineStatus,
    Sample,
    Stay,
    ZoneTiers,
)

#: How long a machine that ran unasked is shown after it was ended.
ORPHANS_SHOWN = timedelta(hours=24)
#: How far back the page of the machines looks, and how many rows of a kind it lists.
SHOWN = timedelta(hours=24)
ENDED_SHOWN = 30
#: A machine's life, in order.
_ORDER: dict[str, int] = {status: place for place, status in enumerate(MachineStatus.values)}


@dataclass(frozen=True, slots=True)
class MachineSummary:
    machine: Machine
    #: Rent so far; nothing is known of a machine that was not requested.
    cost_micros: int | None
    #: Whether it is paid for although it was not requested.
    is_alarming: bool

    @property
    def is_ended(self) -> bool:
        return self.machine.status == MachineStatus.ENDED


def list_machines(*, now: datetime) -> list[MachineSummary]:
    """Machines that cost money, and lately ended orphans; paid but unknown ones on top."""
    orphans = Q(is_orphan=True, ended_at__gt=now - ORPHANS_SHOWN)
    rows = Machine.objects.filter(Q(status__in=LIVE) | orphans).select_related(
        "zone", "join_token__node"
    )
    shown = [_shown(row, now) for row in rows]
    shown.sort(
        key=lambda one: (
            not one.is_alarming,
            not one.machine.is_orphan,
            one.machine.tier,
            _ORDER[one.machine.status],
            one.machine.pk,
        )
    )
    return shown


def _shown(machine: Machine, now: datetime) -> MachineSummary:
    cost = compute_rent_micros(
        machine.price_micros_per_h, machine.requested_at, machine.ended_at or now
    )
    if machine.status == MachineStatus.REQUESTED:
        cost = 0
    return MachineSummary(
        machine=machine,
        cost_micros=None if machine.is_orphan else cost,
        is_alarming=machine.is_orphan and machine.status != MachineStatus.ENDED,
    )


@dataclass(frozen=True, slots=True)
class TierSummary:
    """A zone's tiers now, and over the last day."""

    tiers: ZoneTiers
    serverless: int
    serverful: int
    cost_micros_per_h: int
    #: Machines on sale that are rented when they are sold.
    offered: int
    samples: tuple[Sample, ...]


def list_tier_summaries(*, now: datetime) -> list[TierSummary]:
    found = []
    for tiers in ZoneTiers.objects.select_related("zone", "provider").order_by("zone__name"):
        live = Machine.objects.filter(zone=tiers.zone, status__in=LIVE)
        serverless = live.filter(tier=Tier.SERVERLESS).count()
        since = now - SHOWN
        found.append(
            TierSummary(
                tiers=tiers,
                serverless=serverless,
                serverful=live.count() - serverless,
                cost_micros_per_h=sum(live.values_list("price_micros_per_h", flat=True)),
                offered=count_offered_nodes(tiers.zone),
                samples=tuple(
                    Sample.objects.filter(zone=tiers.zone, at__gt=since).order_by("at", "pk")
                ),
            )
        )
    return found


@dataclass(frozen=True, slots=True)
class DaySummary:
    """What the tiers did in the last 24 hours."""

    #: Rent of all machines that lived then, for their whole lives.
    spent_micros: int
    saved_micros: int
    moved: int
    came_to_nothing: int
    boots_failed: int
    mean_pause_s: float | None


def summarize_day(*, now: datetime) -> DaySummary:
    since = now - SHOWN
    closed = Booking.objects.filter(closed_at__gt=since)
    moved = closed.filter(outcome=BookingOutcome.MOVED)
    lived = Machine.objects.filter(Q(ended_at__gt=since) | Q(status__in=LIVE), is_orphan=False)
    return DaySummary(
        spent_micros=sum(_shown(machine, now).cost_micros or 0 for machine in lived),
        saved_micros=sum(moved.values_list("saved_micros", flat=True)),
        moved=moved.count(),
        came_to_nothing=closed.exclude(outcome=BookingOutcome.MOVED).count(),
        boots_failed=Machine.objects.filter(failed_at__gt=since, ready_at=None).count(),
        mean_pause_s=Stay.objects.filter(ended_at__gt=since).aggregate(mean=Avg("pause_s"))["mean"],
    )


def list_ended_machines(*, now: datetime) -> list[MachineSummary]:
    """Machines that ended in the last day, the latest first."""
    rows = Machine.objects.filter(
        status=MachineStatus.ENDED, is_orphan=False, ended_at__gt=now - SHOWN
    ).select_related("zone", "join_token__node")
    return [_shown(row, now) for row in rows.order_by("-ended_at")[:ENDED_SHOWN]]


def list_recent_bookings(*, now: datetime) -> QuerySet[Booking]:
    """Hand-offs under way, and those of the last day, the latest first."""
    rows = Booking.objects.filter(Q(closed_at=None) | Q(closed_at__gt=now - SHOWN))
    return rows.select_related("job", "machine", "origin").order_by("-made_at")[:ENDED_SHOWN]
