"""Providers of one type may ask different amounts; prices and welfare hardly notice."""

from __future__ import annotations

from dataclasses import replace
from functools import cache

import numpy as np
import pytest

from scheduler.auction.prices import Settings
from scheduler.auction.prices.capacity import Supply
from scheduler.auction.prices.demand_response import Demand
from scheduler.auction.prices.descent import compute_dual_value
from scheduler.auction.prices.solve import find_node_prices
from scheduler.auction.prices.type_pools import pool_by_type
from scheduler.experiments.auction.beats import DecidedDay
from scheduler.experiments.auction.bounds import lagrangian_bound, make_capacity
from scheduler.experiments.auction.run import decide_days, make_rules, run_policy
from scheduler.experiments.auction.scenario import Scenario
from scheduler.types import Task

#: Ten nodes that about twice as much is asked of as they can do.
BUSY = Scenario("busy", slots=24, nodes=10, bids_per_slot=6.0, mix="a100", cleaning_share=0.0)
RULES, QUICK = make_rules(BUSY, "lagrangian"), Settings(futures=2)
SEEDS = range(2)


def _capacity(scenario: Scenario) -> Supply:
    return make_capacity(
        scenario.fleet(),
        base_memory=scenario.base_memory_gb,
        first_slot=0,
        slots=scenario.slots,
    )


@cache
def _decide_past(seed: int) -> list[DecidedDay]:
    """Two days that all asks have in common."""
    days = [BUSY.day(100 + seed), BUSY.day(200 + seed)]
    return decide_days(BUSY, days, rules=RULES, seed=seed, settings=QUICK)


def _day(scenario: Scenario, seed: int) -> tuple[float, float]:
    """Give a day's welfare and the bound on it."""
    assert make_rules(scenario, "lagrangian") == RULES
    tasks, past = BUSY.day(seed), _decide_past(seed)
    found = run_policy(scenario, tasks, rules=RULES, past_days=past, seed=seed, settings=QUICK)
    return found.welfare, lagrangian_bound(tasks, _capacity(scenario)).value


@pytest.fixture(scope="module")
def one_ask() -> np.ndarray:
    return np.array([_day(BUSY, seed) for seed in SEEDS])


@pytest.mark.parametrize(
    ("spread", "asks"), [(1e-9, 10), (1e-6, 4), (1e-3, 10), (0.01, 5), (0.02, 2), (0.02, 10)]
)
def test_asks_that_lie_apart_by_up_to_two_percent_cost_no_welfare_and_leave_the_bound_tight(
    one_ask: np.ndarray, spread: float, asks: int
) -> None:
    spread_out = replace(BUSY, ask_spread=spread, different_asks=asks)
    found = np.array([_day(spread_out, seed) for seed in SEEDS])
    welfare, bound = found.sum(axis=0) / one_ask.sum(axis=0)
    # Up is luck of single days; the asks are a small part of what jobs are worth.
    assert welfare >= 0.99
    assert bound == pytest.approx(1.0, abs=0.01)


def test_nodes_of_one_type_cost_the_same_to_the_last_bit_where_the_price_is_above_their_asks() -> (
    None
):
    """What a node asks and its price add up to the type's price, so the packing decides."""
    rng = np.random.default_rng(3)
    for spread in (1e-9, 1e-3, 0.02, 0.5):
        scenario = replace(BUSY, ask_spread=spread)
        supply = _capacity(scenario)
        pools, type_of = pool_by_type(supply)
        price = rng.uniform(0.0, 8.0, pools.compute.shape)
        node_price = find_node_prices(supply, price, pools, type_of)
        total = supply.ask + node_price
        above = node_price > 0
        assert above.sum() > 100
        for slot in range(supply.slots):
            assert len(set(total[slot, above[slot]].tolist())) <= 1
            if above[slot].any():
                assert (total[slot] >= total[slot, above[slot]][0]).all()


def test_the_dual_value_bounds_by_type_as_tightly_as_node_by_node() -> None:
    """With a price by type the value is that of every node at its price above its ask."""
    tasks: list[Task] = BUSY.day(0)
    scenario = replace(BUSY, ask_spread=0.3, different_asks=5)
    supply = _capacity(scenario)
    pools, type_of = pool_by_type(supply)
    rng = np.random.default_rng(1)
    price = pools.floor + rng.uniform(0.0, 2.0, pools.compute.shape)
    memory = np.zeros_like(price)
    by_type = compute_dual_value(pools, Demand(tasks, pools), price, memory)
    each = np.maximum(price[:, type_of] + pools.ask[type_of] - supply.ask, 0.0)
    gains = by_type - float(np.sum(supply.compute * each))
    assert gains == pytest.approx(Demand(tasks, pools).answer(price, memory).upper, rel=1e-9)
