"""A log that is retraced leads to the same state as one that is decided again."""

from __future__ import annotations

import json
from dataclasses import replace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from scheduler.auction import Engine
from scheduler.auction.log import events
from scheduler.auction.log.outcomes import GridChange
from scheduler.types import Cell, Decision, Schedule
from tests.properties.auction_markets import Market
from tests.properties.test_lagrangian_policy import SolvedMarket
from tests.unit.scheduler.auction.builders import enter

STEPS = 60


@settings(deadline=None, max_examples=60)
@given(seed=st.integers(0, 10**6), at=st.integers(0, STEPS))
def test_retracing_a_log_gives_the_state_to_the_last_bit(seed: int, at: int) -> None:
    market = SolvedMarket(seed)
    market.gives_back = True
    log = market.run(STEPS)
    engine = Engine(market.rules)
    for entry in log[:at]:
        engine.apply(entry.event)
    engine = Engine.restore(json.loads(json.dumps(engine.snapshot())))
    for entry in log[at:]:
        engine.retrace(entry.event, entry.outcome, entry_hash=entry.hash)
    assert json.dumps(engine.snapshot()) == json.dumps(market.engine.snapshot())
    # And it goes on deciding as the other does.
    for _ in range(5):
        event = market.next_event()
        assert enter(engine, event) == enter(market.engine, event)


def test_what_a_log_cannot_say_is_refused() -> None:
    market = Market(1, policy="lagrangian")
    while True:
        before = market.engine.snapshot()
        *received, entry = enter(market.engine, market.next_event())
        if isinstance(entry.outcome, Decision) and entry.outcome.admitted:
            break
    assert isinstance(entry.event, events.BidArrived)
    assert entry.outcome.schedule is not None
    [first, *rest] = entry.outcome.schedule.cells

    def received_on_a_restart() -> Engine:
        engine = Engine.restore(before)
        for one in received:
            engine.retrace(one.event, one.outcome, entry_hash=one.hash)
        return engine

    def refused(outcome: Decision) -> str:
        engine = received_on_a_restart()
        with pytest.raises(ValueError, match=entry.event.task.id) as caught:
            engine.retrace(entry.event, outcome, entry_hash="")
        return str(caught.value)

    def elsewhere(cell: Cell) -> Decision:
        schedule = Schedule(cells=(cell, *rest), vendor=entry.outcome.schedule.vendor)
        return replace(entry.outcome, schedule=schedule)

    assert "without a schedule" in refused(replace(entry.outcome, schedule=None))
    assert "'nobody'" in refused(elsewhere(replace(first, node="nobody")))
    assert "not on sale" in refused(elsewhere(replace(first, slot=10**6)))
    # An outcome of another kind is not taken at its word.
    engine = received_on_a_restart()
    engine.retrace(entry.event, GridChange(), entry_hash=entry.hash)
    assert engine.snapshot() == market.engine.snapshot()
