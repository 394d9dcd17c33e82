"""Solving for prices, apart from the lane: from a copy of a zone's engine to its log.

A solve runs in a worker, on a replica of the engine as the latest beat of the log left it. The
event it gives waits in the ``Pricing`` row until the lane logs the next beat. If it fails or comes
late, the prices in force stand until the beat after.
"""

from __future__ import annotations

import json
import logging
import math
import time
from collections.abc import Callable
from datetime import datetime
from typing import Any

from django.db.models import F, Q

from marketplace.auction.book import engine_cache as books
from marketplace.auction.models import MarketHead, Pricing, SolveStatus
from marketplace.auction.pricing.past_bids import load_past_bids
from marketplace.common.locks import advisory_session_lock
from marketplace.fleet.models import Zone
from scheduler.auction.log import events
from scheduler.auction.log.codec import event_to_json
from scheduler.auction.prices.beats import choose_beat_span, is_idle, solve_for_beat

log = logging.getLogger(__name__)

LOCK = "auction.prices"


class PricesUnusable(Exception):
    """The solve came to something that is not a price."""


def solve_zone_prices(*, zone_id: str, clock: Callable[[], datetime]) -> bool:
    """Solve on a zone's latest beat, if it was not yet, and leave the prices for its lane.

    The lane asks for it at each beat. One at a time: who comes second leaves. Nothing is locked
    that bids need, and nothing is changed but the zone's ``Pricing`` row.

    Returns
    -------
    bool
        Whether there are new prices for the lane.
    """
    with advisory_session_lock(LOCK, zone_id, wait=False) as alone:
        if not alone:
            return False
        heads = MarketHead.objects.filter(zone_id=zone_id, beat_position__gt=0)
        tried = Q(zone__pricing__attempted_position=F("beat_position"))
        # Where the solver of a beat died halfway, its message comes again.
        tried &= ~Q(zone__pricing__status=SolveStatus.SOLVING)
        head = heads.exclude(tried).select_related("zone").first()
        if head is None:
            return False
        _note(
            head.zone,
            status=SolveStatus.SOLVING,
            problem="",
            attempted_at=clock(),
            attempted_position=head.beat_position,
            waiting=None,
        )
        began_s = time.perf_counter()
        try:
            solved = _solve(head)
        except Exception as error:
            log.exception("zone %s: no new prices; those it has stay", head.zone.name)
            problem = f"{type(error).__name__}: {error}"[:500]
            _note(head.zone, status=SolveStatus.FAILED, problem=problem)
            return False
        if solved is None:
            _note(head.zone, status=SolveStatus.IDLE)
            return False
        _note(
            head.zone,
            status=SolveStatus.WAITING,
            solve_s=time.perf_counter() - began_s,
            waiting=json.dumps(event_to_json(solved)),
        )
        return True


def _solve(head: MarketHead) -> events.PricesSolved | None:
    state = books.replicate_at_beat(head=head)
    seen = load_past_bids(zone=head.zone, span=choose_beat_span(state), position=state.position)
    if is_idle(state, seen):
        return None
    solved = solve_for_beat(state, load=lambda _: seen)
    for name, table in (("compute", solved.compute_price), ("memory", solved.memory_price)):
        for node_id, row in table.items():
            if not all(math.isfinite(price) and price >= 0 for price in row):
                raise PricesUnusable(f"A {name} price of {node_id} is negative or not a number.")
    return solved


def _note(zone: Zone, **columns: Any) -> None:
    Pricing.objects.filter(zone=zone).update(**columns)
