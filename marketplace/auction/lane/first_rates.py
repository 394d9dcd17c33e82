"""Posted rates as the lane makes them: for nodes that came after the day's were posted."""

from __future__ import annotations

import logging
from collections.abc import Collection, Mapping, Sequence
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from typing import Any

from django.db.models import Q

from marketplace.auction.lane.lane import Lane
from marketplace.fleet.models import Node, NodeStatus, Zone
from marketplace.fleet.selectors import build_node_spec, slot_at
from marketplace.fleet.slots import count_slots_per_day
from scheduler.auction import ZoneRules
from scheduler.auction.audit.rates_again import find_rates_problem
from scheduler.auction.log import events
from scheduler.auction.prices.counted_bids import take_charges_off
from scheduler.auction.prices.posted_rates import RateSettings, RegisteredNode
from scheduler.auction.prices.rate_inputs import (
    describe_inputs,
    find_rates_of,
    find_rates_of_joined,
    write_row,
)
from scheduler.types import NodeRate, NodeSpec, Task

log = logging.getLogger(__name__)

#: Seconds of the day that one rate stands for.
BLOCK_S = 4800
#: A node not heard for longer is no part of what is registered.
HEARD_WITHIN = timedelta(days=2)


def post_first_rates(lane: Lane) -> bool:
    """Post a rate for nodes on sale that have none; the others keep theirs.

    The first of a zone is what ``post_rates`` gives where no past day is known. Later ones follow
    from the terms and the rates that the log has already (``find_joined_rates``).
    """
    engine = lane.book.engine
    if not engine.rules.posts_rates:
        return False
    posted = engine.posted_rates
    known: Mapping[str, NodeRate] = {} if posted is None else posted.rates
    missing = [node.id for node in engine.nodes if node.id not in known]
    if not missing:
        return False
    registered = list_registered_nodes(lane.zone, now=lane.now, on_sale=engine.nodes)
    if posted is None:
        made = build_rates(
            lane.zone, rules=engine.rules, registered=registered, past_days=(), now=lane.now
        )
        return _post(lane, made)
    rows = [write_row(each) for each in registered if each.node.id in missing]
    inputs = {
        **posted.inputs,
        "joined": [*posted.inputs.get("joined", ()), *missing],
        "joined_rows": [*posted.inputs.get("joined_rows", ()), rows],
    }
    rates = {**known, **find_rates_of_joined(inputs, rates=known, day_slots=posted.day_slots)}
    return _post(lane, replace(posted, rates=rates, inputs=inputs))


def _post(lane: Lane, rates: events.RatesPosted) -> bool:
    """Write rates to the log if a verifier will accept them; whether it will."""
    problem = find_rates_problem(lane.book.engine, rates, find_days=lambda *_: (), won=())
    if problem is not None:
        log.error("zone %s: rates are not posted: %s", lane.zone.name, problem)
        return False
    lane.apply(rates)
    return True


def list_registered_nodes(
    zone: Zone, *, now: datetime, on_sale: Collection[NodeSpec]
) -> list[RegisteredNode]:
    """Nodes that count in rates: all that were heard of late, and those on sale."""
    sold = {node.id: node for node in on_sale}
    heard = Q(last_heartbeat_at__gte=now - HEARD_WITHIN) | Q(pk__in=sold)
    nodes = Node.objects.filter(heard, zone=zone).exclude(status=NodeStatus.LEFT)
    return [
        RegisteredNode(sold.get(node.pk) or build_node_spec(zone, node), node.provider_id)
        for node in nodes.order_by("pk")
    ]


def build_rates(
    zone: Zone,
    *,
    rules: ZoneRules,
    registered: Sequence[RegisteredNode],
    past_days: Sequence[Sequence[Task]],
    now: datetime,
    given: Mapping[str, Any] | None = None,
    won: Collection[str] = frozenset(),
) -> events.RatesPosted:
    """The event that posts rates for the day that holds ``now``.

    Parameters
    ----------
    rules
        Of the zone's log.
    past_days
        Bids of whole days, slots counted from the day's first; none: first rates.
    given
        Where the bids were taken from; goes to the event's inputs.
    won
        Ids of those bids that were admitted.
    """
    midnight = now.astimezone(UTC).replace(hour=0, minute=0, second=0, microsecond=0)
    day_slots = count_slots_per_day(zone)
    settings = RateSettings(block_slots=min(max(1, round(BLOCK_S / zone.slot_s)), day_slots))
    inputs = {
        "day": midnight.date().isoformat() if given is not None else "",
        **describe_inputs(
            registered,
            base_memory=rules.base_memory,
            zone_settings=rules.settings,
            settings=settings,
        ),
        **(given or {}),
    }
    return events.RatesPosted(
        first_slot=slot_at(zone, midnight),
        block_slots=settings.block_slots,
        day_slots=day_slots,
        rates=find_rates_of(
            inputs,
            past_days=[take_charges_off(day, rules) for day in past_days],
            day_slots=day_slots,
            won=won,
        ),
        inputs=inputs,
    )
