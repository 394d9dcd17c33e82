"""The one text of a value is that of RFC 8785, and comes to the same hash when it is read."""

from __future__ import annotations

import math
from dataclasses import replace
from typing import Any

import pytest
import rfc8785
from hypothesis import given
from hypothesis import strategies as st

from scheduler.auction.log import events
from scheduler.auction.log.codec import event_to_json, outcome_to_json
from scheduler.public_log.canonical_json import parse_json, serialize_canonical
from scheduler.public_log.entries import hash_entry
from scheduler.types import Cell, Decision, LaborVendor, PriceParts, Refusal, Schedule, Task

NUMBERS = st.one_of(
    st.sampled_from([0.0, -0.0, 1.0, 1e22, 1e21, 1e20, 2.0**53, 1e-6, 1e-7, 5e-324, 0.1]),
    st.floats(allow_nan=False, allow_infinity=False),
)
NAMES = st.text(st.characters(exclude_categories=("Cs",)), max_size=8)
COUNTS = st.integers(-(2**53) + 1, 2**53 - 1)


def _maybe(values: st.SearchStrategy[Any]) -> st.SearchStrategy[Any]:
    return st.one_of(st.none(), values)


TASKS = st.builds(
    Task,
    id=NAMES,
    arrival_slot=COUNTS,
    deadline_slot=COUNTS,
    compute_demand=NUMBERS,
    memory_demand=NUMBERS,
    bid=st.one_of(NUMBERS, st.integers(-(10**15), 10**15)),
    rates=st.dictionaries(NAMES, NUMBERS, max_size=3),
    vendors=st.lists(
        st.builds(LaborVendor, id=NAMES, price=NUMBERS, delay_slots=COUNTS, load=st.integers(0, 5)),
        max_size=3,
    ).map(tuple),
    operational_costs=_maybe(
        st.dictionaries(NAMES, st.lists(NUMBERS, max_size=3).map(tuple), max_size=2)
    ),
    owner=NAMES,
)
BIDS = st.builds(events.BidArrived, task=TASKS, slot=COUNTS, salt=NAMES)
DECISIONS = st.builds(
    Decision,
    task_id=NAMES,
    admitted=st.booleans(),
    payment=NUMBERS,
    surplus=_maybe(NUMBERS),
    schedule=_maybe(
        st.builds(
            Schedule,
            cells=st.lists(st.builds(Cell, slot=COUNTS, node=NAMES), max_size=4).map(tuple),
            vendor=st.integers(-1, 3),
            ready_slot=_maybe(COUNTS),
        )
    ),
    parts=_maybe(st.builds(PriceParts, *[NUMBERS] * 5)),
    refusal=_maybe(st.sampled_from(Refusal)),
    winning_price=_maybe(NUMBERS),
    winning_deadline_slot=_maybe(COUNTS),
    winning_deadline_price=_maybe(NUMBERS),
    notes=st.dictionaries(NAMES, NAMES, max_size=2),
    raised=st.lists(st.tuples(NUMBERS, NUMBERS), max_size=6).map(tuple),
)
REFUSED = Decision(
    task_id="t", admitted=False, payment=0.0, surplus=-1.5, schedule=None, parts=None
)


@pytest.mark.parametrize(
    ("number", "text"),
    [
        # Appendix B of RFC 8785.
        (-0.0, "0"),
        (5e-324, "5e-324"),
        (-1.7976931348623157e308, "-1.7976931348623157e+308"),
        (9007199254740992.0, "9007199254740992"),
        (295147905179352830000.0, "295147905179352830000"),
        (9.999999999999997e22, "9.999999999999997e+22"),
        (1e23, "1e+23"),
        (999999999999999700000.0, "999999999999999700000"),
        (1e21, "1e+21"),
        (9.999999999999997e-7, "9.999999999999997e-7"),
        (0.000001, "0.000001"),
        (333333333.3333332, "333333333.3333332"),
        (-0.0000033333333333333333, "-0.0000033333333333333333"),
        (1424953923781206.2, "1424953923781206.2"),
    ],
)
def test_numbers_are_written_as_the_rfc_lists_them(number: float, text: str) -> None:
    assert serialize_canonical(number) == text


@given(number=NUMBERS)
def test_a_number_that_is_read_is_written_as_it_was(number: float) -> None:
    """Also where its text has no point, so that Python reads an integer beyond 2**53."""
    text = serialize_canonical(number)
    assert float(text) == number
    assert serialize_canonical(parse_json(text)) == text


VALUES = st.recursive(
    st.one_of(
        st.none(),
        st.booleans(),
        NUMBERS,
        COUNTS,
        st.text(st.characters(exclude_categories=("Cs",))),
    ),
    lambda inner: st.one_of(st.lists(inner), st.dictionaries(NAMES, inner)),
)


@given(value=VALUES)
def test_the_text_is_that_of_another_program(value: Any) -> None:
    assert serialize_canonical(value).encode() == rfc8785.dumps(value)


@given(value=st.one_of(st.integers(), st.text(st.characters())))
def test_it_refuses_what_the_other_program_refuses(value: Any) -> None:
    """Integers that doubles do not count, and halves of pairs of surrogates, as keys too."""
    for made in ([value], {str(value): value}):
        try:
            expected = rfc8785.dumps(made)
        except ValueError:
            with pytest.raises(ValueError, match=r"."):
                serialize_canonical(made)
        else:
            assert serialize_canonical(made).encode() == expected


@pytest.mark.parametrize("value", [2**53, -(2**53), {1}, object(), {1: 2}, b"x", 1j, "\ud800"])
def test_what_has_no_text_is_refused(value: object) -> None:
    with pytest.raises(ValueError, match=r"."):
        serialize_canonical([value])


@pytest.mark.parametrize("text", ['{"a": 1, "a": 1}', '[{"b": {"a": 1, "\\u0061": 2}}]'])
def test_a_key_that_is_there_twice_is_refused(text: str) -> None:
    with pytest.raises(ValueError, match="twice"):
        parse_json(text)


@given(event=BIDS, decision=DECISIONS, position=st.integers(1, 10**9))
def test_an_entry_that_is_read_of_its_text_has_the_same_hash(
    event: events.BidArrived, decision: Decision, position: int
) -> None:
    made, answered = event_to_json(event), outcome_to_json(decision)
    texts = [serialize_canonical(made), serialize_canonical(answered)]
    read = [parse_json(text) for text in texts]
    found = [
        hash_entry(position=position, event=of, outcome=outcome, prev_hash="ab")
        for of, outcome in ((made, answered), read)
    ]
    assert found[0] == found[1]


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
    with pytest.raises(ValueError, match="not representable"):
        serialize_canonical(outcome_to_json(broken(number)))
