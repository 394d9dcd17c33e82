"""Rows of the cells that jobs hold, derived from the log."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping
from datetime import datetime
from typing import NamedTuple

from django.db.models import Q

from marketplace.auction.models import Reservation
from marketplace.common.db.bulk_writes import insert_values
from scheduler import types as scheduler

#: Sums of costs below a millionth of a micro-dollar are rounding errors.
_TOLERANCE = 1e-6


class ReservationRow(NamedTuple):
    """A row of ``Reservation``, new."""

    bid_id: str
    zone_id: str
    node_id: str
    slot: int
    samples: float
    memory_gb: float
    operational_cost_micros: int


def build_reservation_rows(
    *,
    bid_id: str,
    zone_id: str,
    memory_gb: float,
    cells: Iterable[scheduler.Cell],
    rates: Mapping[str, float],
    nodes: Mapping[str, scheduler.Node],
) -> list[ReservationRow]:
    """Rows for cells as sold now, with what each is worth to the node's provider.

    Costs are rounded up on their running total, so that no provider is out of
    pocket and all together are never more than the payment they are part of.
    """
    rows: list[ReservationRow] = []
    total, booked = 0.0, 0
    for cell in cells:
        node = nodes[cell.node]
        rate = rates[node.gpu_type]
        total += node.ask * rate / node.compute_capacity
        cost = max(0, math.ceil(total - _TOLERANCE) - booked)
        booked += cost
        rows.append(ReservationRow(bid_id, zone_id, cell.node, cell.slot, rate, memory_gb, cost))
    return rows


def insert_reservations(rows: Iterable[ReservationRow]) -> None:
    insert_values(Reservation, ReservationRow._fields, rows)


def release_reservations(*, bid_id: str, which: Q, now: datetime) -> int:
    """Mark cells that the job holds no longer; how many."""
    held = Reservation.objects.filter(which, bid_id=bid_id, released_at__isnull=True)
    return held.update(released_at=now)
