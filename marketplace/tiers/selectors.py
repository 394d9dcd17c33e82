"""What the operator is shown of the rented machines."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import datetime, timedelta

from django.db.models import Q

from marketplace.tiers.machines import cost_micros
from marketplace.tiers.models import LIVE, Machine, MachineStatus

#: How long a machine that ran unasked is shown after it was ended.
ORPHANS_SHOWN = timedelta(hours=24)
#: A machine's life, in order.
_ORDER: dict[str, int] = {status: place for place, status in enumerate(MachineStatus.values)}


@dataclass(frozen=True, slots=True)
class MachineShown:
    machine: Machine
    #: Rent so far; nothing is known of a machine nobody asked for.
    cost_micros: int | None
    #: Whether it is paid for although nobody asked for it.
    is_alarming: bool


def machines_shown(*, now: datetime) -> list[MachineShown]:
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


def _shown(machine: Machine, now: datetime) -> MachineShown:
    cost = cost_micros(machine.price_micros_per_h, machine.requested_at, machine.ended_at or now)
    if machine.status == MachineStatus.REQUESTED:
        cost = 0
    return MachineShown(
        machine=machine,
        cost_micros=None if machine.is_orphan else cost,
        is_alarming=machine.is_orphan and machine.status != MachineStatus.ENDED,
    )
