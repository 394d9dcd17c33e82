"""Rows of the cells that jobs hold, derived from the log."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping
from datetime import datetime

from django.db.models import Q

from marketplace.auction.models import Bid, Reservation
from scheduler import types as scheduler

#: Sums of costs below a millionth of a micro-dollar are rounding errors.
_TOLERANCE = 1e-6


def reservations_of(
    bid: Bid,
    *,
    cells: Iterable[scheduler.Cell],
    rates: Mapping[str, float],
    nodes: Mapping[str, scheduler.Node],
) -> list[Reservation]:
    """Rows for cells as sold now, with what each is worth to the node's provider.

    Costs are rounded up on their running total, so that no provider is out of
    pocket and all together are never more than the payment they are part of.
    """
    rows: list[Reservation] = []
    total, booked = 0.0, 0
    for cell in cells:
        node = nodes[cell.node]
        rate = rates[node.gpu_type]
        total += node.ask * rate / node.compute_capacity
        cost = max(0, math.ceil(total - _TOLERANCE) - booked)
        booked += cost
        rows.append(
            Reservation(
                bid=bid,
                zone_id=bid.zone_id,
                node_id=cell.node,
                slot=cell.slot,
                samples=rate,
                memory_gb=bid.memory_demand_gb,
                operational_cost_micros=cost,
            )
        )
    return rows


def reservations_release(*, bid_id: str, which: Q, now: datetime) -> int:
    """Mark cells that the job holds no longer; how many."""
    held = Reservation.objects.filter(which, bid_id=bid_id, released_at__isnull=True)
    return held.update(released_at=now)
