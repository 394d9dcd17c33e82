"""Ties between nodes go where little is left that usual rates cannot fill."""

from __future__ import annotations

import itertools
import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from scheduler.auction import Engine, ZoneRules
from scheduler.auction.log import events
from scheduler.auction.log.codec import event_from_json, event_to_json
from scheduler.auction.search.waste import WASTE_UNITS, measure_unfilled
from scheduler.types import Decision, NodeSpec, Task

RATES = {"g": (4.0, 6.0)}


def zone(*, growth: float = 0.0) -> Engine:
    rules = ZoneRules(policy="lagrangian", horizon_slots=1, settings={"growth": growth})
    engine = Engine(rules)
    for name in ("a", "b"):
        node = NodeSpec(id=name, gpu_type="g", compute_capacity=10.0, memory_capacity=9.0)
        engine.apply(events.NodeJoined(node))
    return engine


def solved(price: float = 0.3, usual: dict[str, tuple[float, ...]] = RATES) -> events.PricesSolved:
    prices = {"a": (price,), "b": (price,)}
    return events.PricesSolved(0, prices, {}, usual_rates=usual)


def bid(name: str, rate: float) -> events.BidArrived:
    task = Task(
        id=name,
        arrival_slot=0,
        deadline_slot=0,
        compute_demand=rate,
        memory_demand=1.0,
        bid=100.0,
        rates={"g": rate},
    )
    return events.BidArrived(task, 0)


def node_of(engine: Engine, event: events.BidArrived) -> str:
    decision = engine.transition(event)
    assert isinstance(decision, Decision)
    assert decision.schedule is not None
    return decision.schedule.cells[0].node


def test_a_task_goes_where_the_rest_can_still_be_filled() -> None:
    engine = zone()
    engine.apply(solved())
    assert [node_of(engine, bid(f"t{n}", rate)) for n, rate in enumerate((4.0, 4.0))] == ["a", "b"]
    assert [node_of(engine, bid(f"u{n}", 6.0)) for n in range(2)] == ["a", "b"]
    assert engine.prices().compute_sold.tolist() == [[1.0], [1.0]]


def test_without_usual_rates_the_fuller_node_is_taken() -> None:
    engine = zone()
    engine.apply(solved(usual={}))
    assert [node_of(engine, bid(f"t{n}", 4.0)) for n in range(2)] == ["a", "a"]


@pytest.mark.parametrize("price", [0.3, 2.1, 1e-7, 12345.678])
def test_without_growth_a_sale_leaves_the_price_as_it_was_to_the_last_bit(price: float) -> None:
    engine = zone()
    engine.apply(solved(price))
    for n, rate in enumerate((4.0, 1.9, 0.7)):
        engine.transition(bid(f"t{n}", rate))
    assert engine.prices().compute_price.tolist() == [[price], [price]]


def test_which_node_is_taken_does_not_change_the_price() -> None:
    packed, plain = zone(), zone()
    packed.apply(solved())
    plain.apply(solved(usual={}))
    for n, rate in enumerate((4.0, 4.0, 6.0)):
        ours, theirs = (engine.transition(bid(f"t{n}", rate)) for engine in (packed, plain))
        assert isinstance(ours, Decision)
        assert isinstance(theirs, Decision)
        assert ours.winning_price == theirs.winning_price


def test_a_snapshot_and_the_log_keep_the_usual_rates() -> None:
    engine = zone()
    engine.apply(solved())
    again = Engine.restore(json.loads(json.dumps(engine.snapshot())))
    assert again.snapshot() == engine.snapshot()
    for name in ("t", "u"):
        assert node_of(again, bid(name, 4.0)) == node_of(engine, bid(name, 4.0))
    assert event_from_json(json.loads(json.dumps(event_to_json(solved())))) == solved()
    # As logs had it before there were any.
    assert "usual_rates" not in event_to_json(solved(usual={}))


def test_nodes_that_join_later_are_packed_as_well() -> None:
    engine = zone()
    engine.apply(solved())
    node = NodeSpec(id="c", gpu_type="g", compute_capacity=20.0, memory_capacity=9.0)
    engine.apply(events.NodeJoined(node))
    assert engine.snapshot()["usual_rates"] == {"g": [4.0, 6.0]}
    assert Engine.restore(engine.snapshot()).snapshot() == engine.snapshot()


@given(st.lists(st.integers(1, 40), min_size=1, max_size=4, unique=True), st.integers(0, 60))
def test_what_cannot_be_filled_is_what_no_mix_fills(sizes: list[int], room: int) -> None:
    found = measure_unfilled(tuple(map(float, sizes)), unit=1.0)[room]
    ranges = [range(room // size + 1) for size in sizes]
    sums = (
        sum(n * s for n, s in zip(times, sizes, strict=True))
        for times in itertools.product(*ranges)
    )
    assert found == room - max(total for total in sums if total <= room)


def test_rates_above_every_capacity_fill_nothing_and_spoil_nothing() -> None:
    assert measure_unfilled((WASTE_UNITS + 1.0,), unit=1.0).max() == 0.0
    assert measure_unfilled((), unit=1.0).max() == 0.0
