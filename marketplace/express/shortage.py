"""What a lane lacks that cannot be bought: seats for which no cell of the zone is on sale.

A burst buys unsold cells. Where there are none, the tiers rent machines, whose cells the lane then
buys at the posted price as anybody may.
"""

from __future__ import annotations

from dataclasses import dataclass
from datetime import datetime, timedelta

from marketplace.express.models import ExpressLane
from marketplace.express.seat_autoscaler import STEP_S, compute_hourly_cost, list_demand
from marketplace.express.seats import load_seats
from marketplace.express.selectors import count_unsold
from marketplace.fleet.models import Zone

#: Demand that is older than this is no reason to rent a machine.
RECENT = timedelta(minutes=1)


@dataclass(frozen=True, slots=True)
class Shortage:
    """Seats that a lane would buy if there were cells, and what it may pay for a machine's."""

    seats: int
    #: For one seat and slot.
    seat_limit_micros: int
    #: Of the hourly budget, what its seats leave.
    budget_left_micros_per_h: int


def find_shortage(zone: Zone, *, now: datetime) -> Shortage | None:
    """What the zone's lane lacks now; ``None`` when nothing, or when there are cells to buy."""
    lane = ExpressLane.objects.select_related("zone").filter(zone=zone, is_open=True).first()
    if lane is None or count_unsold(lane, now=now):
        return None
    held = len(load_seats(lane, now=now))
    recent = list_demand(lane, now=now)[-int(RECENT.total_seconds() / STEP_S) :]
    lacking = min(max(recent), lane.most_seats) - held
    if lacking < 1:
        return None
    cost = compute_hourly_cost(lane) * held
    return Shortage(
        seats=lacking,
        seat_limit_micros=lane.seat_limit_micros,
        budget_left_micros_per_h=max(0, int(lane.budget_micros_per_h - cost)),
    )
