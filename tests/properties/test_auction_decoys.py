"""Bids that cannot win move nothing, and one owner's bids move little."""

from __future__ import annotations

from collections import Counter
from dataclasses import replace
from random import Random
from statistics import median_low

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from scheduler.auction import Engine, ZoneRules
from scheduler.auction.log import events
from scheduler.auction.prices import EmptyZone, Settings, select_counted, solve_prices
from scheduler.auction.prices.counted_bids import LEAST_MOST, MOST_SHARE
from scheduler.experiments.attack import decoys
from scheduler.experiments.auction.run import make_rules
from scheduler.types import Decision, Task
from tests.properties.auction_markets import random_node, random_task

BUSY = decoys.make_zones(decoys.QUICK)[0]
DAY = BUSY.scenario.day(1)
UPTO = 60
SLOT = DAY[UPTO].arrival_slot


def _engine() -> Engine:
    engine = Engine(make_rules(BUSY.scenario, "lagrangian"))
    for node in BUSY.scenario.fleet():
        engine.apply(events.NodeJoined(node))
    engine.apply(events.SlotAdvanced(SLOT))
    return engine


def _solve(today: list[Task], past: list[list[Task]]) -> events.PricesSolved:
    return solve_prices(
        _engine(),
        slot=SLOT,
        last_slot=BUSY.scenario.slots - 1,
        day_start=0,
        today=today,
        past_days=past,
        seed=3,
        settings=Settings(futures=2, iterations=8),
    )


@pytest.fixture(scope="module")
def undisturbed() -> events.PricesSolved:
    found = _solve(DAY[:UPTO], BUSY.history(1))
    assert max(map(max, found.compute_price.values())) > 0
    return found


def _cannot_win(draw: st.DrawFn) -> Task:
    """Draw a bid that no empty zone serves, of any amount."""
    shape = DAY[draw(st.integers(0, UPTO - 1))]
    amount = draw(st.sampled_from([1e-9, 1.0, 1e6, 1e15, 1e30]))
    change = draw(
        st.sampled_from(
            [
                {"bid": min(amount, 0.5 * shape.compute_demand * 0.5)},
                {"bid": -amount},
                {"bid": amount, "memory_demand": 1e3},
                {"bid": amount, "compute_demand": 1e9},
                {"bid": amount, "compute_demand": 0.0},
                {"bid": amount, "deadline_slot": shape.arrival_slot - 1},
                {"bid": amount, "rates": {"h100": 100.0}},
                {"bid": amount, "rates": {"a100": 1e9}},
                {"bid": amount, "rates": {}},
            ]
        )
    )
    return replace(
        shape, **change, owner=draw(st.sampled_from(["", "a", "b"])), id=f"decoy-{shape.id}"
    )


@settings(max_examples=25)
@given(data=st.data())
def test_no_number_of_bids_that_cannot_win_changes_a_price_by_one_bit(
    undisturbed: events.PricesSolved, data: st.DataObject
) -> None:
    draw = st.composite(_cannot_win)()
    added = data.draw(st.lists(draw, min_size=1, max_size=200))
    today = sorted([*added, *DAY[:UPTO]], key=lambda task: task.arrival_slot)
    past = [[*day, *data.draw(st.lists(draw, max_size=20))] for day in BUSY.history(1)]
    found = _solve(today, past)
    assert found.compute_price == undisturbed.compute_price
    assert found.memory_price == undisturbed.memory_price
    assert found.usual_rates == undisturbed.usual_rates
    assert found.private == undisturbed.private


@given(seed=st.integers(0, 2**32))
def test_a_bid_counts_exactly_if_an_engine_with_nothing_sold_admits_it(seed: int) -> None:
    rng = Random(seed)
    rules = ZoneRules(
        base_memory=2.0, horizon_slots=16, first_slot=0, money_quantum=rng.choice([0.0, 1.0])
    )
    nodes = [
        replace(random_node(rng, f"n{k}"), available_from=None, available_until=None)
        for k in range(rng.randint(1, 5))
    ]
    zone = EmptyZone(nodes, base_memory=rules.base_memory, money_quantum=rules.money_quantum)
    for number in range(8):
        task = random_task(rng, f"t{number}", 2)
        engine = Engine(rules)
        for node in nodes:
            engine.apply(events.NodeJoined(node))
        price = engine.quote(task, slot=0).price
        if price is not None and rng.random() < 0.5:
            # At the very price, or a hair above.
            task = replace(task, bid=price * rng.choice([1.0, 1.0 + 1e-12, 1.0 + 1e-6]))
        decision = engine.apply(events.BidArrived(task, 0)).outcome
        assert isinstance(decision, Decision)
        assert zone.could_serve(task) is decision.admitted


@given(
    owners=st.lists(st.sampled_from(["", "", "a", "b", "c"]), max_size=120),
    flood=st.integers(0, 300),
)
def test_an_owner_counts_for_a_tenth_of_the_others_or_as_a_middling_one_with_its_latest_bids(
    owners: list[str], flood: int
) -> None:
    zone = EmptyZone(BUSY.scenario.fleet(), base_memory=2.0)
    shape = next(task for task in DAY if zone.could_serve(task))
    day = [replace(shape, id=str(n), owner=owner) for n, owner in enumerate(owners)]
    day += [replace(shape, id=f"f{n}", owner="flood") for n in range(flood)]
    counted = select_counted(day, zone)
    # In their order, and all that have no owner.
    assert [t for t in day if t in counted] == list(counted)
    for owner in {task.owner for task in day}:
        own = [task for task in day if task.owner == owner]
        rest = Counter(task.owner or task.id for task in day if task.owner != owner)
        most = len(own)
        if owner and rest:
            tenth = int(MOST_SHARE * rest.total())
            most = max(LEAST_MOST, tenth, median_low(rest.values()))
        assert [t for t in counted if t.owner == owner] == own[max(len(own) - most, 0) :]


UNABLE = [
    "3 worthless bids for each real one",
    "5 % giants that no node holds",
    "as many with windows too short, at 10 times the worth",
    "as many without work",
]


@pytest.mark.parametrize("attack", UNABLE)
def test_a_day_of_decoys_that_cannot_win_leaves_the_others_exactly_what_they_had(
    attack: str,
) -> None:
    size = replace(decoys.QUICK, days=1)
    for zone in decoys.make_zones(size)[1:]:
        day, past = zone.scenario.day(0), zone.history(0)
        bids = decoys.ATTACKS[attack](zone.scenario, day, np.random.default_rng(1))
        assert bids
        calm = decoys.measure(zone, day, [], past, seed=0, size=size)
        assert decoys.measure(zone, day, bids, past, seed=0, size=size) == calm
        assert calm[0] > 0
