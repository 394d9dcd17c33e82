"""What is written directly of bids and decisions is the canonical JSON of them."""

from __future__ import annotations

import math
from dataclasses import replace
from typing import Any

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from scheduler.auction.log import events
from scheduler.auction.log.canonical_json import (
    serialize_bid,
    serialize_decision,
)
from scheduler.auction.log.chain import encode_canonical, hash_entry, serialize_entry
from scheduler.auction.log.event_json import event_to_json
from scheduler.auction.log.outcomes import Outcome, Replan, outcome_to_json
from scheduler.types import Cell, Decision, LaborVendor, PriceParts, Refusal, Schedule, Task

NUMBERS = st.one_of(
    st.sampled_from([0.0, -0.0, 1.0, 1e22, 5e-324, 0.1, 1.7976931348623157e308]),
    st.floats(allow_nan=False, allow_infinity=False),
)
NAMES = st.text(st.characters(codec="utf-16", exclude_categories=()), max_size=8)
SLOTS = st.integers(-(2**53), 2**53)


def _maybe(values: st.SearchStrategy[Any]) -> st.SearchStrategy[Any]:
    return st.one_of(st.none(), values)


TASKS = st.builds(
    Task,
    id=NAMES,
    arrival_slot=SLOTS,
    deadline_slot=SLOTS,
    compute_demand=NUMBERS,
    memory_demand=NUMBERS,
    bid=st.one_of(NUMBERS, st.integers(-(10**15), 10**15)),
    rates=st.dictionaries(NAMES, NUMBERS, max_size=3),
    vendors=st.lists(
        st.builds(LaborVendor, id=NAMES, price=NUMBERS, delay_slots=SLOTS, load=st.integers(0, 5)),
        max_size=3,
    ).map(tuple),
    operational_costs=_maybe(
        st.dictionaries(NAMES, st.lists(NUMBERS, max_size=3).map(tuple), max_size=2)
    ),
    owner=NAMES,
)
BIDS = st.builds(events.BidArrived, task=TASKS, slot=SLOTS, salt=NAMES)
DECISIONS = st.builds(
    Decision,
    task_id=NAMES,
    admitted=st.booleans(),
    payment=NUMBERS,
    surplus=_maybe(NUMBERS),
    schedule=_maybe(
        st.builds(
            Schedule,
            cells=st.lists(st.builds(Cell, slot=SLOTS, node=NAMES), max_size=4).map(tuple),
            vendor=st.integers(-1, 3),
            ready_slot=_maybe(SLOTS),
        )
    ),
    parts=_maybe(st.builds(PriceParts, *[NUMBERS] * 5)),
    refusal=_maybe(st.sampled_from(Refusal)),
    winning_price=_maybe(NUMBERS),
    winning_deadline_slot=_maybe(SLOTS),
    winning_deadline_price=_maybe(NUMBERS),
    notes=st.dictionaries(NAMES, NAMES, max_size=2),
    # Few values, so that equal pairs and zeros of both signs meet.
    raised=st.lists(
        st.tuples(*[st.one_of(st.sampled_from([0.0, -0.0, 0.5, 0.1]), NUMBERS)] * 2), max_size=6
    ).map(tuple),
)
PLAIN = Task(
    id="t",
    arrival_slot=0,
    deadline_slot=5,
    compute_demand=8.0,
    memory_demand=2.0,
    bid=100.0,
    rates={"g": 4.0},
)
REFUSED = Decision(
    task_id="t", admitted=False, payment=0.0, surplus=-1.5, schedule=None, parts=None
)


def _expected_hash(event: events.Event, outcome: Outcome, *, position: int, prev_hash: str) -> str:
    return hash_entry(
        position=position,
        event=event_to_json(event),
        outcome=outcome_to_json(outcome),
        prev_hash=prev_hash,
    )


@example(
    event=events.BidArrived(PLAIN, 0),
    decision=replace(REFUSED, raised=((-0.0, 0.5), (0.0, 0.5), (-0.0, 0.5))),
    position=1,
)
@given(event=BIDS, decision=DECISIONS, position=st.integers(1, 10**9))
def test_texts_and_hash_of_a_decision_are_those_of_its_json(
    event: events.BidArrived, decision: Decision, position: int
) -> None:
    entry = serialize_entry(position=position, event=event, outcome=decision, prev_hash="ab")
    assert entry.event.encode() == encode_canonical(event_to_json(event))
    assert entry.outcome.encode() == encode_canonical(outcome_to_json(decision))
    assert entry.hash == _expected_hash(event, decision, position=position, prev_hash="ab")


def test_plain_bids_and_decisions_are_written_directly() -> None:
    for task in (PLAIN, replace(PLAIN, owner="org")):
        event = events.BidArrived(task, 0, "salt")
        assert serialize_bid(event) is not None
        assert serialize_decision(event, REFUSED) is not None


def test_what_is_no_bid_is_written_as_before() -> None:
    replan = Replan("t", None, None, released=(), complete=False, late=True)
    for event, outcome in (
        (events.TaskReplanned(PLAIN, 3, salt="s"), replan),
        (events.BidArrived(PLAIN, 3, salt="s"), replan),
        (events.SlotAdvanced(4), REFUSED),
        (events.PricesSolved(0, {}, {}, private={"a": 1}, salt="s"), REFUSED),
    ):
        entry = serialize_entry(position=7, event=event, outcome=outcome, prev_hash="")
        assert entry.event.encode() == encode_canonical(event_to_json(event))
        assert entry.outcome.encode() == encode_canonical(outcome_to_json(outcome))
        assert entry.hash == _expected_hash(event, outcome, position=7, prev_hash="")


@pytest.mark.parametrize("number", [math.nan, math.inf, -math.inf])
@pytest.mark.parametrize(
    "broken",
    [
        lambda x: replace(REFUSED, payment=x),
        lambda x: replace(REFUSED, surplus=x),
        lambda x: replace(REFUSED, winning_price=x),
        lambda x: replace(REFUSED, winning_deadline_price=x),
        lambda x: replace(REFUSED, parts=PriceParts(1.0, 2.0, x, -x)),
        lambda x: replace(REFUSED, raised=((1.0, x),)),
    ],
)
def test_what_is_not_finite_is_refused_and_not_written(broken: Any, number: float) -> None:
    with pytest.raises(ValueError, match="not JSON compliant"):
        serialize_entry(
            position=1, event=events.BidArrived(PLAIN, 0), outcome=broken(number), prev_hash=""
        )


@pytest.mark.parametrize("slot", [True, 3.0, "3"])
def test_numbers_of_other_kinds_are_written_as_the_encoder_writes_them(slot: Any) -> None:
    event = events.BidArrived(PLAIN, slot)
    entry = serialize_entry(position=1, event=event, outcome=REFUSED, prev_hash="")
    assert entry.event.encode() == encode_canonical(event_to_json(event))
