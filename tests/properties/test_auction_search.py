"""The per-task search is exact, in both forms of prices."""

from __future__ import annotations

import math
from dataclasses import replace

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from scheduler.auction.search.grid import Grid
from scheduler.experiments.auction.integer_program import solve_with_highs
from scheduler.experiments.auction.reference import search_by_caps, search_by_enumeration
from scheduler.types import Task
from tests.properties.auction_cases import (
    grids_with_tasks,
    lay_out,
    medium_case,
    thirds_of_the_work,
)

FORMS = pytest.mark.parametrize("additive", [False, True], ids=["max", "additive"])


def _price(grid: Grid, task: Task, *, additive: bool, residual: bool, deadline: int) -> float:
    search = lay_out(grid, task, additive=additive, residual=residual)
    plan = search.find_plan(deadline)
    return math.inf if plan is None else plan.price


def _begin(grid: Grid, task: Task) -> int:
    return max(grid.first_slot, task.arrival_slot)


def _last(grid: Grid) -> int:
    return grid.first_slot + grid.slots - 1


def _rounded_down(task: Task) -> float:
    """The least work accepted as what a task asks for (``scheduler.auction.search.rates``)."""
    return max(task.compute_demand - 1e-8 * max(task.rates.values()), task.compute_demand / 2)


@pytest.mark.parametrize(
    ("additive", "residual"),
    [(True, True), (False, True), (False, False)],
    ids=["additive", "max", "printed"],
)
@settings(max_examples=200, deadline=None)
@example(case=thirds_of_the_work())
@given(case=grids_with_tasks())
def test_the_search_finds_what_trying_every_schedule_finds(
    additive: bool, residual: bool, case: tuple[Grid, Task]
) -> None:
    grid, task = case
    found = _price(grid, task, additive=additive, residual=residual, deadline=task.deadline_slot)
    expected, at_least = (
        search_by_enumeration(
            grid,
            replace(task, compute_demand=demand),
            begin=_begin(grid, task),
            deadline=min(task.deadline_slot, _last(grid)),
            additive=additive,
            residual=residual,
        )
        for demand in (task.compute_demand, _rounded_down(task))
    )
    # Three slots of a third each do the work of one: only there may the two differ.
    assert found == pytest.approx(expected, rel=1e-9, abs=1e-9) or (
        at_least < expected and found == pytest.approx(at_least, rel=1e-9, abs=1e-9)
    )


@settings(max_examples=150, deadline=None)
@given(case=grids_with_tasks(most_nodes=4, most_slots=7), additive=st.booleans())
def test_the_earliest_deadline_below_a_ceiling_is_the_first_one(
    case: tuple[Grid, Task], additive: bool
) -> None:
    grid, task = case
    search = lay_out(grid, task, additive=additive)
    found = search.find_earliest_below(first=task.arrival_slot, last=_last(grid), ceiling=task.bid)
    first = next(
        (
            deadline
            for deadline in range(_begin(grid, task), _last(grid) + 1)
            if _price(grid, task, additive=additive, residual=True, deadline=deadline)
            < task.bid * (1 - 1e-9)
        ),
        None,
    )
    if first is None and found is not None:
        # Only a price that equals the bid to the last digits may differ.
        price = _price(grid, task, additive=additive, residual=True, deadline=found)
        assert price == pytest.approx(task.bid, rel=1e-8)
    else:
        assert found == first


@FORMS
@pytest.mark.parametrize("types", [1, 2, 3])
@pytest.mark.parametrize("seed", range(5))
def test_the_search_agrees_with_all_pairs_of_caps(additive: bool, types: int, seed: int) -> None:
    grid, task = medium_case(seed=seed * 10 + types, nodes=4, slots=8, types=types)
    expected = search_by_caps(grid, task, begin=0, deadline=7, additive=additive, residual=True)
    found = _price(grid, task, additive=additive, residual=True, deadline=7)
    assert found == pytest.approx(expected, abs=1e-8)


@FORMS
@pytest.mark.parametrize("types", [1, 2, 3])
@pytest.mark.parametrize("seed", range(3))
def test_the_search_agrees_with_an_integer_program(additive: bool, types: int, seed: int) -> None:
    grid, task = medium_case(seed=seed * 10 + types, nodes=6, slots=12, types=types)
    expected = solve_with_highs(grid, task, begin=0, deadline=11, additive=additive, residual=True)
    found = _price(grid, task, additive=additive, residual=True, deadline=11)
    assert found == pytest.approx(expected, abs=1e-7)


@settings(max_examples=300, deadline=None)
@given(case=grids_with_tasks())
def test_searching_twice_gives_the_same_plan(case: tuple[Grid, Task]) -> None:
    grid, task = case
    plans = [lay_out(grid, task, additive=False).find_plan(task.deadline_slot) for _ in range(2)]
    if plans[0] is None:
        assert plans[1] is None
    else:
        assert plans[1] is not None
        assert plans[0].schedule == plans[1].schedule
        assert plans[0].parts == plans[1].parts
