"""How many of a lane's seats one organisation may have at once."""

from __future__ import annotations

import math
from collections import Counter
from datetime import datetime

from marketplace.express.models import ExpressLane, ExpressRequest, RequestStatus
from marketplace.express.seats import HeldSeat, load_seats
from marketplace.fleet.models import Zone
from marketplace.jobs.models import Job

#: Of the seats, the share that one organisation's jobs may sit on while there are several.
FAIR_SHARE = 0.5


def find_share(seats: int) -> int:
    """The most seats, of so many, that one organisation's jobs may sit on or wait for."""
    return seats if seats <= 1 else math.ceil(seats * FAIR_SHARE)


def count_active_jobs(zone: Zone) -> Counter[str]:
    """Jobs of the lane that have not ended, by organisation."""
    of_lane = ExpressRequest.objects.filter(zone=zone, status=RequestStatus.ADMITTED)
    active = Job.objects.filter(bid_id__in=of_lane.values("bid_id"), status__in=Job.ACTIVE)
    return Counter(active.values_list("organisation_id", flat=True))


def load_open_seats(lane: ExpressLane, own_jobs: int, *, now: datetime) -> list[HeldSeat]:
    """The lane's seats for an organisation with so many jobs in it; beyond its share, none."""
    seats = load_seats(lane, now=now)
    return [] if len(seats) > 1 and own_jobs >= find_share(len(seats)) else seats
