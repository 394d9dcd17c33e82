"""What samples are worth, by prices that were taken and left."""

from __future__ import annotations

from dataclasses import replace

import pytest

from scheduler.auction import Engine, ZoneRules
from scheduler.auction.log import events
from scheduler.auction.prices import EmptyZone, KnownBids, Settings, solve_prices
from scheduler.types import NodeSpec, Task
from tests.unit.scheduler.auction.builders import node, task

NODES = [replace(node(f"n{k}", ask=100.0 + 10 * k), compute_capacity=100.0) for k in range(5)]
#: A five-hundredth of the zone's capacity, at a thousandth of what the others ask.
SLOW = replace(node("slow", ask=0.001), compute_capacity=1.0)


def list_taken(price: float) -> list[Task]:
    """Sixty bids that took a price for a sample, more than the zone has room for."""
    return [
        task(
            f"t{n}",
            bid=price * 600.0,
            compute_demand=600.0,
            rates={"g": 50.0},
            arrival_slot=n % 12 - 11,
            deadline_slot=n % 12 + 9,
            owner=f"o{n % 13}",
        )
        for n in range(60)
    ]


def solve_rush(nodes: list[NodeSpec]) -> tuple[float, ...]:
    engine = Engine(ZoneRules(horizon_slots=48, day_slots=48))
    for each in nodes:
        engine.apply(events.NodeJoined(each))
    bids = list_taken(1.2)
    won = {bid.id for bid in bids}
    known = KnownBids(slot=0, last_slot=47, day_start=-12, today=bids, past_days=[], won=won)
    solved = solve_prices(engine, known, seed=1, settings=Settings(futures=2, iterations=12))
    return solved.compute_price["n0"]


def test_a_slow_node_that_asks_little_does_not_lower_the_prices_of_a_rush() -> None:
    alone, beside = solve_rush(NODES), solve_rush([*NODES, SLOW])
    assert max(alone) > 3.0
    assert beside == pytest.approx(alone, rel=0.01)


@pytest.mark.parametrize(
    ("asks", "low"),
    [
        ([], 0.0),
        ([(0.0, 10.0)], 0.0),
        ([(3.0, 10.0)], 3.0),
        ([(1.0, 9.0), (3.0, 91.0)], 3.0),
        ([(1.0, 10.0), (3.0, 90.0)], 1.0),
        # What asks nothing is no part of it.
        ([(0.0, 900.0), (1.0, 10.0), (3.0, 90.0)], 1.0),
    ],
)
def test_the_low_ask_is_that_of_a_tenth_of_the_capacity(
    asks: list[tuple[float, float]], low: float
) -> None:
    nodes = [
        replace(node(f"n{k}", ask=ask * capacity), compute_capacity=capacity)
        for k, (ask, capacity) in enumerate(asks)
    ]
    assert EmptyZone(nodes, base_memory=0.0).low_ask == low
