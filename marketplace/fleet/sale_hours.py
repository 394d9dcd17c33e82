"""When a node is sold: hours of the day, and a time of maintenance, as its provider wants them.

The auction sells a node from one moment to another. That window is the present stretch of its
hours, or the next one; as it ends, the sweep moves it on. What was sold before is served in any
case.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from datetime import UTC, datetime, time, timedelta
from typing import Any

from django.db import transaction
from django.db.models import Q

from marketplace.common.errors import UserError
from marketplace.fleet import locks, shared_devices
from marketplace.fleet.models import JoinToken, Node, NodeStatus, SharedDevice

_DAY = timedelta(days=1)
#: How far ahead a provider plans maintenance.
MAINTENANCE_MAX = timedelta(days=90)


@dataclass(frozen=True, slots=True)
class SaleHours:
    """A provider's wish for one node; all in UTC."""

    #: From and until when each day; the same time twice is never. ``None``: all day. An end before
    #: the beginning is on the next day.
    opens: time | None = None
    closes: time | None = None
    #: Nothing is sold from then until then.
    maintenance_from_at: datetime | None = None
    maintenance_until_at: datetime | None = None


def find_sale_window(
    hours: SaleHours, *, offered_until_at: datetime | None, now: datetime
) -> tuple[datetime | None, datetime | None]:
    """From when and until when the node is sold; ``None`` on a side without an end."""
    stretches = [_find_stretch(hours, now + days * _DAY) for days in (-1, 0, 1, 2)]
    pause = (hours.maintenance_from_at, hours.maintenance_until_at)
    for begins, ends in stretches:
        for part in _cut(begins, ends, pause):
            if part[1] is None or part[1] > now:
                return part[0], _earlier(part[1], offered_until_at)
    # Maintenance covers all of them: what comes after it.
    return hours.maintenance_until_at, offered_until_at


def list_sale_stretches(
    node: Node, *, since: datetime, until: datetime, now: datetime
) -> list[tuple[datetime, datetime]]:
    """When a node is offered between two moments, by its hours and maintenance, in their order."""
    hours = read_sale_hours(node, now=now)
    last = node.offered_until_at if has_hours(node) else node.available_until_at
    first = None if has_hours(node) else node.available_from_at
    pause = (hours.maintenance_from_at, hours.maintenance_until_at)
    days = range(-1, (until - since).days + 2) if hours.opens is not None else range(1)
    found: list[tuple[datetime, datetime]] = []
    for day in days:
        for begins, ends in _cut(*_find_stretch(hours, since + day * _DAY), pause):
            begin = max(moment for moment in (begins, first, since) if moment is not None)
            end = min(moment for moment in (ends, last, until) if moment is not None)
            if begin < end:
                found.append((begin, end))
    return found


def read_sale_hours(node: Node, *, now: datetime) -> SaleHours:
    """The wish for a node as it is stored; maintenance that is over is none."""
    ends = node.maintenance_until_at
    begins = node.maintenance_from_at
    if ends is not None and ends <= now:
        begins = ends = None
    return SaleHours(node.sale_opens, node.sale_closes, begins, ends)


def set_sale_hours(*, node: Node, change: Mapping[str, Any], now: datetime) -> Node:
    """Sell a node in its hours only, and not in its maintenance; without hours, all day.

    Parameters
    ----------
    change
        Members of ``SaleHours``; those that are not named stay as they are.

    Raises
    ------
    UserError
        ``invalid_hours``: an end without a beginning, a time that is over, or all day where the
        node shares its device.
    Conflict
        ``hours_overlap`` with those of a node that shares its device.
    """
    with transaction.atomic():
        # Another node may join on its device meanwhile.
        locks.lock_provider(node.provider_id)
        node = locks.lock_present_node(node.pk)
        hours = replace(read_sale_hours(node, now=now), **change)
        check_hours(hours, now)
        if not has_hours(node):
            node.offered_until_at = node.available_until_at
        node.sale_opens, node.sale_closes = hours.opens, hours.closes
        node.maintenance_from_at = hours.maintenance_from_at
        node.maintenance_until_at = hours.maintenance_until_at
        shared_devices.leave_device_if_alone(node)
        shared_devices.check_hours_apart(node)
        before = node.available_from_at
        move_window(node, now=now)
        shared_devices.delay_window(node, before=before, now=now)
        node.save(
            update_fields=[
                "shared_device",
                *("sale_opens", "sale_closes", "maintenance_from_at", "maintenance_until_at"),
                *("offered_until_at", "available_from_at", "available_until_at"),
            ]
        )
    return node


