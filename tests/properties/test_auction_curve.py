"""The curve over deadlines, and the covers and fronts it is made of, are exact."""

from __future__ import annotations

import math
from dataclasses import replace
from itertools import product

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from scheduler.auction.search.grid import TOLERANCE, Grid
from scheduler.auction.search.kernels.cells import Rows
from scheduler.auction.search.kernels.covers import cover_by_pairs
from scheduler.auction.search.kernels.relaxation import find_least_cover, find_multiplier
from scheduler.auction.search.task_search import Search
from scheduler.experiments.auction.max_form.search import MaxFormSearch
from scheduler.experiments.auction.reference import search_by_enumeration
from scheduler.types import Horizon, Task
from tests.benchmarks import auction_day
from tests.properties.auction_cases import grids_with_tasks, lay_out, medium_case

FORMS = pytest.mark.parametrize("additive", [False, True], ids=["max", "additive"])


def _search(grid: Grid, task: Task, *, additive: bool) -> Search:
    return lay_out(grid, task, additive=additive)


def _curve_by_deadline(grid: Grid, task: Task, *, additive: bool) -> list[float]:
    """The price of every deadline, each searched by itself."""
    search = _search(grid, task, additive=additive)
    prices: list[float] = []
    for deadline in range(grid.first_slot, grid.first_slot + grid.slots):
        plan = search.find_plan(deadline)
        prices.append(math.inf if plan is None else plan.price)
    return prices


def _curve_at_once(grid: Grid, task: Task, *, additive: bool) -> list[float]:
    last = grid.first_slot + grid.slots - 1
    treads = dict(
        _search(grid, task, additive=additive).trace_price_curve(first=grid.first_slot, last=last)
    )
    prices: list[float] = []
    for deadline in range(grid.first_slot, last + 1):
        prices.append(treads.get(deadline, prices[-1] if prices else math.inf))
    return prices


@FORMS
@settings(max_examples=300, deadline=None)
@given(case=grids_with_tasks(most_nodes=4, most_slots=8))
def test_one_pass_gives_the_price_of_every_deadline(
    additive: bool, case: tuple[Grid, Task]
) -> None:
    grid, task = case
    at_once = _curve_at_once(grid, task, additive=additive)
    assert at_once == pytest.approx(
        _curve_by_deadline(grid, task, additive=additive), rel=1e-9, abs=1e-9
    )
    assert at_once == sorted(at_once, reverse=True)


@FORMS
@pytest.mark.parametrize("types", [1, 2, 3])
@pytest.mark.parametrize("seed", range(6))
def test_one_pass_gives_the_price_of_every_deadline_of_longer_windows(
    additive: bool, types: int, seed: int
) -> None:
    grid, task = medium_case(seed=100 + seed * 10 + types, nodes=6, slots=24, types=types)
    at_once = _curve_at_once(grid, task, additive=additive)
    assert at_once == pytest.approx(_curve_by_deadline(grid, task, additive=additive), rel=1e-11)
    assert len(set(at_once)) > 3


@FORMS
@pytest.mark.parametrize("types", [1, 2])
def test_a_curve_whose_work_no_window_holds_is_empty(additive: bool, types: int) -> None:
    grid, task = medium_case(seed=types, nodes=4, slots=8, types=types)
    endless = replace(task, compute_demand=1e6)
    last = grid.first_slot + grid.slots - 1
    search = _search(grid, endless, additive=additive)
    assert search.trace_price_curve(first=grid.first_slot, last=last) == []
    assert search.find_soonest(first=grid.first_slot, last=last) is None


@FORMS
@settings(max_examples=150, deadline=None)
@given(case=grids_with_tasks(most_nodes=4, most_slots=8))
def test_the_soonest_plan_is_the_first_of_the_curve(
    additive: bool, case: tuple[Grid, Task]
) -> None:
    grid, task = case
    last = grid.first_slot + grid.slots - 1
    search = _search(grid, task, additive=additive)
    curve = search.trace_price_curve(first=grid.first_slot, last=last)
    soonest = search.find_soonest(first=grid.first_slot, last=last)
    if soonest is None:
        assert curve == []
    else:
        # The first deadline with any plan uses its own slot.
        first, price = curve[0]
        assert soonest.schedule.finish_slot == first
        assert soonest.price == pytest.approx(price, rel=1e-9, abs=1e-9)


COSTS = st.one_of(st.integers(0, 6).map(float), st.floats(0.0, 6.0), st.just(math.inf))


