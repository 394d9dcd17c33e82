"""Bounds hold one another in order, and the baselines keep to the cells there are."""

from __future__ import annotations

from collections import defaultdict
from dataclasses import replace
from functools import cache

import numpy as np
import pytest

from scheduler.auction.prices.demand_response import Demand
from scheduler.auction.prices.descent import compute_dual_value
from scheduler.auction.prices.type_pools import pool_by_type
from scheduler.experiments.auction.baselines import earliest_finish, no_merging, titan
from scheduler.experiments.auction.baselines.outcome import BaselineOutcome
from scheduler.experiments.auction.bounds import (
    Supply,
    lagrangian_bound,
    make_capacity,
    pool_places,
)
from scheduler.experiments.auction.bounds.offline_program import (
    Solution,
    linear_bound,
    offline_optimum,
)
from scheduler.types import LaborVendor, NodeSpec, Task
from tests.unit.scheduler.experiments.auction.builders import CROWDED, crowded

SEEDS = [0, *(pytest.param(seed, marks=pytest.mark.nightly) for seed in range(1, 4))]


@cache
def find_optimum(seed: int) -> tuple[list[Task], Supply, Solution]:
    """A crowded day and the best that can be made of it, which takes some ten seconds."""
    tasks, supply = crowded(seed)
    best = offline_optimum(tasks, supply, time_limit_s=120.0, relative_gap=1e-6)
    assert best.optimal
    return tasks, supply, best


def a_task(**fields: object) -> Task:
    task = Task(
        id="t",
        arrival_slot=0,
        deadline_slot=3,
        compute_demand=20.0,
        memory_demand=1.0,
        bid=100.0,
        rates={"g": 10.0},
    )
    return replace(task, **fields)


def one_node(*, ask: float = 0.0, slots: int = 4) -> Supply:
    node = NodeSpec(id="n", gpu_type="g", compute_capacity=10.0, memory_capacity=3.0, ask=ask)
    return make_capacity([node], base_memory=1.0, first_slot=0, slots=slots)


@pytest.mark.parametrize("seed", SEEDS)
def test_no_bound_is_below_the_optimum_and_no_baseline_above_it(seed: int) -> None:
    tasks, supply, best = find_optimum(seed)
    assert len(best.chosen) < len(tasks)
    slack = 1e-5 * best.welfare
    assert lagrangian_bound(tasks, supply, iterations=60).value >= best.welfare - slack
    assert linear_bound(tasks, supply) >= best.welfare - slack
    for outcome in (
        earliest_finish(tasks, supply),
        no_merging(tasks, supply, seed=seed),
        titan(tasks, supply, seed=seed, time_limit_s=1.0),
    ):
        assert 0 < outcome.welfare <= best.welfare + slack


@pytest.mark.parametrize("seed", SEEDS)
def test_any_prices_at_all_bound_the_optimum(seed: int) -> None:
    tasks, supply, best = find_optimum(seed)
    pools, _ = pool_by_type(supply)
    demand = Demand(tasks, pools)
    rng = np.random.default_rng(seed)
    for scale in (0.0, 0.1, 1.0, 10.0):
        lam = rng.random(pools.compute.shape) * scale
        phi = rng.random(pools.memory.shape) * scale * 100.0
        assert compute_dual_value(pools, demand, lam, phi) >= best.welfare * (1 - 1e-5)


@pytest.mark.parametrize("seed", SEEDS)
def test_the_lagrangian_bound_is_near_the_optimum_and_solving_exactly_only_lowers_it(
    seed: int,
) -> None:
    tasks, supply, best = find_optimum(seed)
    exact = lagrangian_bound(tasks, supply, iterations=200).value
    loose = lagrangian_bound(tasks, supply, iterations=200, exact=False).value
    assert exact <= loose
    assert exact <= 1.35 * best.welfare


def test_with_room_for_all_the_bound_is_the_optimum() -> None:
    supply = one_node(ask=3.0)
    task = a_task()
    best = offline_optimum([task], supply)
    assert best.welfare == pytest.approx(94.0)
    assert lagrangian_bound([task], supply, iterations=5).value == pytest.approx(94.0)
    assert linear_bound([task], supply) == pytest.approx(94.0)


def test_the_optimum_pays_the_vendor_that_is_worth_it() -> None:
    supply = one_node()
    slow = LaborVendor(id="slow", price=1.0, delay_slots=3)
    quick = LaborVendor(id="quick", price=5.0, delay_slots=2)
    best = offline_optimum([a_task(vendors=(slow, quick))], supply)
    assert best.welfare == pytest.approx(95.0)
    assert best.chosen == {0: (1, ((2, 0), (3, 0)))}


def test_a_task_that_costs_more_than_it_is_worth_is_left_out() -> None:
    supply = one_node(ask=60.0)
    best = offline_optimum([a_task()], supply)
    assert (best.welfare, best.chosen, best.optimal) == (0.0, {}, True)
    assert earliest_finish([a_task()], supply).served == {}


