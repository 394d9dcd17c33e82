"""The task merger against all decisions there are, and what its estimates promise."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace
from itertools import product

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from scheduler.experiments.merging.instance import Instance, Mode
from scheduler.experiments.merging.iterations import compute_converged_iterations
from scheduler.experiments.merging.loss_curve import LossCurve, fit_loss_curve
from scheduler.experiments.merging.printed import merge_as_printed
from scheduler.experiments.merging.program import Columns, choose_by_price, choose_columns
from scheduler.experiments.merging.task_merger import CHOSEN, REPAIRED, RUNNABLE, Form, merge_tasks
from tests.unit.scheduler.experiments.merging.instance_builders import instance

#: Seconds with two digits, so that no two decisions differ by a rounding error only.
SECONDS = st.integers(10, 5000).map(float)
FORMS = st.sampled_from((RUNNABLE, REPAIRED, CHOSEN))


@st.composite
def instances(draw: st.DrawFn, most: int = 5) -> Instance:
    gpus = draw(st.integers(1, 5))
    widths = len([1, 2, 3, 4][: min(gpus, 4)])
    row = st.lists(SECONDS, min_size=widths, max_size=widths).map(lambda s: sorted(s, reverse=True))
    times = draw(st.lists(row, min_size=1, max_size=most))
    count = len(times)
    ends = st.tuples(st.integers(0, count - 1), st.integers(0, count - 1))
    chosen = draw(st.lists(ends.filter(lambda e: e[0] != e[1]), max_size=6) if count > 1
                  else st.just([]))  # fmt: skip
    pairs = [(i, k, draw(st.booleans()), draw(row)) for i, k in chosen]
    return instance(
        gpus,
        times,
        pairs,
        members=np.array(draw(st.lists(st.integers(1, 2), min_size=count, max_size=count))),
        held=np.array(draw(st.lists(st.integers(0, 2), min_size=count, max_size=count))),
        waited_s=np.array(draw(st.lists(SECONDS, min_size=count, max_size=count))),
        wait_s=draw(SECONDS),
        switch_s=draw(st.integers(0, 100).map(float)),
    )


@st.composite
def column_sets(draw: st.DrawFn) -> tuple[Columns, int, int]:
    """Columns of a few units, waiting included, with costs that are whole numbers."""
    units, gpus = draw(st.integers(1, 4)), draw(st.integers(0, 6))
    rows = [(draw(st.integers(1, 50)), 0, unit, -1) for unit in range(units)]
    for _ in range(draw(st.integers(0, 8))):
        unit, partner = draw(st.integers(0, units - 1)), draw(st.integers(-1, units - 1))
        if partner != unit:
            rows.append((draw(st.integers(0, 60)), draw(st.integers(1, 6)), unit, partner))
    cost, need, first, second = (np.array(part) for part in zip(*rows, strict=True))
    return Columns(cost.astype(np.float64), need, first, second), units, gpus


def all_choices(columns: Columns, units: int, gpus: int) -> Iterator[float]:
    """Costs of every choice that serves each unit once within the GPUs."""
    for picked in product((False, True), repeat=len(columns)):
        chosen = np.flatnonzero(picked)
        served = [*columns.first[chosen], *(s for s in columns.second[chosen] if s >= 0)]
        if sorted(served) == list(range(units)) and columns.gpus[chosen].sum() <= gpus:
            yield float(columns.cost[chosen].sum())


@given(column_sets())
def test_the_program_finds_the_best_of_all_choices(case: tuple[Columns, int, int]) -> None:
    columns, units, gpus = case
    found = choose_columns(columns, units=units, gpus=gpus, time_limit_s=10.0, gap=0.0)
    assert found.optimal
    assert found.objective == min(all_choices(columns, units, gpus))
    assert found.objective == columns.cost[found.picked].sum()


@given(column_sets())
def test_choosing_by_price_serves_each_unit_once_within_the_gpus(
    case: tuple[Columns, int, int],
) -> None:
    columns, units, gpus = case
    picked = choose_by_price(columns, units=units, gpus=gpus)
    assert sorted(columns.first[picked]) == list(range(units))
    assert (columns.second[picked] == -1).all()
    assert columns.gpus[picked].sum() <= gpus


@given(instances(), FORMS)
def test_a_decision_serves_each_unit_once_on_numbers_it_may_have(
    case: Instance, form: Form
) -> None:
    found = merge_tasks(case, form)
    units: list[int] = list(found.waiting)
    for one in found.assignments:
        units += [one.unit] if one.partner is None else [one.unit, one.partner]
        column = int(np.searchsorted(case.allocations, one.gpus))
        assert case.allocations[column] == one.gpus
        assert (one.mode is Mode.NORMAL) == (one.partner is None)
        assert np.isfinite(case.times_s[one.unit, column])
    assert sorted(units) == list(range(len(case.members)))
    assert sum(one.gpus for one in found.assignments) <= case.gpus
    assert found.bound <= found.objective + 1e-9


@given(instances())
def test_being_allowed_to_merge_never_costs_anything(case: Instance) -> None:
    exact = replace(REPAIRED, gap=0.0)
    alone = replace(
        case, first=case.first[:0], second=case.second[:0], spatial=case.spatial[:0],
        pair_s=case.pair_s[:0],
    )  # fmt: skip
    assert merge_tasks(case, exact).objective <= merge_tasks(alone, exact).objective + 1e-9


@given(instances(), st.randoms(use_true_random=False))
def test_the_order_of_the_jobs_does_not_matter(case: Instance, random: object) -> None:
    order = np.arange(len(case.members))
    random.shuffle(order)  # type: ignore[attr-defined]
    place = np.argsort(order)
    moved = replace(
        case, times_s=case.times_s[order], members=case.members[order], held=case.held[order],
        waited_s=case.waited_s[order], first=place[case.first], second=place[case.second],
    )  # fmt: skip
    exact = replace(REPAIRED, gap=0.0)
    assert merge_tasks(moved, exact).objective == pytest.approx(merge_tasks(case, exact).objective)


@given(instances())
def test_a_job_that_waits_for_ever_is_served_at_last(case: Instance) -> None:
    # However dear the others are, a job long enough in the queue gets a GPU.
    waited = np.array(case.waited_s)
    waited[0] = 1e9
    found = merge_tasks(replace(case, waited_s=waited), CHOSEN)
    assert 0 not in found.waiting


@settings(max_examples=30)
@given(instances(most=3))
def test_the_printed_program_never_gives_a_job_a_gpu(case: Instance) -> None:
    literal = merge_as_printed(case, literal=True)
    assert literal.feasible == (len(case.members) == 1)
    found = merge_as_printed(case, literal=False)
    assert (found.assignments, found.objective) == ((), 0.0)


@st.composite
def curves(draw: st.DrawFn) -> LossCurve:
    return LossCurve(
        square=draw(st.floats(0, 0.01)),
        linear=draw(st.floats(1e-3, 0.1)),
        constant=draw(st.floats(0.1, 2.0)),
        floor=draw(st.floats(0.0, 1.0)),
    )


@given(curves(), st.integers(1, 40))
def test_convergence_is_the_first_iteration_after_the_last_large_drop(
    curve: LossCurve, unit: int
) -> None:
    found = compute_converged_iterations(curve, drop=0.01, unit=float(unit))
    k = np.arange(1.0, 4000.0)
    drops = curve.at(k) - curve.at(k + unit)
    large = np.flatnonzero(drops > 0.01)
    assert found == (int(large[-1]) + 2 if len(large) else 1)


@given(curves(), st.floats(0.0, 5.0))
def test_a_gain_never_adds_iterations_and_saves_at_most_its_root(
    curve: LossCurve, gain: float
) -> None:
    alone = compute_converged_iterations(curve, drop=1e-3)
    gained = compute_converged_iterations(curve.scaled(gain), drop=1e-3)
    assert gained <= alone
    # The root of 1 + G holds exactly for k far above constant / linear.
    lag = curve.constant / curve.linear
    assert gained + lag + 1 >= (alone + lag - 1) / (1.0 + gain) ** 0.5 - 1


@settings(max_examples=25)
@given(curves(), st.lists(st.floats(-0.01, 0.01), min_size=30, max_size=30))
def test_a_fit_is_no_worse_than_the_curve_that_made_noisy_losses(
    curve: LossCurve, noise: Sequence[float]
) -> None:
    k = np.arange(1.0, 31.0)
    losses = curve.at(k) * (1.0 + np.array(noise))
    found = fit_loss_curve(k, losses)
    error = float(((found.at(k) - losses) ** 2).sum())
    made = float(((curve.at(k) - losses) ** 2).sum())
    assert error <= made * 1.1 + 1e-4
    assert min(found.square, found.linear, found.constant, found.floor) >= 0
