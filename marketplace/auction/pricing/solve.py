"""Solving for prices, apart from the lane: from a copy of a zone's engine to its log.

A zone's solve runs in a worker, on a replica at one position of the log. The event
it gives waits in the ``Pricing`` row until the lane applies it. If anything fails
here, the lane goes on at the prices it has.
"""

from __future__ import annotations

import hashlib
import json
import logging
import math
import time
from collections.abc import Callable
from dataclasses import dataclass, replace
from datetime import datetime, timedelta
from typing import Any

from django.db import OperationalError, transaction

from marketplace.auction.book import engine_cache as books
from marketplace.auction.lane.enter import enter_lane, is_lock_timeout
from marketplace.auction.lane.price_changes import take_solved_prices
from marketplace.auction.models import MarketHead, Pricing, SolveStatus
from marketplace.auction.pricing.past_bids import (
    find_log_start_slot,
    has_burst,
    has_sold_much,
    load_past_bids,
)
from marketplace.common.locks import advisory_session_lock
from marketplace.common.queue import enqueue
from marketplace.fleet.models import Zone
from marketplace.fleet.selectors import list_nodes_on_sale, slot_at
from marketplace.fleet.slots import count_slots_per_day
from scheduler.auction.audit.solve_choices import SolveChoices
from scheduler.auction.engine.engine import Engine
from scheduler.auction.log import events
from scheduler.auction.log.codec import event_to_json
from scheduler.auction.prices import KnownBids, solve_prices
from scheduler.auction.prices.forecast_span import PAST_DAYS, SLOTS_LATE, choose_span
from scheduler.auction.prices.solve import choose_seed, read_settings

log = logging.getLogger(__name__)

LOCK = "auction.prices"
#: Where a zone's settings are silent; what the published figures are measured with.
SOLVE_EVERY_SLOTS = 2
#: Slots at a log's beginning after each of which prices are solved again.
FIRST_SLOTS = 6
#: A zone rests after a solve for this multiple of the time that the solve took.
REST = 4.0
#: Seconds before a failed solve is tried again, doubled with each failure in a row.
RETRY_S, RETRY_MOST_S = 15.0, 3600.0


class PricesUnusable(Exception):
    """The solve came to something that is not a price."""


@dataclass(frozen=True, slots=True)
class DueSolve:
    """What a solve that is due is for."""

    slot: int
    #: Digest of the nodes on sale.
    fleet: str


def request_due_solves(*, clock: Callable[[], datetime]) -> list[str]:
    """Ask for a solve of each zone that is due for one; their ids."""
    asked = []
    for zone in Zone.objects.order_by("pk"):
        try:
            if find_due_solve(zone=zone, now=clock()) is not None:
                asked.append(zone.pk)
        except Exception:
            # A zone that is broken must not stop the others.
            log.exception("zone %s: cannot find out whether prices are due", zone.name)
    for zone_id in asked:
        enqueue("auction.prices_solve", expires_s=60.0, zone_id=zone_id)
    return asked


def find_due_solve(*, zone: Zone, now: datetime) -> DueSolve | None:
    """What to solve for now, if anything."""
    head = MarketHead.objects.filter(zone=zone).first()
    if head is None:
        return None
    pricing = Pricing.objects.get(zone=zone)
    due = DueSolve(slot=max(slot_at(zone, now), head.slot), fleet=_fleet(zone))
    if pricing.waiting is not None and due.slot <= (pricing.attempted_slot or 0) + SLOTS_LATE:
        # Solved already. The message to the lane may have been lost.
        enqueue("auction.prices_apply", zone_id=zone.pk)
        return None
    if not due.fleet or (pricing.next_at is not None and now < pricing.next_at):
        return None
    applied = pricing.applied_position
    if pricing.applied_slot is None or applied is None or pricing.status != SolveStatus.APPLIED:
        return due
    fresh = due.slot < pricing.applied_slot + _every(zone, due.slot)
    if fresh and due.fleet == pricing.attempted_fleet:
        moved = has_sold_much(zone=zone, solved=applied) or has_burst(
            zone=zone, slot=due.slot, solved=applied, last=head.position
        )
        return due if moved else None
    return due


def _every(zone: Zone, slot: int) -> int:
    began = find_log_start_slot(zone)
    first = began is None or slot - began <= FIRST_SLOTS
    return 1 if first else zone.settings.get("solve_every_slots", SOLVE_EVERY_SLOTS)


def _fleet(zone: Zone) -> str:
    """Digest of what is on sale; empty when nothing is."""
    columns = ("pk", "compute_capacity", "memory_gb", "ask_micros")
    rows = list(
        list_nodes_on_sale(zone).values_list(*columns, "available_from_at", "available_until_at")
    )
    return hashlib.sha256(repr(rows).encode()).hexdigest() if rows else ""


