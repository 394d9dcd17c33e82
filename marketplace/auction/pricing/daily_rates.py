"""What a sample earns each provider, posted in a zone's log once a day (UTC).

A worker computes the rates on a replica, from the current asks and the bids of past days. The
zone's lane posts them. They hold until the next day's are posted: an ask that changes meanwhile
counts from then on. The log itself says whether a day's rates are posted, so the task may run
twice, die halfway or run beside another.
"""

from __future__ import annotations

import logging
from collections.abc import Callable
from datetime import UTC, datetime

from django.db import OperationalError

from marketplace.auction.book import engine_cache as books
from marketplace.auction.lane.enter import enter_lane, is_lock_timeout
from marketplace.auction.lane.first_rates import build_rates, list_registered_nodes
from marketplace.auction.models import MarketHead
from marketplace.auction.pricing.past_bids import load_past_bids
from marketplace.common.locks import advisory_session_lock
from marketplace.common.queue import enqueue
from marketplace.fleet.models import Zone
from marketplace.fleet.selectors import slot_at
from marketplace.fleet.slots import count_slots_per_day
from scheduler.auction import Engine
from scheduler.auction.audit.rates_again import find_term_problem
from scheduler.auction.log import events
from scheduler.auction.prices.forecast_span import PAST_DAYS, find_sampling
from scheduler.auction.prices.rate_inputs import choose_rate_span

log = logging.getLogger(__name__)

LOCK = "auction.rates"


def request_due_rates(*, clock: Callable[[], datetime]) -> list[str]:
    """Ask for the rates of each zone whose rates of the day are not posted yet; their ids.

    The rules in force tell: what the operator wants may hold from a later day on.
    """
    asked = []
    for zone in Zone.objects.order_by("pk"):
        try:
            if are_rates_due(zone=zone, now=clock()):
                asked.append(zone.pk)
        except Exception:
            # A zone that is broken must not stop the others.
            log.exception("zone %s: cannot find out whether rates are due", zone.name)
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
                engine = lane.book.engine
                # A node's terms may have changed while the rates were made.
                if not _is_due(engine, now) or find_term_problem(engine, made) is not None:
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
        engine = book.engine
        position, rules = engine.position, engine.rules
        on_sale = engine.nodes
    midnight = now.astimezone(UTC).replace(hour=0, minute=0, second=0, microsecond=0)
    span = choose_rate_span(
        day_start=slot_at(zone, midnight),
        day_slots=count_slots_per_day(zone),
        began=rules.first_slot,
        past_days=rules.settings.get("past_days", PAST_DAYS),
    )
    seen = load_past_bids(zone=zone, span=span, position=position)
    _, past_days = seen.split(span)
    return build_rates(
        zone,
        rules=rules,
        registered=list_registered_nodes(zone, now=now, on_sale=on_sale),
        past_days=past_days,
        now=now,
        given={
            "past_starts": list(span.past_starts),
            "first_position": seen.first_position,
            "last_position": position,
            "every": find_sampling(first=seen.first_position, last=position),
            "counts_winners": True,
        },
        won=seen.won,
    )
