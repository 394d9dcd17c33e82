"""Posted rates are made again: a rate that was posted to suit a bid is found.

A rate is the reserve in the buyer's price. A market that could post rates as it likes would
post one just below the bid that it has seen. So rates are posted once a day, are made from
what their event names, and that is what the log leads to.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import replace
from datetime import UTC, date, datetime, time
from typing import Any

from scheduler.auction.audit.faults import measure_difference
from scheduler.auction.engine.engine import Engine
from scheduler.auction.log.events import RatesPosted
from scheduler.auction.log.rules import ZoneRules
from scheduler.auction.prices.counted_bids import take_charges_off
from scheduler.auction.prices.forecast_span import PAST_DAYS, ForecastSpan
from scheduler.auction.prices.posted_rates import RateSettings, RegisteredNode
from scheduler.auction.prices.rate_inputs import (
    choose_rate_span,
    describe_inputs,
    find_other_terms,
    find_rates_of,
    find_rates_of_joined,
    read_row,
)
from scheduler.types import NodeRate, Task

#: Gives the bids of the past days of a span that an event's inputs name, by day.
FindDays = Callable[[Mapping[str, Any], ForecastSpan], Sequence[Sequence[Task]]]
#: Inputs of nodes that joined after the day's rates were posted.
_JOINED = ("joined", "joined_rows")


def find_rates_problem(
    engine: Engine, event: RatesPosted, *, find_days: FindDays, won: Collection[str]
) -> str | None:
    """Say what of posted rates does not follow from the log, if anything.

    Parameters
    ----------
    engine : Engine
        As it is before the event.
    event : RatesPosted
    find_days : callable
    won : collection of str
        Ids of bids admitted before.

    Raises
    ------
    KeyError, TypeError, ValueError
        If the event's inputs are not those of rates.
    """
    before = engine.posted_rates
    if before is not None and _without_joined(event.inputs) == _without_joined(before.inputs):
        return _find_joined_problem(engine, event, before)
    if any(event.inputs.get(name) for name in _JOINED):
        return "rates of nodes that joined do not follow those of the others"
    return find_term_problem(engine, event) or _find_value_problem(engine, event, find_days, won)


def _without_joined(inputs: Mapping[str, Any]) -> dict[str, Any]:
    return {name: value for name, value in inputs.items() if name not in _JOINED}


def _find_joined_problem(engine: Engine, event: RatesPosted, before: RatesPosted) -> str | None:
    inputs = event.inputs
    *earlier, last = inputs["joined_rows"]
    names = [row[0] for row in last]
    same = replace(event, rates=before.rates, inputs=before.inputs) == before
    known = [*before.inputs.get("joined", ()), *names]
    kept = earlier == list(before.inputs.get("joined_rows", ()))
    if not (same and kept and list(inputs["joined"]) == known):
        return "the rates of the nodes before them changed as nodes joined"
    if any(name in before.rates for name in names):
        return "a node that has a rate joined again at another"
    if find_other_terms(last, engine.nodes) is not None:
        return "the rates of nodes that joined were made for other terms"
    made = find_rates_of_joined(inputs, rates=before.rates, day_slots=event.day_slots)
    if event.rates != {**before.rates, **made}:
        return "the rate of a node that joined later does not follow from the others"
    return None


def make_rates_of_place(
    engine: Engine,
    event: RatesPosted,
    *,
    name_bids: Callable[[ForecastSpan], Mapping[str, Any]],
    find_days: FindDays,
    won: Collection[str],
) -> RatesPosted:
    """Give the event with the rates that it should have posted where it stands.

    Of what it names that it was made of only the nodes have a part in it, at the terms that the
    log has them on sale at, and where it is the first one the length of blocks and days.

    Raises
    ------
    KeyError, TypeError, ValueError, IndexError
        If it names its nodes in no way that rates can be made of.
    """
    rules, first, before = engine.rules, engine.horizon.first_slot, engine.posted_rates
    terms = before or event
    day_slots = terms.day_slots
    day_start = first - (first - terms.first_slot) % day_slots
    rows = [*event.inputs.get("registered", ())]
    rows += [row for rows in event.inputs.get("joined_rows", ()) for row in rows]
    named = {row[0]: read_row(row) for row in rows}
    for node in engine.nodes:
        known = named.get(node.id)
        named[node.id] = RegisteredNode(node, known.provider if known else node.id)
    inputs = describe_inputs(
        list(named.values()),
        base_memory=rules.base_memory,
        zone_settings=rules.settings,
        settings=replace(RateSettings(), block_slots=terms.block_slots),
    )
    days = list[Sequence[Task]]()
    if before is not None:
        span = choose_rate_span(
            day_start=day_start,
            day_slots=day_slots,
            began=rules.first_slot,
            past_days=int(rules.settings.get("past_days", PAST_DAYS)),
        )
        if span.past_starts:
            found = find_days(name_bids(span), span)
            days += [take_charges_off(day, rules) for day in found]
    rates = find_rates_of(inputs, past_days=days, day_slots=day_slots, won=won)
    return RatesPosted(day_start, terms.block_slots, day_slots, rates, inputs)


def find_term_problem(engine: Engine, event: RatesPosted) -> str | None:
    """Say which of the terms of a day's rates is not what it has to be, if any."""
    inputs, rules, before = event.inputs, engine.rules, engine.posted_rates
    usual = replace(RateSettings(), block_slots=event.block_slots)
    if RateSettings(**inputs["settings"]) != usual:
        return "the settings of the rates are others than those in use"
    if before is not None and (event.block_slots, event.day_slots) != (
        before.block_slots,
        before.day_slots,
    ):
        return "blocks or days have another length than before"
    claimed = inputs["reference"], inputs["cap"], float(inputs["base_memory"])
    settings = rules.settings
    known = settings.get("reference_rate_micros"), settings.get("ask_cap_micros")
    if claimed != (*known, rules.base_memory):
        return "the reference, the cap or the base's memory is not that of the rules"
    if not event.first_slot <= engine.horizon.first_slot < event.first_slot + event.day_slots:
        return "the rates are for another day"
    if before is not None and not _begins_day(event, before, rules):
        return "the rates are not those of a day that begins with their first slot"
    # A zone's first rates are posted at once, and once more with those of the day.
    if before is not None and event.first_slot <= before.first_slot and before.inputs.get("day"):
        return "the rates of a day were posted twice"
    other = find_other_terms(inputs["registered"], engine.nodes)
    return None if other is None else f"the rates were made for other terms of node {other}"


