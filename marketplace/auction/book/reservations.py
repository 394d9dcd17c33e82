"""Rows of the cells that jobs hold, derived from the log."""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from datetime import datetime
from typing import Any

from django.db.models import Max, Q

from marketplace.auction.models import FIRST_REVISION, Bid, BidStatus, Reservation
from scheduler import types as scheduler

#: Sums of costs below a millionth of a micro-dollar are rounding errors.
_TOLERANCE = 1e-6


def build_reservations(
    *,
    bid_id: str,
    zone_id: str,
    memory_gb: float,
    cells: Iterable[scheduler.Cell],
    rates: Mapping[str, float],
    nodes: Mapping[str, scheduler.NodeSpec],
    posted: Sequence[float | None],
    revision: int = FIRST_REVISION,
) -> list[Reservation]:
    """Rows for cells as sold now, with what each is worth to the node's provider.

    ``posted`` are the cells' posted rates, by sample; ``None`` where the ask is paid.

    Costs are rounded up on their running total: no provider loses by rounding, and the sum
    never exceeds the payment.
    """
    rows: list[Reservation] = []
    total, booked = 0.0, 0
    for cell, pay in zip(cells, posted, strict=True):
        node = nodes[cell.node]
        rate = rates[node.gpu_type]
        total += node.ask * rate / node.compute_capacity if pay is None else pay * rate
        cost = max(0, math.ceil(total - _TOLERANCE) - booked)
        booked += cost
        rows.append(
            Reservation(
                bid_id=bid_id,
                zone_id=zone_id,
                node_id=cell.node,
                revision=revision,
                slot=cell.slot,
                samples=rate,
                memory_gb=memory_gb,
                operational_cost_micros=cost,
                posted_rate_micros=pay,
            )
        )
    return rows


def find_next_revision(*, bid_id: str) -> int:
    """The number of the bid's next plan. Call while holding the zone's lane lock."""
    latest = Reservation.objects.filter(bid_id=bid_id).aggregate(latest=Max("revision"))["latest"]
    return FIRST_REVISION if latest is None else latest + 1


def release_reservations(*, bid_id: str, which: Q, now: datetime) -> int:
    """Mark cells that the job holds no longer; how many."""
    held = Reservation.objects.filter(which, bid_id=bid_id, released_at__isnull=True)
    return held.update(released_at=now)


def read_first_cells(bids: Iterable[Bid]) -> None:
    """Read the cells of many bids at once, rather than bid by bid as they are asked for."""
    unread = [bid for bid in bids if bid.status == BidStatus.ADMITTED and bid.first_cells is None]
    if not unread:
        return
    cells: defaultdict[str, list[list[Any]]] = defaultdict(list)
    first = Reservation.objects.filter(bid__in=unread, revision=FIRST_REVISION).order_by("slot")
    for bid_id, slot, node_id in first.values_list("bid_id", "slot", "node_id"):
        cells[bid_id].append([slot, node_id])
    for bid in unread:
        bid.first_cells = cells[bid.pk]
