"""How many of a lane's seats one organisation may have at once."""

from __future__ import annotations

import math
from collections import Counter
from datetime import datetime

from marketplace.express.models import ExpressLane, ExpressRequest, GangSeat, RequestStatus
from marketplace.express.seats import HeldSeat, load_seats
from marketplace.fleet.models import Zone
from marketplace.jobs.models import Job

#: Of the seats, the share that one organisation's jobs may sit on while there are several.
FAIR_SHARE = 0.5


def find_share(seats: int) -> int:
    """The most seats, of so many, that one organisation's jobs may sit on or wait for."""
    return seats if seats <= 1 else math.ceil(seats * FAIR_SHARE)


def count_held_seats(zone: Zone) -> Counter[str]:
    """Seats that jobs of the lane sit on or wait for, by organisation."""
    of_lane = ExpressRequest.objects.filter(zone=zone, status=RequestStatus.ADMITTED)
    active = Job.objects.filter(bid_id__in=of_lane.values("bid_id"), status__in=Job.ACTIVE)
    jobs = dict(active.values_list("bid_id", "organisation_id"))
    gangs = GangSeat.objects.filter(request__zone=zone, request__bid_id__in=list(jobs))
    further = gangs.values_list("request__bid_id", flat=True)
    return Counter([*jobs.values(), *(jobs[bid_id] for bid_id in further)])


def load_open_seats(lane: ExpressLane, own_seats: int, *, now: datetime) -> list[HeldSeat]:
    """The lane's seats for an organisation that has so many of them; beyond its share, none."""
    seats = load_seats(lane, now=now)
    return [] if len(seats) > 1 and own_seats >= find_share(len(seats)) else seats
