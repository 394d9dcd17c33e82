"""Nodes that join between two solves cost what the cheapest of their type do."""

from __future__ import annotations

import pytest

from scheduler.auction import Engine, ZoneRules
from scheduler.auction.log import events
from tests.unit.scheduler.auction.builders import node

RULES = ZoneRules(horizon_slots=3, day_slots=100)


def priced(**more: float) -> Engine:
    """A zone of nodes that ask 2 and 3 for a sample, of which one costs 5 in its last slot."""
    engine = Engine(RULES)
    for name, ask in {"a": 2.0, "b": 3.0, **more}.items():
        engine.apply(events.NodeJoined(node(name, ask=ask * node().compute_capacity)))
    engine.apply(
        events.PricesSolved(
            first_slot=0,
            compute_price={"a": (0.0, 1.0, 3.0), "b": (0.0, 0.0, 2.0)},
            memory_price={"a": (0.5, 0.0, 0.25), "b": (0.5, 0.0, 0.25)},
        )
    )
    return engine


def prices_of(engine: Engine, name: str) -> tuple[list[float], list[float]]:
    prices = engine.prices()
    at = [each.id for each in engine.nodes].index(name)
    return prices.compute_price[at].tolist(), prices.memory_price[at].tolist()


@pytest.mark.parametrize(
    ("ask", "compute"),
    [
        # As dear as the others, where they cost more than their asks; never less than nothing.
        (2.0, [0.0, 1.0, 3.0]),
        (1.0, [0.0, 2.0, 4.0]),
        (4.5, [0.0, 0.0, 0.5]),
        (9.0, [0.0, 0.0, 0.0]),
    ],
)
def test_a_node_that_joins_is_priced_as_its_type(ask: float, compute: list[float]) -> None:
    engine = priced()
    engine.apply(events.NodeJoined(node("new", ask=ask * node().compute_capacity)))
    assert prices_of(engine, "new") == (compute, [0.5, 0.0, 0.25])
    assert prices_of(engine, "a") == ([0.0, 1.0, 3.0], [0.5, 0.0, 0.25])


def test_a_node_alone_of_its_type_costs_its_ask() -> None:
    engine = priced()
    engine.apply(events.NodeJoined(node("new", gpu_type="other", ask=1.0)))
    assert prices_of(engine, "new") == ([0.0] * 3, [0.0] * 3)


def test_prices_solved_before_a_node_joined_price_it_as_its_type() -> None:
    engine = priced()
    engine.apply(events.NodeJoined(node("new", ask=node().compute_capacity)))
    engine.apply(
        events.PricesSolved(
            first_slot=0,
            compute_price={"a": (4.0, 0.0, 0.0), "b": (3.0, 0.0, 1.0)},
            memory_price={"a": (0.0, 0.5, 0.0), "b": (0.0, 0.5, 0.0)},
        )
    )
    # Of slots in which the others cost their asks it costs its own; else what the cheapest costs.
    assert prices_of(engine, "new") == ([5.0, 0.0, 0.0], [0.0, 0.5, 0.0])
    assert prices_of(engine, "b") == ([3.0, 0.0, 1.0], [0.0, 0.5, 0.0])