@settings(max_examples=400, deadline=None)
@given(data=st.data(), slots=st.integers(1, 6), units=st.permutations([3, 7]))
def test_a_cover_by_pairs_of_counts_is_the_cheapest_of_all_covers(
    data: st.DataObject, slots: int, units: list[int]
) -> None:
    cost = np.array(
        data.draw(st.lists(st.tuples(COSTS, COSTS), min_size=slots, max_size=slots)), np.float64
    )
    need = find_least_cover(np.array(units), data.draw(st.integers(1, 7 * slots)))
    cell = np.arange(2 * slots).reshape(slots, 2)
    mu, bound = find_multiplier(
        cost, np.array(units, np.float64), need, 0, slots - 1, 0.0, math.inf
    )
    expected = math.inf
    for choice in product((None, 0, 1), repeat=slots):
        taken = [(i, c) for i, c in enumerate(choice) if c is not None]
        if taken and sum(units[c] for _, c in taken) >= need:
            expected = min(expected, sum(float(cost[i, c]) for i, c in taken))
    path = np.empty(slots, np.int64)
    if bound == math.inf:
        assert expected == math.inf
        return
    assert bound <= expected + 1e-9
    n, least = cover_by_pairs(
        Rows(cost, cell), np.array(units), need, slots, mu, bound, math.inf, path
    )
    assert least == pytest.approx(expected, rel=1e-12)
    assert (n == 0) == (expected == math.inf)
    if n:
        picked = path[:n].tolist()
        assert sum(float(cost.reshape(-1)[j]) for j in picked) == pytest.approx(least)
        assert sum(units[j % 2] for j in picked) >= need
        assert len({j // 2 for j in picked}) == n


@settings(max_examples=200, deadline=None)
@given(case=grids_with_tasks(most_nodes=6, most_slots=4))
def test_the_cells_searched_are_those_that_no_other_beats(case: tuple[Grid, Task]) -> None:
    """Pareto fronts by definition: nothing that may be needed is dropped."""
    grid, task = case
    task = replace(task, arrival_slot=grid.first_slot, operational_costs=None)
    search = _search(grid, task, additive=False)
    if search.find_plan(grid.first_slot + grid.slots - 1) is None:
        return
    assert isinstance(search, MaxFormSearch)
    cells = search._gather(grid.slots - 1)
    for slot in range(grid.slots):
        every: list[tuple[float, float, float, float]] = []
        for k, node in enumerate(grid.nodes):
            rate = task.rates.get(node.gpu_type, 0.0)
            if (
                rate > 0
                and grid.compute_free[slot, k] >= rate - TOLERANCE * node.compute_capacity
                and grid.memory_free[slot, k]
                >= task.memory_demand - TOLERANCE * grid.memory_capacity[k]
            ):
                every.append(
                    (
                        rate,
                        float(grid.compute_price[slot, k]),
                        float(grid.memory_price[slot, k]),
                        float(grid.ask_per_sample[k] * rate),
                    )
                )
        front = {
            one
            for one in every
            if not any(
                other != one
                and other[0] == one[0]
                and all(x <= y for x, y in zip(other, one, strict=True))
                for other in every
            )
        }
        rates = sorted({rate for rate in task.rates.values() if rate in {e[0] for e in every}})
        found = [
            (
                task.rates[grid.nodes[int(cells.node[j])].gpu_type],
                float(cells.lam[j]),
                float(cells.phi[j]),
                float(cells.own[j]),
            )
            for j in range(int(cells.starts[slot]), int(cells.starts[slot + 1]))
        ]
        assert sorted(found) == sorted(front)
        assert {one[0] for one in found} == set(rates)


@FORMS
@pytest.mark.parametrize("types", [1, 2])
@pytest.mark.parametrize("seed", range(4))
def test_a_curve_found_tread_by_tread_is_the_same(
    additive: bool, types: int, seed: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    grid, task = medium_case(seed=500 + 10 * seed + types, nodes=6, slots=24, types=types)
    at_once = _curve_at_once(grid, task, additive=additive)
    monkeypatch.setattr("scheduler.auction.search.task_search._MANY", 0)
    monkeypatch.setattr("scheduler.experiments.auction.max_form.search._MANY_A_BOX", 0)
    assert _curve_at_once(grid, task, additive=additive) == pytest.approx(at_once, rel=1e-11)


@settings(max_examples=200, deadline=None)
@given(case=grids_with_tasks(most_nodes=3, most_slots=5))
def test_the_curve_of_max_prices_is_that_of_trying_every_schedule(case: tuple[Grid, Task]) -> None:
    grid, task = case
    begin = max(grid.first_slot, task.arrival_slot)
    expected = [
        search_by_enumeration(grid, task, begin=begin, deadline=d, additive=False, residual=True)
        for d in range(grid.first_slot, grid.first_slot + grid.slots)
    ]
    assert _curve_at_once(grid, task, additive=False) == pytest.approx(expected, rel=1e-9, abs=1e-9)


@pytest.mark.parametrize("asks", ["by type", "by node"])
@pytest.mark.parametrize("seed", range(3))
def test_the_curve_of_max_prices_is_exact_where_every_cell_has_its_own_prices(
    asks: str, seed: int
) -> None:
    """Larger windows, many vendors and boxes; each deadline searched by itself."""
    rng = np.random.default_rng(seed)
    grid = Grid(horizon=Horizon(first_slot=0, slots=48), base_memory=2.0)
    for node in auction_day.nodes(30, seed=seed, asks=asks):
        grid.add_node(node)
    grid.compute_price[:] = rng.uniform(0.0, 1.0, grid.compute_price.shape)
    grid.memory_price[:] = rng.uniform(0.0, 300.0, grid.memory_price.shape)
    grid.compute_free[rng.random(grid.compute_free.shape) < 0.5] = 0.0
    for task in auction_day.tasks(8, seed=seed)[:8]:
        task = replace(task, arrival_slot=0)
        at_once = _curve_at_once(grid, task, additive=False)
        assert at_once == pytest.approx(_curve_by_deadline(grid, task, additive=False), rel=1e-11)
        assert len(set(at_once)) > 3
