"""Bids that cannot win move nothing, and one owner's bids move little."""

from __future__ import annotations

import math
from collections import defaultdict
from dataclasses import replace
from itertools import chain
from random import Random
from statistics import median_high

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from scheduler.auction import Engine, ZoneRules
from scheduler.auction.log import events
from scheduler.auction.prices import EmptyZone, KnownBids, Settings, select_counted, solve_prices
from scheduler.auction.prices.counted_bids import BACKED_TIMES
from scheduler.experiments.attack import decoy_kinds, decoys
from scheduler.experiments.auction.run import make_rules
from scheduler.types import NodeSpec, Task
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
        KnownBids(
            slot=SLOT,
            last_slot=BUSY.scenario.slots - 1,
            day_start=0,
            today=today,
            past_days=past,
            won={task.id for task in (*DAY[:UPTO:2], *chain(*BUSY.history(1)))},
        ),
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
def test_no_number_of_bids_that_cannot_be_served_changes_a_price_by_one_bit(
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
    assert found.inputs == undisturbed.inputs


@given(seed=st.integers(0, 2**32))
def test_a_bid_counts_exactly_if_an_engine_with_nothing_sold_has_a_price_for_it(seed: int) -> None:
    rng = Random(seed)
    rules = ZoneRules(base_memory=2.0, horizon_slots=16, first_slot=0)
    nodes = [
        replace(random_node(rng, f"n{k}"), available_from=None, available_until=None)
        for k in range(rng.randint(1, 5))
    ]
    zone = EmptyZone(nodes, base_memory=rules.base_memory)
    for number in range(8):
        task = random_task(rng, f"t{number}", 2)
        engine = Engine(rules)
        for node in nodes:
            engine.apply(events.NodeJoined(node))
        assert zone.could_serve(task) is (engine.quote(task, slot=0).price is not None)


def test_a_bid_for_verified_nodes_counts_where_one_of_those_could_serve_it() -> None:
    node = NodeSpec(id="a", gpu_type="a40", compute_capacity=4.0, memory_capacity=40.0, ask=1.0)
    task = Task(
        id="t",
        arrival_slot=0,
        deadline_slot=9,
        compute_demand=4.0,
        memory_demand=1.0,
        bid=10**9,
        rates={"a40": 2.0},
    )
    wary = replace(task, verified_only=True)
    strangers = EmptyZone([node], base_memory=2.0)
    assert (strangers.could_serve(task), strangers.could_serve(wary)) == (True, False)
    both = EmptyZone([node, replace(node, id="b", ask=3.0, is_verified=True)], base_memory=2.0)
    assert (both.could_serve(task), both.could_serve(wary)) == (True, True)


@given(seed=st.integers(0, 2**32), names=st.integers(1, 300), work=st.sampled_from([1.0, 1e-3]))
def test_a_flood_that_buys_nothing_counts_up_to_a_ninth_or_what_new_owners_bought(
    seed: int, names: int, work: float
) -> None:
    rng = Random(seed)
    zone = EmptyZone(BUSY.scenario.fleet(), base_memory=2.0)
    shapes = [task for task in DAY if zone.could_serve(task)]

    def draw(prefix: str, owners: list[str]) -> list[Task]:
        return [
            replace(rng.choice(shapes), id=f"{prefix}{n}", owner=rng.choice(owners))
            for n in range(rng.randint(0, 60))
        ]

    days = [draw("today-", ["", "a", "b", "c"]), draw("past-", ["a", "b"])]
    won = {task.id for day in days for task in day if rng.random() < 0.5}
    flood = [replace(rng.choice(shapes), id=f"f{n}", owner=f"f{n % names}") for n in range(300)]
    flood = [replace(task, compute_demand=work * task.compute_demand) for task in flood]
    today = [*days[0], *flood]
    rng.shuffle(today)
    counted = select_counted([today, days[1]], zone, won=won)
    # In their order.
    ids = {task.id for task in counted[0]}
    assert [task.id for task in today if task.id in ids] == [task.id for task in counted[0]]
    # All that won.
    assert won <= {task.id for day in counted for task in day}
    bought = defaultdict[str, float](float)
    for task in chain(*days):
        bought[task.owner or task.id] += room(task) if task.id in won else 0.0
    old = {task.owner for task in days[1] if task.id in won}
    new = sum(room(t) for t in days[0] if t.id in won and (not t.owner or t.owner not in old))
    others = defaultdict[str, float](float)
    for task in chain(*counted):
        if task.id not in won:
            others[task.owner or task.id] += room(task)
    paid = sum(room(task) for task in counted[0] if task.id in won)
    backed = sum(min(others[owner], BACKED_TIMES * bought[owner]) for owner in others)
    of_flood = [task for task in counted[0] if task.id.startswith("f")]
    usual = median_high([room(t) for t in chain(*days) if t.id in won] or [0.0])
    most = max((paid + backed) / 9, new) * (1 + 1e-6)
    largest = max(room(task) for task in shapes)
    assert sum(map(room, of_flood)) <= most + 3 * largest
    if won:
        # However little work they have.
        assert len(of_flood) <= most / usual + 3


def room(task: Task) -> float:
    """Give a task's work in whole slots."""
    return min(math.ceil(task.compute_demand / rate - 1e-9) * rate for rate in task.rates.values())


UNABLE = [
    "5 % giants that no node holds",
    "as many with windows too short, at 10 times the worth",
    "as many without work",
]


@pytest.mark.parametrize("attack", UNABLE)
def test_a_day_of_decoys_that_no_node_can_serve_leaves_the_others_exactly_what_they_had(
    attack: str,
) -> None:
    size = replace(decoys.QUICK, days=1)
    for zone in decoys.make_zones(size)[1:]:
        day, past = zone.scenario.day(0), decoys.decide_history(zone, seed=0, size=size)
        bids = decoy_kinds.ATTACKS[attack](zone.scenario, day, np.random.default_rng(1))
        assert bids
        calm = decoys.measure(zone, day, [], past, seed=0, size=size)
        found = decoys.compare(zone, day, bids, past, calm, seed=0, size=size)
        assert set(found) == {0.0}
        assert calm.welfare > 0


def test_a_flood_that_buys_room_is_told_from_one_that_moves_prices() -> None:
    # What the others lose to three bids for each of theirs is the room that those hold: with it
    # back on sale they have as much as without the flood.
    size = replace(decoys.QUICK, days=1)
    day, past = BUSY.scenario.day(6), decoys.decide_history(BUSY, seed=6, size=size)
    flood = decoy_kinds.ATTACKS["3 bids near cost for each real one, an owner each"]
    bids = flood(BUSY.scenario, day, np.random.default_rng([6, 77]))
    calm = decoys.measure(BUSY, day, [], past, seed=6, size=size)
    found = decoys.compare(BUSY, day, bids, past, calm, seed=6, size=size)
    assert found.attackers_pay > 0.05
    assert found.others_welfare < -0.05
    assert found.price_welfare > -decoys.MOST_WELFARE
    assert found.others_welfare < found.net_welfare


def _change(
    zone: decoys.AttackedZone, attack: str, *, seeds: range, size: decoys.DecoySize
) -> tuple[float, float]:
    """Others' welfare and payments on some days, as a share of those without the attack."""
    calm, attacked = np.zeros(3), np.zeros(3)
    for seed in seeds:
        day, past = zone.day(seed), decoys.decide_history(zone, seed=seed, size=size)
        loses = attack in decoy_kinds.REFUSED
        make = decoy_kinds.REFUSED[attack] if loses else decoy_kinds.ATTACKS[attack]
        bids = make(zone.scenario, day, np.random.default_rng([seed, 77]))
        assert 0 < len(bids) <= 0.06 * len(day)
        calm += decoys.measure(zone, day, [], past, seed=seed, size=size)
        own, theirs = decoys.measure_both(
            zone,
            day,
            bids,
            past,
            seed=seed,
            size=size,
            conduct="loses" if loses else "keeps",
        )
        assert not loses or theirs.payments == 0.0
        attacked += own
    welfare, payments, _ = (attacked / calm).tolist()
    return welfare, payments


FIVE_PERCENT = [
    "5 % bids of any amount and shape, one owner",
    "5 % tiny jobs worth 100 times their cost",
    "5 % bids at the very price, an owner each",
]


# In the second zone few win, so fewer days tell too little of payments.
@pytest.mark.parametrize(("place", "days"), [(0, 3), (1, 6)])
def test_one_bid_in_twenty_of_any_amount_and_shape_hardly_moves_the_others(
    place: int, days: int
) -> None:
    zone = decoys.make_zones(decoys.QUICK)[place]
    seeds = range(60, 60 + days)
    welfare, payments = _change(zone, FIVE_PERCENT[0], seeds=seeds, size=decoys.QUICK)
    assert welfare >= 1 - decoys.MOST_WELFARE
    assert abs(payments - 1) <= decoys.MOST_PAYMENTS


@pytest.mark.nightly
@pytest.mark.parametrize("attack", FIVE_PERCENT)
@pytest.mark.parametrize("place", [0, 1, 2])
def test_one_bid_in_twenty_hardly_moves_the_others_on_many_days(place: int, attack: str) -> None:
    zone = decoys.make_zones(decoys.QUICK)[place]
    welfare, payments = _change(zone, attack, seeds=range(60, 100), size=decoys.QUICK)
    assert welfare >= 1 - decoys.MOST_WELFARE
    assert abs(payments - 1) <= decoys.MOST_PAYMENTS
