"""No field of a decision can be forged, not even by who makes the chain fit again."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import fields, replace
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from scheduler.auction import (
    ChainEntry,
    DeadlineHint,
    Engine,
    ZoneRules,
    entry_to_json,
    verify,
)
from scheduler.auction.engine import decide
from scheduler.auction.log import events
from scheduler.public_log.entries import hash_entry
from scheduler.types import Cell, Decision, PriceParts, Refusal, Schedule
from tests.properties.auction_markets import Market


def _next(number: float | None) -> float:
    """The nearest greater number, which is less than any cent."""
    return 0.0 if number is None else math.nextafter(number, math.inf)


def _part(name: str) -> Callable[[PriceParts | None], PriceParts]:
    def forged(parts: PriceParts | None) -> PriceParts:
        parts = PriceParts() if parts is None else parts
        return replace(parts, **{name: _next(getattr(parts, name))})

    return forged


def _elsewhere(schedule: Schedule | None) -> Schedule:
    if schedule is None:
        return Schedule(cells=(Cell(0, "node-1"),))
    *rest, last = schedule.cells
    return replace(schedule, cells=(*rest, replace(last, node=f"{last.node}0")))


def _later(schedule: Schedule | None) -> Schedule:
    if schedule is None:
        return Schedule(cells=())
    *rest, last = schedule.cells
    return replace(schedule, cells=(*rest, replace(last, slot=last.slot + 1)))


def _raised(raised: tuple[tuple[float, float], ...]) -> tuple[tuple[float, float], ...]:
    if not raised:
        return ((0.0, 0.0),)
    (compute, memory), *rest = raised
    return ((compute, _next(memory)), *rest)


FORGERIES: list[tuple[str, Callable[[Any], Any]]] = [
    ("task_id", lambda name: f"{name}x"),
    ("admitted", lambda admitted: not admitted),
    ("payment", _next),
    ("surplus", _next),
    ("schedule", _elsewhere),
    ("schedule", _later),
    ("schedule", lambda old: None if old is not None else Schedule(cells=())),
    ("schedule", lambda old: replace(old or Schedule(cells=()), vendor=7)),
    *[("parts", _part(field.name)) for field in fields(PriceParts)],
    ("refusal", lambda old: Refusal.MEMORY if old is not Refusal.MEMORY else Refusal.WINDOW),
    ("refusal", lambda old: None if old is not None else Refusal.PRICE),
    ("winning_price", _next),
    ("winning_deadline_slot", lambda slot: 0 if slot is None else slot - 1),
    ("winning_deadline_slot", lambda slot: 10**6 if slot is None else slot + 1),
    ("winning_deadline_slot", lambda slot: 3 if slot is None else None),
    ("winning_deadline_price", _next),
    ("notes", lambda notes: {**notes, "seen": "by nobody"}),
    ("raised", _raised),
    ("raised", lambda raised: (*raised, (0.0, 0.0))),
]


#: Slot and price of a hint, of a log's first slot on sale and the last: what it says, moved.
HINTS: list[Callable[[int, float, int, int], tuple[int | None, float | None]]] = [
    lambda slot, price, first, last: (slot - 1, price),
    lambda slot, price, first, last: (slot + 1, price),
    lambda slot, price, first, last: (first, price),
    lambda slot, price, first, last: (last, price),
    lambda slot, price, first, last: (slot, math.nextafter(price, math.inf)),
    lambda slot, price, first, last: (slot, math.nextafter(price, -math.inf)),
    lambda slot, price, first, last: (slot, None),
    lambda slot, price, first, last: (None, price),
    lambda slot, price, first, last: (None, None),
]


def _chained(log: list[ChainEntry], *, from_index: int) -> list[ChainEntry]:
    """The log with every hash from an entry on made to fit what the entries say."""
    fitted = log[:from_index]
    for entry in log[from_index:]:
        linked = replace(entry, prev_hash=fitted[-1].hash if fitted else entry.prev_hash)
        data = entry_to_json(linked)
        fitted.append(
            replace(
                linked,
                hash=hash_entry(
                    position=linked.position,
                    event=data["event"],
                    outcome=data["outcome"],
                    prev_hash=linked.prev_hash,
                ),
            )
        )
    return fitted


def test_every_field_of_a_decision_is_forged() -> None:
    assert {name for name, _ in FORGERIES} == {field.name for field in fields(Decision)}


@settings(max_examples=60, deadline=None)
@given(seed=st.integers(0, 2**32), fits=st.booleans(), data=st.data())
def test_a_forged_field_is_found_where_it_stands(
    seed: int, fits: bool, data: st.DataObject
) -> None:
    market = Market(seed, policy="lagrangian")
    log = market.run(20)
    decided = [i for i, entry in enumerate(log) if isinstance(entry.outcome, Decision)]
    if not decided:
        return
    at = data.draw(st.sampled_from(decided))
    name, forge = data.draw(st.sampled_from(FORGERIES))
    decision = _decision(log[at])
    forged = replace(decision, **{name: forge(getattr(decision, name))})
    assert forged != decision
    altered = [*log[:at], replace(log[at], outcome=forged), *log[at + 1 :]]
    found = verify(_chained(altered, from_index=at) if fits else altered, rules=market.rules)
    assert (found.ok, found.entries, found.position) == (False, at, log[at].position)
    assert found.problem == f"the replay differs from the log in {name}"
    assert verify(log, rules=market.rules).ok


def _decision(entry: ChainEntry) -> Decision:
    assert isinstance(entry.outcome, Decision)
    return entry.outcome


def _hinted(market: Market) -> tuple[list[ChainEntry], list[int]]:
    log = market.run(30)
    return log, [
        i
        for i, entry in enumerate(log)
        if isinstance(entry.outcome, Decision) and not entry.outcome.admitted
    ]


@settings(max_examples=100, deadline=None)
@given(seed=st.integers(0, 2**32), fits=st.booleans(), data=st.data())
def test_a_hint_that_was_moved_left_out_or_made_up_is_found(
    seed: int, fits: bool, data: st.DataObject
) -> None:
    market = Market(seed, policy="lagrangian")
    log, refused = _hinted(market)
    if not refused:
        return
    at = data.draw(st.sampled_from(refused))
    entry = log[at]
    assert isinstance(entry.event, events.BidArrived)
    decision = _decision(entry)
    first, task = entry.event.slot, entry.event.task
    last = first + market.rules.horizon_slots - 1
    slot, price = decision.winning_deadline_slot, decision.winning_deadline_price
    if slot is None or price is None:
        made_up = data.draw(st.integers(first - 1, last + 1))
        hint = data.draw(st.sampled_from([(made_up, task.bid / 2), (made_up, None)]))
    else:
        hint = data.draw(st.sampled_from(HINTS))(slot, price, first, last)
    if hint == (slot, price):
        return
    forged = replace(decision, winning_deadline_slot=hint[0], winning_deadline_price=hint[1])
    altered = [*log[:at], replace(entry, outcome=forged), *log[at + 1 :]]
    found = verify(_chained(altered, from_index=at) if fits else altered, rules=market.rules)
    assert (found.ok, found.entries, found.position) == (False, at, entry.position)
    assert found.problem is not None
    assert "winning_deadline" in found.problem
    assert verify(log, rules=market.rules).ok


@settings(max_examples=60, deadline=None)
@given(seed=st.integers(0, 2**32), data=st.data())
def test_a_decision_is_the_same_whatever_is_claimed_of_its_hint(
    seed: int, data: st.DataObject
) -> None:
    """Also where the bid is a deadline's price to the last digit, or next to it."""
    market = Market(seed, policy="lagrangian")
    market.run(data.draw(st.integers(5, 40)))
    bid = market.bid()
    prices = [point.price for point in market.engine.quote(bid.task, slot=bid.slot).curve]
    near = data.draw(st.sampled_from([bid.task.bid, *prices]))
    by = data.draw(st.sampled_from([1.0, 1 + 1e-15, 1 - 1e-15, 1 + 1e-9, 1 - 1e-9, 1.01]))
    bid = replace(bid, task=replace(bid.task, bid=near * by))
    expected = market.engine.replica().transition(bid)
    horizon = market.engine.horizon
    for slot in (None, *range(horizon.first_slot - 2, horizon.last_slot + 3)):
        claimed = market.engine.replica().transition(bid, hint=DeadlineHint(slot))
        assert claimed == expected