def test_tasks_with_costs_of_their_own_are_refused() -> None:
    task = a_task(operational_costs={"n": (1.0,)})
    for solve in (offline_optimum, lagrangian_bound, linear_bound, earliest_finish):
        with pytest.raises(ValueError, match="leave operational_costs out"):
            solve([task], one_node())


def faults(
    tasks: list[Task], supply: Supply, outcome: BaselineOutcome, *, alone: bool
) -> list[str]:
    """Work out from the schedules alone whether they could run."""
    wrong: list[str] = []
    compute: dict[tuple[int, int], float] = defaultdict(float)
    memory: dict[tuple[int, int], float] = defaultdict(float)
    load: dict[tuple[int, int], int] = defaultdict(int)
    welfare = 0.0
    for task in tasks:
        schedule = outcome.served.get(task.id)
        if schedule is None:
            continue
        offer = task.vendors[schedule.vendor] if task.vendors else None
        ready = task.arrival_slot + (offer.delay_slots if offer else 0)
        slots = [cell.slot for cell in schedule.cells]
        done = cost = 0.0
        for cell in schedule.cells:
            k = int(cell.node)
            rate = task.rates[supply.types[k]]
            done += rate
            cost += rate * float(supply.ask[k])
            compute[cell.slot, k] += rate
            memory[cell.slot, k] += task.memory_demand
            load[cell.slot, k] += 1
        welfare += task.bid - cost - (offer.price if offer else 0.0)
        if min(slots) < ready or max(slots) > task.deadline_slot:
            wrong.append(f"{task.id} is outside its window")
        if len(set(slots)) < len(slots):
            wrong.append(f"{task.id} is twice in a slot")
        if done < task.compute_demand * (1 - 1e-9):
            wrong.append(f"{task.id} is not done")
    for (t, k), used in compute.items():
        if used > supply.compute[t, k] * (1 + 1e-6):
            wrong.append(f"compute of {t}, {k}")
        if memory[t, k] > supply.memory[t, k] * (1 + 1e-6):
            wrong.append(f"memory of {t}, {k}")
        if alone and load[t, k] > 1:
            wrong.append(f"{t}, {k} is shared")
    if abs(welfare - outcome.welfare) > 1e-6 * max(welfare, 1.0):
        wrong.append(f"welfare is {welfare}, said to be {outcome.welfare}")
    return wrong


@pytest.mark.parametrize("seed", SEEDS)
def test_baselines_oversell_nothing_and_finish_what_they_serve(seed: int) -> None:
    tasks, supply = crowded(seed)
    found = {
        "eft": earliest_finish(tasks, supply),
        "ntm": no_merging(tasks, supply, seed=seed),
        "titan": titan(tasks, supply, seed=seed, time_limit_s=1.0),
    }
    for name, outcome in found.items():
        assert outcome.served
        assert len(outcome.served) < len(tasks)
        assert faults(tasks, supply, outcome, alone=name == "ntm") == []
    assert no_merging(tasks, supply, seed=seed) == found["ntm"]


def test_titan_without_time_for_its_program_still_serves() -> None:
    tasks, supply = crowded(1)
    outcome = titan(tasks, supply, seed=1, time_limit_s=0.0)
    assert outcome.served
    assert faults(tasks, supply, outcome, alone=False) == []


def test_eft_takes_the_quickest_vendor_and_the_first_cells() -> None:
    cheap = LaborVendor(id="cheap", price=1.0, delay_slots=2)
    quick = LaborVendor(id="quick", price=9.0, delay_slots=1)
    outcome = earliest_finish([a_task(vendors=(cheap, quick))], one_node())
    schedule = outcome.served["t"]
    assert schedule.vendor == 1
    assert [cell.slot for cell in schedule.cells] == [1, 2]
    assert outcome.welfare == pytest.approx(91.0)


def test_pools_hold_what_their_nodes_hold() -> None:
    supply = make_capacity(CROWDED.fleet() * 2, base_memory=2.0, first_slot=0, slots=3)
    pools, pool_of = pool_places(supply)
    assert pools.types == ("a100", "a40")
    assert pool_of.tolist() == [0, 1, 0, 1]
    assert pools.compute.tolist() == [[16_000.0, 8_000.0]] * 3
    assert pools.memory.tolist() == [[156.0, 92.0]] * 3


def test_a_node_is_sold_only_while_it_is_there() -> None:
    node = NodeSpec(
        id="n",
        gpu_type="g",
        compute_capacity=1.0,
        memory_capacity=1.0,
        available_from=6,
        available_until=7,
    )
    supply = make_capacity([node], base_memory=0.0, first_slot=5, slots=4)
    assert supply.compute[:, 0].tolist() == [0.0, 1.0, 1.0, 0.0]