def set_joining_hours(
    node: Node, *, token: JoinToken, device: SharedDevice | None, now: datetime
) -> None:
    """Have a node, which is not stored, sold in its token's hours, on the device that it shares."""
    if device is not None:
        node.shared_device = device
    elif node.status == NodeStatus.LEFT:
        # It comes back by itself, perhaps on another machine.
        node.shared_device = None
    if token.sale_opens is not None:
        node.sale_opens, node.sale_closes = token.sale_opens, token.sale_closes
        node.offered_until_at = token.available_until_at
    if has_hours(node):
        move_window(node, now=now)


def move_sale_windows(*, now: datetime) -> int:
    """Move on the windows that are over; how many."""
    timed = Q(sale_opens__isnull=False) | Q(maintenance_until_at__isnull=False)
    over = Node.objects.filter(timed, available_until_at__lte=now).exclude(status=NodeStatus.LEFT)
    moved = 0
    for node_id in list(over.order_by("pk").values_list("pk", flat=True)):
        with transaction.atomic():
            node = locks.lock_node(node_id)
            before = (node.available_from_at, node.available_until_at)
            move_window(node, now=now)
            if (node.available_from_at, node.available_until_at) != before:
                node.save(update_fields=["available_from_at", "available_until_at"])
                moved += 1
    return moved


def has_hours(node: Node) -> bool:
    return node.sale_opens is not None or node.maintenance_until_at is not None


def move_window(node: Node, *, now: datetime) -> None:
    """Set the node's availability, which is not stored, by its hours."""
    node.available_from_at, node.available_until_at = find_node_window(node, now=now)


def find_node_window(node: Node, *, now: datetime) -> tuple[datetime | None, datetime | None]:
    """The window of a node that has hours, by them and not as it was stored last."""
    hours = SaleHours(
        node.sale_opens, node.sale_closes, node.maintenance_from_at, node.maintenance_until_at
    )
    return find_sale_window(hours, offered_until_at=node.offered_until_at, now=now)


def check_hours(hours: SaleHours, now: datetime) -> None:
    """Refuse hours that cannot be.

    Raises
    ------
    UserError
        ``invalid_hours``.
    """
    if (hours.opens is None) != (hours.closes is None) or (
        hours.opens is not None and hours.opens == hours.closes
    ):
        raise UserError(
            "invalid_hours",
            "Say from when and until when the node is sold each day.",
            param="opens",
        )
    begins, ends = hours.maintenance_from_at, hours.maintenance_until_at
    if begins is None and ends is None:
        return
    if begins is None or ends is None or not max(begins, now) < ends <= now + MAINTENANCE_MAX:
        raise UserError(
            "invalid_hours",
            "Give maintenance a beginning and an end. The end must be in the future, within "
            f"{MAINTENANCE_MAX.days} days.",
            param="maintenance_until_at",
        )


def _find_stretch(hours: SaleHours, day: datetime) -> tuple[datetime | None, datetime | None]:
    """The hours that begin on a day; without any, all time."""
    if hours.opens is None or hours.closes is None:
        return None, None
    date = day.astimezone(UTC).date()
    begins = datetime.combine(date, hours.opens, UTC)
    ends = datetime.combine(date, hours.closes, UTC)
    return begins, ends if ends > begins else ends + _DAY


def _cut(
    begins: datetime | None,
    ends: datetime | None,
    pause: tuple[datetime | None, datetime | None],
) -> list[tuple[datetime | None, datetime | None]]:
    """A stretch without the pause: none, one or two parts of it."""
    out, back = pause
    if out is None or back is None:
        return [(begins, ends)]
    before = (begins, _earlier(ends, out))
    after = (back if begins is None else max(begins, back), ends)
    return [part for part in (before, after) if _is_some(part)]


def _is_some(part: tuple[datetime | None, datetime | None]) -> bool:
    return part[0] is None or part[1] is None or part[0] < part[1]


def _earlier(one: datetime | None, other: datetime | None) -> datetime | None:
    return min((moment for moment in (one, other) if moment is not None), default=None)
