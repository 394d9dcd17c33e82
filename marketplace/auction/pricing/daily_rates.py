"""What a sample earns each provider, posted in a zone's log once a day (UTC).

A worker makes the rates on a replica, from the asks as they are then and the bids of past
days, and the zone's lane posts them. They hold until the next day's are posted: an ask that
changes meanwhile counts from then on. The log itself says whether a day's rates are
posted, so the task may run twice, die halfway or run beside another.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Sequence
from datetime import UTC, datetime

from django.db import OperationalError

from marketplace.auction.book import engine_cache as books
from marketplace.auction.book.verify_report import PostedEntry
from marketplace.auction.lane.enter import enter_lane, is_lock_timeout
from marketplace.auction.lane.first_rates import (
    build_rates,
    find_rates_of,
    find_rates_of_joined,
    list_registered_nodes,
)
from marketplace.auction.models import MarketHead
from marketplace.auction.pricing.past_bids import (
    ForecastSpan,
    PastBids,
    find_log_start_slot,
    load_past_bids,
)
from marketplace.auction.pricing.solve import PAST_DAYS
from marketplace.common.locks import advisory_session_lock
from marketplace.common.queue import enqueue
from marketplace.fleet.models import Zone
from marketplace.fleet.selectors import slot_at
from marketplace.fleet.slots import slots_per_day
from scheduler.auction import Engine
from scheduler.auction.log import events
from scheduler.types import Task

log = logging.getLogger(__name__)

LOCK = "auction.rates"


def request_due_rates(*, clock: Callable[[], datetime]) -> list[str]:
    """Ask for the rates of each zone whose rates of the day are not posted yet; their ids."""
    asked = []
    for zone in Zone.objects.filter(settings__posts_rates=True).order_by("pk"):
        try:
            if are_rates_due(zone=zone, now=clock()):
                asked.append(zone.pk)
        except Exception:
            # A zone that is broken must not stop the others.
            log.exception("zone %s: whether rates are due cannot be told", zone.name)
    for zone_id in asked:
        enqueue("auction.rates_post", expires_s=60.0, zone_id=zone_id)
    return asked


def are_rates_due(*, zone: Zone, now: datetime) -> bool:
    """Whether the day's rates are still to be posted."""
    if not MarketHead.objects.filter(zone=zone).exists():
        return False
    with books.read_book(zone=zone, now=now) as book:
        return _is_due(book.engine, now)


def _is_due(engine: Engine, now: datetime) -> bool:
    if not engine.rules.posts_rates:
        return False
    posted = engine.posted_rates
    return posted is None or posted.inputs.get("day") != now.astimezone(UTC).date().isoformat()


def post_daily_rates(*, zone_id: str, clock: Callable[[], datetime]) -> bool:
    """Make and post a zone's rates of the day, unless they are posted; whether they were.

    One at a time: who comes second leaves. The lane is entered only to write them.
    """
    with advisory_session_lock(LOCK, zone_id, wait=False) as alone:
        if not alone:
            return False
        zone, now = Zone.objects.get(pk=zone_id), clock()
        if not are_rates_due(zone=zone, now=now):
            return False
        made = _make_rates(zone, now=now)
        try:
            with enter_lane(zone=zone, now=now) as lane:
                if not _is_due(lane.book.engine, now):
                    return False
                lane.apply(made)
                return True
        except OperationalError as error:
            if not is_lock_timeout(error):
                raise
            log.info("zone %s: another lane is at work; its rates are made again", zone.name)
            return False


def _make_rates(zone: Zone, *, now: datetime) -> events.RatesPosted:
    with books.read_book(zone=zone, now=now) as book:
        position = book.engine.position
        on_sale = [node.id for node in book.engine.nodes]
    span = choose_rate_span(zone=zone, now=now)
    seen = load_past_bids(zone=zone, span=span, position=position)
    return build_rates(
        zone,
        registered=list_registered_nodes(zone, now=now, also=on_sale),
        past_days=seen.past_days,
        now=now,
        given={
            "past_starts": list(span.past_starts),
            "first_position": seen.first_position,
            "last_position": seen.last_position,
            "every": seen.each,
            "counts_winners": True,
        },
        won=seen.won,
    )


def choose_rate_span(*, zone: Zone, now: datetime) -> ForecastSpan:
    """The whole days (UTC) before the one that holds ``now``, as far as the log knows them."""
    midnight = now.astimezone(UTC).replace(hour=0, minute=0, second=0, microsecond=0)
    day, start = slots_per_day(zone), slot_at(zone, midnight)
    began = find_log_start_slot(zone)
    count = zone.settings.get("past_days", PAST_DAYS)
    starts = [start - back * day for back in range(1, count + 1)]
    return ForecastSpan(
        day_start=start,
        slot=start,
        last_slot=start + day - 1,
        past_starts=tuple(at for at in starts if began is not None and at > began),
    )


def find_rates_problems(zone: Zone, posted: Sequence[PostedEntry]) -> list[str]:
    """What is wrong with the rates of a zone's log, made again from what they name."""
    return [
        f"log position {entry.position}: {problem}"
        for entry in posted
        if (problem := _find_rates_problem(zone, entry)) is not None
    ]


def _find_rates_problem(zone: Zone, entry: PostedEntry) -> str | None:
    event = entry.event
    joined = set(event.inputs.get("joined", ()))
    listed = {row[0]: row[2:] for row in event.inputs["registered"]}
    for node in entry.nodes:
        terms = [node.gpu_type, node.compute_capacity, node.memory_capacity, node.ask]
        # Nodes that joined later may have found the others' terms changed already.
        if not joined and listed.get(node.id, terms) != terms:
            return f"the rates were made for other terms of node {node.id}"
    past_days, won = _load_days(zone, event)
    again = find_rates_of(event.inputs, past_days=past_days, day_slots=event.day_slots, won=won)
    for node_id, rate in event.rates.items():
        if node_id not in joined and again.get(node_id) != rate:
            return f"the rate of node {node_id} does not follow from what it names"
    batches = event.inputs.get("joined_rows", ())
    for number in range(len(batches)):
        until = {**event.inputs, "joined_rows": batches[: number + 1]}
        for node_id, rate in find_rates_of_joined(
            until, rates=event.rates, day_slots=event.day_slots
        ).items():
            if event.rates.get(node_id) != rate:
                return f"the rate of node {node_id}, which joined later, does not follow"
    return None


def _load_days(
    zone: Zone, event: events.RatesPosted
) -> tuple[tuple[tuple[Task, ...], ...], frozenset[str]]:
    """The bids of the days that rates were made of, and which of them won."""
    starts = tuple(event.inputs.get("past_starts", ()))
    if not starts:
        return (), frozenset()
    span = ForecastSpan(
        day_start=event.first_slot,
        slot=event.first_slot,
        last_slot=event.first_slot + event.day_slots - 1,
        past_starts=starts,
    )
    found: PastBids = load_past_bids(
        zone=zone, span=span, position=int(event.inputs["last_position"])
    )
    # Rates posted before winners counted whole were made without them.
    return found.past_days, found.won if event.inputs.get("counts_winners") else frozenset()
