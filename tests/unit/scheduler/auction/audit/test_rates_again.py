"""Posted rates are made again: one that was posted to suit a bid is found."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any

import pytest

from scheduler.auction import ChainEntry, Engine, ZoneRules
from scheduler.auction.audit.rates_again import find_term_problem
from scheduler.auction.audit.verify import Verification, verify
from scheduler.auction.log import events
from scheduler.auction.log.chain import seal
from scheduler.auction.log.limits import MOST_MONEY
from scheduler.auction.prices.posted_rates import RateSettings, RegisteredNode
from scheduler.auction.prices.rate_inputs import (
    describe_inputs,
    find_rates_of,
    find_rates_of_joined,
    write_row,
)
from scheduler.auction.prices.solve import SOLVER
from scheduler.types import Decision, NodeRate, NodeSpec, Task
from tests.unit.scheduler.auction.builders import list_outcomes, node, task

DAY = 4
RULES = ZoneRules(horizon_slots=6, posts_rates=True)
NODES = [node("a", ask=10.0), node("b", ask=12.0), node("c", ask=30.0)]
LATE = node("late", ask=20.0)
Forge = Callable[[events.RatesPosted], events.RatesPosted]


def register(nodes: list[NodeSpec]) -> list[RegisteredNode]:
    return [RegisteredNode(each, f"provider of {each.id}") for each in nodes]


def post(slot: int, *, day: str, bids: Sequence[Task]) -> events.RatesPosted:
    """Post the rates of the day that begins with a slot, from the day before."""
    starts = [slot - DAY] if slot - DAY > 0 else []
    given: dict[str, Any] = {
        "past_starts": starts,
        # Of the first beat; with past days those of slot 4.
        "first_position": 5 if starts else 1,
        "last_position": 22,
    }
    inputs: dict[str, Any] = {
        "day": day,
        **describe_inputs(
            register(NODES), base_memory=0.0, zone_settings={}, settings=RateSettings(block_slots=2)
        ),
        **(given | {"every": 1, "counts_winners": True} if day else {}),
    }
    past = [
        replace(
            bid,
            arrival_slot=bid.arrival_slot - slot + DAY,
            deadline_slot=bid.deadline_slot - slot + DAY,
        )
        for bid in bids
    ]
    rates = find_rates_of(
        inputs, past_days=[past] if starts else [], day_slots=DAY, won={bid.id for bid in bids}
    )
    return events.RatesPosted(slot, 2, DAY, rates, inputs)


BIDS = [
    events.BidArrived(task(f"t{n}", bid=900.0 + n, arrival_slot=5, deadline_slot=8), 4, f"salt {n}")
    for n in range(8)
]


def write(forge: Forge = lambda event: event, *, joins: Forge | None = None) -> list[ChainEntry]:
    """A first day, a second with bids, and the rates of a third; a node may join then."""
    engine = Engine(RULES)
    log = [engine.apply(events.NodeJoined(each)) for each in NODES]
    log.append(engine.apply(post(0, day="", bids=[])))
    log += [engine.apply(events.SlotAdvanced(4)), engine.apply(post(4, day="2", bids=[]))]
    log.append(engine.apply(events.BidsReceived(tuple((b.task.id, seal(b)) for b in BIDS))))
    log += [engine.apply(bid) for bid in BIDS]
    decisions = [entry.outcome for entry in log[-8:] if isinstance(entry.outcome, Decision)]
    assert [decision.admitted for decision in decisions] == [True] * 8
    log.append(engine.apply(events.SlotAdvanced(8)))
    before = post(8, day="3", bids=list_outcomes(log))
    inputs = {**before.inputs, "last_position": engine.position}
    log.append(engine.apply(forge(replace(before, inputs=inputs))))
    if joins is not None:
        log.append(engine.apply(events.NodeJoined(LATE)))
        posted = engine.posted_rates
        assert posted is not None
        log.append(engine.apply(joins(let_join(posted, LATE))))
    return log


def let_join(posted: events.RatesPosted, late: NodeSpec) -> events.RatesPosted:
    rows = [write_row(each) for each in register([late])]
    inputs = {**posted.inputs, "joined": [late.id], "joined_rows": [rows]}
    made = find_rates_of_joined(inputs, rates=posted.rates, day_slots=DAY)
    return replace(posted, rates={**posted.rates, **made}, inputs=inputs)


def check(log: list[ChainEntry]) -> Verification:
    return verify(log, rules=RULES)


def change(**inputs: Any) -> Forge:
    return lambda event: replace(event, inputs={**event.inputs, **inputs})


def raise_rate(name: str) -> Forge:
    """The rate just below a bid that the house has seen."""

    def forge(event: events.RatesPosted) -> events.RatesPosted:
        dear = NodeRate(event.rates[name].ask, event.rates[name].floor, (900.0, 900.0))
        return replace(event, rates={**event.rates, name: dear})

    return forge


def test_honest_rates_come_to_what_is_logged() -> None:
    found = check(write(joins=lambda event: event))
    assert (found.ok, found.problem, found.solved_again) == (True, None, 4)
    last = write()[-1].event
    assert isinstance(last, events.RatesPosted)
    # Made of the day before, not floors alone.
    assert max(last.rates["a"].by_block) > last.rates["a"].floor


def make_anew(past_days: Sequence[Sequence[Task]], **named: Any) -> Forge:
    """Name something else, and make the rates that follow from it."""

    def forge(event: events.RatesPosted) -> events.RatesPosted:
        inputs = {**event.inputs, **named}
        won = {bid.task.id for bid in BIDS}
        rates = find_rates_of(inputs, past_days=past_days, day_slots=DAY, won=won)
        return replace(event, rates=rates, inputs=inputs)

    return forge


def begin_sooner(event: events.RatesPosted) -> events.RatesPosted:
    """The rates that follow, had the day begun a slot before."""
    made = post(7, day="3", bids=list_outcomes(write()))
    return replace(made, inputs={**made.inputs, "last_position": event.inputs["last_position"]})


FORGERIES: dict[str, Forge] = {
    # So few bids of so long a log are read that there is none.
    "cannot be made again: bids are read up to an entry": make_anew(
        [[]], last_position=40_000_000, every=1_000
    ),
    "not those of a day that begins with their first slot": begin_sooner,
    "the rate of node a does not follow": raise_rate("a"),
    "the settings of the rates are others": change(
        settings={"block_slots": 2, "floor_markup": 9.0}
    ),
    "blocks or days have another length": lambda event: replace(
        event, block_slots=3, inputs={**event.inputs, "settings": {"block_slots": 3}}
    ),
    f"rates of solver {SOLVER - 1}: this program makes them as {SOLVER}": change(solver=SOLVER - 1),
    "the reference, the cap or": change(reference=500.0),
    "the rates are for another day": lambda event: replace(event, first_slot=12),
    "other terms of node a": lambda event: replace(
        event,
        inputs={
            **event.inputs,
            "registered": [
                [*row[:-1], 99.0] if row[0] == "a" else row for row in event.inputs["registered"]
            ],
        },
    ),
    "the past days of the rates": change(past_starts=[]),
    "cannot be made again: more or fewer": change(every=2),
    "cannot be made again: bids of its days": change(last_position=6),
    "cannot be made again: what they name is nothing": change(registered=None),
}


@pytest.mark.parametrize("problem", FORGERIES)
def test_rates_that_the_log_does_not_lead_to_are_found(problem: str) -> None:
    log = write(FORGERIES[problem])
    found = check(log)
    assert (found.ok, found.entries) == (False, len(log) - 1)
    assert problem in (found.problem or "")


def test_a_day_has_no_first_rates_where_there_were_rates_before() -> None:
    found = check(write(make_anew([], day="")))
    assert found.problem == "the rates are not those of a day that begins with their first slot"


def test_rates_of_a_zone_with_a_clock_begin_at_midnight() -> None:
    # Slot 4 begins half an hour before the second of March.
    rules = replace(RULES, slot_s=6 * 3600, epoch_s=1_772_321_400)
    engine = Engine(rules)
    for each in NODES:
        engine.apply(events.NodeJoined(each))
    engine.apply(post(0, day="", bids=[]))
    engine.apply(events.SlotAdvanced(5))

    def find(slot: int, day: str) -> str | None:
        return find_term_problem(engine, post(slot, day=day, bids=[]))

    wrong = "the rates are not those of a day that begins with their first slot"
    assert find(4, "2026-03-02") is None
    assert [find(slot, "2026-03-02") for slot in (3, 5)] == [wrong, wrong]
    assert [find(4, day) for day in ("2026-03-01", "2026-03-03", "")] == [wrong] * 3


@pytest.mark.parametrize("joins", [None, raise_rate("late")])
def test_rates_that_need_no_earlier_bids_are_checked_from_a_snapshot_on(
    joins: Forge | None,
) -> None:
    """Whatever positions they name, or none."""
    engine, log = Engine(RULES), write(joins=joins)
    for entry in log[:-1]:
        engine.apply(entry.event)
    begin = engine.snapshot()
    last = log[-1].event
    assert isinstance(last, events.RatesPosted)
    if joins is None:
        inputs = {name: of for name, of in last.inputs.items() if name != "first_position"}
        last = raise_rate("a")(replace(last, inputs=inputs))
    found = verify([engine.apply(last)], begin)
    assert (found.ok, found.taken_as_logged) == (False, 0)


def test_rates_of_days_before_a_snapshot_are_taken_as_logged() -> None:
    engine, log = Engine(RULES), write()
    for entry in log[:-1]:
        engine.apply(entry.event)
    found = verify(log[-1:], engine.snapshot())
    assert (found.ok, found.taken_as_logged, found.solved_again) == (True, 1, 0)


def test_an_erratum_excuses_forged_rates_only_with_their_size() -> None:
    def excuse(forge: Forge, off_by: dict[str, float] | None) -> Verification:
        log = write(forge)
        engine = Engine(RULES)
        for entry in log:
            engine.apply(entry.event)
        found = check(log)
        amounts = dict(found.off_by or {}) if off_by is None else off_by
        erratum = events.ErratumNoted(log[-1].position, "Slow.", found.problem or "", amounts)
        return check([*log, engine.apply(erratum)])

    def forge(event: events.RatesPosted) -> events.RatesPosted:
        return change(reference=500.0)(raise_rate("a")(event))

    honest = write()[-1].event
    assert isinstance(honest, events.RatesPosted)
    size = 900.0 - min(honest.rates["a"].by_block)
    off_by = dict.fromkeys(("rates", "reserve_price"), pytest.approx(size))
    assert check(write(forge)).off_by == off_by
    assert not excuse(forge, {}).ok
    assert not excuse(forge, {"rates": 1.0}).ok
    found = excuse(forge, None)
    assert (found.ok, found.known_faults[0].measured) == (True, True)
    # Named so that nothing can be worked out.
    blurred = change(registered=[["a"]])
    assert check(write(blurred)).off_by == {"rates": 2 * MOST_MONEY}
    assert not excuse(blurred, {"rates": MOST_MONEY}).ok


def test_of_several_wrong_rates_the_same_one_is_named_on_every_machine() -> None:
    def forge(event: events.RatesPosted) -> events.RatesPosted:
        names = [f"x{n}" for n in range(40)]
        return replace(event, rates={**event.rates, **dict.fromkeys(names, event.rates["a"])})

    assert check(write(forge)).problem == "the rate of node x0 does not follow from what it names"


def test_rates_whose_blocks_begin_at_another_slot_are_off_by_what_they_leave_in_force() -> None:
    found = check(write(lambda event: replace(event, first_slot=9)))
    assert found.problem == "the rates are for another day"
    assert (found.off_by or {}).keys() >= {"reserve_price"}


def test_rates_of_a_day_are_posted_once() -> None:
    log = write()
    engine = Engine(RULES)
    for entry in log:
        engine.apply(entry.event)
    again = log[-1].event
    assert isinstance(again, events.RatesPosted)
    inputs = {**again.inputs, "day": "3 again", "last_position": engine.position}
    found = check([*log, engine.apply(replace(again, inputs=inputs))])
    assert (found.ok, found.problem) == (False, "the rates of a day were posted twice")


@pytest.mark.parametrize(
    ("problem", "forge"),
    [
        ("a node that joined later does not follow", raise_rate("late")),
        ("the rates of the nodes before them changed", lambda e: replace(e, first_slot=4)),
        (
            "made for other terms",
            change(joined_rows=[[["late", "provider of late", "g", 10.0, 10.0, 99.0]]]),
        ),
        (
            "a node that has a rate joined again",
            change(joined=["a"], joined_rows=[[["a", "provider of a", "g", 10.0, 10.0, 10.0]]]),
        ),
    ],
)
def test_rates_of_a_node_that_joins_follow_from_the_others(problem: str, forge: Forge) -> None:
    log = write(joins=forge)
    found = check(log)
    assert (found.ok, found.entries) == (False, len(log) - 1)
    assert problem in (found.problem or "")