def _begins_day(event: RatesPosted, before: RatesPosted, rules: ZoneRules) -> bool:
    """Whether rates name a day, as all but a zone's first do, and begin where it does.

    Otherwise a day could have several, each made of other past days or of none.
    """
    day = event.inputs["day"]
    if not day or not rules.slot_s:
        # Without a clock days follow each other.
        return bool(day) and (event.first_slot - before.first_slot) % event.day_slots == 0
    midnight = datetime.combine(date.fromisoformat(day), time(), UTC)
    return event.first_slot == (round(midnight.timestamp()) - rules.epoch_s) // rules.slot_s


def _find_value_problem(
    engine: Engine, event: RatesPosted, find_days: FindDays, won: Collection[str]
) -> str | None:
    inputs, days = event.inputs, list[Sequence[Task]]()
    if inputs["day"]:
        span = choose_rate_span(
            day_start=event.first_slot,
            day_slots=event.day_slots,
            began=engine.rules.first_slot,
            past_days=int(engine.rules.settings.get("past_days", PAST_DAYS)),
        )
        if list(inputs["past_starts"]) != list(span.past_starts):
            return "the past days of the rates are not those that they have to look at"
        if span.past_starts:
            found = find_days(inputs, span)
            days += [take_charges_off(day, engine.rules) for day in found]
    made = find_rates_of(inputs, past_days=days, day_slots=event.day_slots, won=won)
    for node_id in sorted(made.keys() | event.rates.keys()):
        logged, follows = event.rates.get(node_id), made.get(node_id)
        if (
            logged is None
            or follows is None
            or measure_rates({node_id: logged}, {node_id: follows}) > 0
        ):
            return f"the rate of node {node_id} does not follow from what it names"
    return None


def measure_rates(logged: Mapping[str, NodeRate], follows: Mapping[str, NodeRate]) -> float:
    """Give the largest difference between nodes' rates; 0 for one of last digits."""
    asked, due = (
        {name: (rate.ask, rate.floor, *rate.by_block) for name, rate in rates.items()}
        for rates in (logged, follows)
    )
    return measure_difference(asked, due)