def test_the_hints_of_an_honest_log_are_looked_for_nowhere_else(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    market = Market(5, policy="lagrangian", rules=ZoneRules(base_memory=2.0, horizon_slots=10))
    log, refused = _hinted(market)
    hints = {_decision(log[i]).winning_deadline_slot for i in refused}
    assert None in hints
    assert len(hints) > 2

    def searched(*_: object, **__: object) -> None:
        raise AssertionError("searched")

    monkeypatch.setattr(decide, "_find_later_deadline", searched)
    assert verify(log, rules=market.rules).ok
    forged = replace(_decision(log[refused[0]]), winning_deadline_slot=10**6)
    log[refused[0]] = replace(log[refused[0]], outcome=forged)
    with pytest.raises(AssertionError, match="searched"):
        verify(log, rules=market.rules)


@settings(max_examples=60, deadline=None)
@given(seed=st.integers(0, 2**32), steps=st.integers(1, 60))
def test_a_zone_holds_what_is_held_from_now_on_and_nothing_longer(seed: int, steps: int) -> None:
    market = Market(seed, policy="lagrangian")
    market.run(steps)
    # A released job's past cells are forgotten with the next slot.
    market.engine.apply(events.SlotAdvanced(market.engine.horizon.first_slot + 1))
    state = market.engine.snapshot()
    first = market.engine.horizon.first_slot
    assert all(cells[-1][0] >= first for _, cells in state["holds"])
    held = {(r.task_id, r.cell.slot, r.cell.node) for r in market.engine.reservations()}
    listed = {
        (task, slot, node)
        for task, cells in state["holds"]
        for slot, node, *_ in cells
        if slot >= first
    }
    assert held == listed
    assert Engine.restore(state).snapshot() == state
