"""Gangs on live seats: what the zone's nodes allow, and how many seats a request needs."""

from __future__ import annotations

import math
from dataclasses import replace

from marketplace.express.fair_share import find_share
from marketplace.express.models import ExpressLane, ExpressRequest
from marketplace.fleet.models import NodeStatus, Zone
from marketplace.fleet.selectors import compute_rates, load_speeds
from scheduler.prompts.gangs import GangRules, find_fewest_seats

#: Seconds from an answer to the first step: the order, the data and the base's first pass.
START_S = 2.0


def find_gang_rules(lane: ExpressLane) -> GangRules:
    """What gangs the lane sells to an organisation that has no job in it."""
    places = _count_places(lane.zone)
    return GangRules(max(1, min(find_share(lane.most_seats), places)), places, START_S)


def _count_places(zone: Zone) -> int:
    """Jobs that a node on sale takes at once, at most: fast ones take more than the zone says."""
    known = load_speeds(zone)
    rates = compute_rates(zone, known)
    counts = [
        math.floor(capacity / rates[gpu_type] + 1e-9)
        for gpu_type, status, capacity, *_ in known
        if status == NodeStatus.ONLINE and rates.get(gpu_type)
    ]
    return max([zone.jobs_per_node, *counts])


def count_wanted_seats(request: ExpressRequest) -> int:
    """Seats that a request was certified, or needs at least for its SLO."""
    if request.answer and request.answer.get("seats"):
        return len(request.answer["seats"])
    law = request.price.get("gang")
    if law is None:
        return 1
    return find_fewest_seats(request.work_s, request.slo_s, GangRules(**law)) or 1


def limit_gang(rules: GangRules, *, seats: int, own_seats: int) -> GangRules:
    """The same for an organisation that already holds some of the lane's seats."""
    room = find_share(seats) - own_seats
    return replace(rules, most=max(1, min(rules.most, room)))
