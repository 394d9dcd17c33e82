"""Demand bound function and pressure: hand-computed cases and the printed errors."""

from __future__ import annotations

import math

import numpy as np
import pytest
from numpy.testing import assert_allclose

from scheduler.experiments.tiers.printed_demand import demand_printed
from scheduler.tiers.demand import (
    compute_pressure,
    list_window_lengths,
    measure_demand,
)


def one(value: float) -> np.ndarray:
    return np.array([value])


def test_windows_are_multiples_of_the_tick_from_now() -> None:
    assert list_window_lengths(step_s=60.0, count=3).tolist() == [60.0, 120.0, 180.0]


def test_printed_demand_cannot_see_a_long_job_due_after_the_window() -> None:
    # Ten hours of work due in fifty hours, seen over 30 minutes.
    windows = list_window_lengths(step_s=60.0, count=30)
    seen = demand_printed(
        remaining_s=one(36000.0), due_in_s=one(180000.0), gpus=one(1.0), windows_s=windows
    )
    assert seen.tolist() == [0.0] * 30


def test_printed_demand_cannot_see_a_job_that_must_start_now() -> None:
    windows = list_window_lengths(step_s=60.0, count=30)
    due_in = 36000.0
    printed = demand_printed(
        remaining_s=one(36000.0), due_in_s=one(due_in), gpus=one(1.0), windows_s=windows
    )
    corrected = measure_demand(
        remaining_s=one(36000.0), slack_s=one(0.0), gpus=one(1.0), windows_s=windows
    )
    assert printed.sum() == 0.0
    assert corrected.tolist() == windows.tolist()


def test_printed_demand_counts_overdue_work_whole_in_every_window() -> None:
    windows = np.array([60.0, 1800.0])
    seen = demand_printed(
        remaining_s=one(5000.0), due_in_s=one(-10.0), gpus=one(2.0), windows_s=windows
    )
    assert seen.tolist() == [10000.0, 10000.0]


def test_demand_is_a_ramp_from_the_latest_start_to_the_deadline() -> None:
    windows = np.array([60.0, 120.0, 180.0, 240.0])
    seen = measure_demand(
        remaining_s=one(100.0), slack_s=one(90.0), gpus=one(3.0), windows_s=windows
    )
    assert seen.tolist() == [0.0, 90.0, 270.0, 300.0]


def test_demand_of_an_overdue_job_is_what_one_window_can_hold() -> None:
    seen = measure_demand(
        remaining_s=one(100.0),
        slack_s=one(-500.0),
        gpus=one(1.0),
        windows_s=np.array([60.0, 120.0]),
    )
    assert seen.tolist() == [60.0, 100.0]


def test_prefix_sums_answer_what_one_ramp_per_job_answers() -> None:
    rng = np.random.default_rng(3)
    windows = list_window_lengths(step_s=60.0, count=30)
    remaining, slack = rng.uniform(1, 4000, 200), rng.uniform(-1000, 3000, 200)
    gpus = rng.integers(1, 9, 200).astype(float)
    slow = [
        sum(
            g * max(0.0, min(r, t - max(0.0, s)))
            for r, s, g in zip(remaining, slack, gpus, strict=True)
        )
        for t in windows
    ]
    fast = measure_demand(remaining_s=remaining, slack_s=slack, gpus=gpus, windows_s=windows)
    assert_allclose(fast, slow, rtol=1e-9, atol=1e-6)


@pytest.mark.parametrize(
    ("demands", "capacity", "expected"),
    [
        ([0.0, 0.0], 0.0, 0.0),
        ([0.0, 0.0], 4.0, 0.0),
        ([30.0, 180.0], 1.0, 1.5),
        ([60.0, 60.0], 2.0, 0.5),
        ([0.0, 1.0], 0.0, math.inf),
    ],
)
def test_pressure_is_the_worst_window(
    demands: list[float], capacity: float, expected: float
) -> None:
    assert compute_pressure(np.array(demands), np.array([60.0, 120.0]), capacity) == expected


def test_the_papers_two_job_example_doubles_the_pressure() -> None:
    # Figure 5: one worker, one job that fills the window, then a second one.
    windows = np.array([1800.0])
    first = measure_demand(
        remaining_s=one(1800.0), slack_s=one(0.0), gpus=one(1.0), windows_s=windows
    )
    both = measure_demand(
        remaining_s=np.array([1800.0, 1800.0]),
        slack_s=np.zeros(2),
        gpus=np.ones(2),
        windows_s=windows,
    )
    assert compute_pressure(first, windows, 1.0) == 1.0
    assert compute_pressure(both, windows, 1.0) == 2.0