def solve_zone_prices(*, zone_id: str, clock: Callable[[], datetime]) -> bool:
    """Solve for a zone's prices if that is due, and hand them to its lane.

    One at a time: who comes second leaves. Nothing is locked that bids need, and nothing is
    changed but the zone's ``Pricing`` row.

    Returns
    -------
    bool
        Whether there are new prices for the lane.
    """
    with advisory_session_lock(LOCK, zone_id, wait=False) as alone:
        if not alone:
            return False
        zone = Zone.objects.get(pk=zone_id)
        now = clock()
        due = find_due_solve(zone=zone, now=now)
        if due is None:
            return False
        _note(
            zone,
            status=SolveStatus.SOLVING,
            problem="",
            attempted_at=now,
            attempted_slot=due.slot,
            attempted_fleet=due.fleet,
            waiting=None,
        )
        began_s = time.perf_counter()
        try:
            solved = _solve(zone, due=due, now=now)
        except Exception as error:
            log.exception("zone %s: no new prices; those it has stay", zone.name)
            _failed(zone, error, now=clock())
            return False
        took_s = time.perf_counter() - began_s
        with transaction.atomic():
            _note(
                zone,
                status=SolveStatus.WAITING,
                solve_s=took_s,
                failures=0,
                next_at=clock() + timedelta(seconds=REST * took_s),
                waiting=json.dumps(event_to_json(solved)),
            )
            enqueue("auction.prices_apply", zone_id=zone.pk)
        return True


def _solve(zone: Zone, *, due: DueSolve, now: datetime) -> events.PricesSolved:
    with books.read_book(zone=zone, now=now) as book:
        engine = book.engine.replica()
    state = engine.replica()
    # The lane may have gone on since the solve was found due.
    slot = max(due.slot, engine.horizon.first_slot)
    if slot > engine.horizon.first_slot:
        # As the lane will, before it applies the prices.
        engine.transition(events.SlotAdvanced(slot=slot))
    # The log's, not the operator's wish: who checks a solve knows no other.
    settings = engine.rules.settings
    span = choose_span(
        day_slots=count_slots_per_day(zone),
        # Bids that arrive in a slot start in the next: a task's arrival is that one.
        began=engine.rules.first_slot + 1,
        slot=slot + 1,
        last_slot=engine.horizon.last_slot,
        past_days=settings.get("past_days", PAST_DAYS),
    )
    seen = load_past_bids(zone=zone, span=span, position=engine.position)
    solved = solve_prices(
        engine,
        KnownBids(
            slot=span.slot,
            last_slot=span.last_slot,
            day_start=span.day_start,
            today=seen.today,
            past_days=seen.past_days,
            each=float(seen.each),
            given={
                "past_starts": list(span.past_starts),
                "first_position": seen.first_position,
                "last_position": seen.last_position,
                "every": seen.each,
            },
            won=seen.won,
        ),
        seed=choose_seed(engine, slot=span.slot),
        settings=read_settings(settings),
        salt=books.get_commitment_salt(),
    )
    _check(solved, state=state)
    return solved


def _check(solved: events.PricesSolved, *, state: Engine) -> None:
    """Refuse what a verifier of the log would not accept, before it is in the log.

    Raises
    ------
    PricesUnusable
    """
    problem = SolveChoices().find_problem(
        solved.inputs,
        seed=solved.seed,
        state=state,
        taken_at=replace(state.horizon, first_slot=int(solved.inputs["slot"]) - 1),
    )
    if problem is not None:
        raise PricesUnusable(problem)
    for name, table in (("compute", solved.compute_price), ("memory", solved.memory_price)):
        for node_id, row in table.items():
            if not all(math.isfinite(price) and price >= 0 for price in row):
                raise PricesUnusable(f"A {name} price of {node_id} is negative or not a number.")


def _failed(zone: Zone, error: Exception, *, now: datetime) -> None:
    failures = 1 + Pricing.objects.values_list("failures", flat=True).get(zone=zone)
    wait_s = min(RETRY_S * 2.0 ** (failures - 1), RETRY_MOST_S)
    _note(
        zone,
        status=SolveStatus.FAILED,
        problem=f"{type(error).__name__}: {error}"[:500],
        failures=failures,
        next_at=now + timedelta(seconds=wait_s),
    )


def _note(zone: Zone, **columns: Any) -> None:
    Pricing.objects.filter(zone=zone).update(**columns)


def apply_prices(*, zone_id: str, clock: Callable[[], datetime]) -> bool:
    """Let the zone's lane take the prices that wait; whether they came into force."""
    if not Pricing.objects.filter(zone_id=zone_id, waiting__isnull=False).exists():
        return False
    zone = Zone.objects.get(pk=zone_id)
    try:
        with enter_lane(zone=zone, now=clock()) as lane:
            return take_solved_prices(lane)
    except OperationalError as error:
        if not is_lock_timeout(error):
            raise
        log.info("zone %s: another lane is at work; its prices wait", zone.name)
        return False
