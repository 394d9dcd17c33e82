"""Break-even, hazards, allowance, backlog and deadlines, by hand."""

from __future__ import annotations

import math

import numpy as np
import pytest

from scheduler.tiers.allowance import allowance, covers
from scheduler.tiers.break_even import break_even_s, expected_remaining_s, move_cost, moves
from scheduler.tiers.deadlines import soft_deadline_s
from scheduler.tiers.edf import Backlog, backlog_key
from scheduler.tiers.hazard import (
    AGE_BINS,
    LENGTH_CLASSES,
    PRIOR_EXPOSURE_S,
    age_bin,
    hazard_rate,
    length_class,
    observe,
)


@pytest.mark.parametrize(
    ("boot_s", "price", "expected_s"), [(36.04, 0.74, 202.0), (255.59, 1.29, 883.0)]
)
def test_break_even_on_the_marketplace_and_on_the_conventional_cloud(
    boot_s: float, price: float, expected_s: float
) -> None:
    cost = move_cost(30.0, 250.0, boot_s, 280.0, 2.10, price, 0.0)
    assert break_even_s(cost, 2.10, price) == pytest.approx(expected_s, abs=1.0)


def test_a_price_of_delay_keeps_longer_jobs_on_serverless() -> None:
    cost = move_cost(30.0, 250.0, 0.0, 280.0, 2.0, 1.0, 5.0)
    assert cost == 30 * 2.0 + 250 * 1.0 + 280 * 5.0
    assert break_even_s(cost, 2.0, 1.0) == 1710.0


@pytest.mark.parametrize("price", [2.10, 3.0])
def test_no_job_moves_to_a_worker_as_dear_as_serverless(price: float) -> None:
    assert break_even_s(100.0, 2.10, price) == math.inf
    assert not moves(1e12, 0.0, break_even_s(100.0, 2.10, price))


def test_only_what_is_left_after_the_boot_can_repay_the_move() -> None:
    assert moves(301.0, 100.0, 200.0)
    assert not moves(300.0, 100.0, 200.0)


def test_expected_remaining_time_is_the_whole_rest_without_deaths() -> None:
    assert expected_remaining_s(1234.5, 0.0) == 1234.5


def test_expected_remaining_time_is_the_mean_life_of_jobs_that_die_fast() -> None:
    assert expected_remaining_s(1e9, 0.01) == pytest.approx(100.0)
    assert expected_remaining_s(100.0, 0.01) == pytest.approx(100.0 * (1 - math.exp(-1)))


@pytest.mark.parametrize(
    ("age", "column"),
    [(0.0, 0), (29.9, 0), (30.0, 1), (60.0, 2), (119.0, 2), (120.0, 3), (1e9, 13)],
)
def test_ages_fall_in_doubling_bins(age: float, column: int) -> None:
    assert age_bin(age) == column


def test_exposure_is_split_over_the_ages_lived_through() -> None:
    deaths, exposure = np.zeros((LENGTH_CLASSES, AGE_BINS)), np.zeros((LENGTH_CLASSES, AGE_BINS))
    observe(deaths, exposure, 2, 10.0, 100.0, False)
    assert exposure[2, :4].tolist() == [20.0, 30.0, 40.0, 0.0]
    observe(deaths, exposure, 2, 100.0, 150.0, True)
    assert exposure[2, :4].tolist() == [20.0, 30.0, 60.0, 30.0]
    assert deaths[2].tolist() == [0, 0, 0, 1] + [0] * (AGE_BINS - 4)
    assert exposure.sum() == 140.0
    assert hazard_rate(deaths, exposure, 2, 3) == 1.0 / (30.0 + PRIOR_EXPOSURE_S)
    assert hazard_rate(deaths, exposure, 1, 3) == 0.0


def test_the_last_age_bin_is_open() -> None:
    deaths, exposure = np.zeros((LENGTH_CLASSES, AGE_BINS)), np.zeros((LENGTH_CLASSES, AGE_BINS))
    observe(deaths, exposure, 3, 1e6, 3e6, True)
    assert exposure[3, AGE_BINS - 1] == 2e6
    assert deaths[3, AGE_BINS - 1] == 1


def test_length_classes_part_minutes_from_hours_and_days() -> None:
    assert [length_class(s) for s in (1.0, 600.0, 3600.0, 21600.0)] == [0, 1, 2, 3]


def test_a_job_brings_what_a_threshold_would_spend_on_it() -> None:
    assert allowance(200.0, 300.0, 1.5, 400.0) == 300.0
    assert allowance(300.0, 300.0, 1.5, 400.0) == 450.0
    assert allowance(1e6, 300.0, 1.5, 400.0) == 850.0


def test_one_job_takes_at_most_its_share_of_the_surplus() -> None:
    assert covers(1000.0, 100.0, 0.1)
    assert not covers(1000.0, 100.1, 0.1)
    assert not covers(-5.0, 1.0, 0.1)


def test_the_backlog_gives_the_earliest_deadline_and_ties_in_order_of_entry() -> None:
    backlog = Backlog()
    for job, due in (("late", 30.0), ("first", 10.0), ("second", 10.0), ("middle", 20.0)):
        backlog.push(job_id=job, deadline_s=due)
    assert [backlog.pop() for _ in range(4)] == ["first", "second", "middle", "late"]
    assert backlog.head() is None
    with pytest.raises(IndexError, match="empty"):
        backlog.pop()


def test_the_backlog_forgets_discarded_jobs_and_moves_those_pushed_again() -> None:
    backlog = Backlog()
    backlog.push(job_id="a", deadline_s=1.0)
    backlog.push(job_id="b", deadline_s=2.0)
    backlog.push(job_id="a", deadline_s=3.0)
    backlog.discard("absent")
    assert (len(backlog), "a" in backlog) == (2, True)
    assert [backlog.pop(), backlog.pop()] == ["b", "a"]
    backlog.push(job_id="c", deadline_s=1.0)
    backlog.discard("c")
    assert backlog.head() is None


def test_an_overloaded_backlog_goes_by_what_is_left() -> None:
    assert backlog_key(100.0, 7.0, False) == 100.0
    assert backlog_key(100.0, 7.0, True) == 7.0


def test_deadlines_are_given_or_inferred_from_the_predicted_run_time() -> None:
    assert soft_deadline_s(arrived_s=100.0, predicted_s=60.0) == 400.0
    assert soft_deadline_s(arrived_s=100.0, predicted_s=60.0, given_s=130.0) == 130.0
    with pytest.raises(ValueError, match="before the arrival"):
        soft_deadline_s(arrived_s=100.0, predicted_s=60.0, given_s=99.0)
    with pytest.raises(ValueError, match="above zero"):
        soft_deadline_s(arrived_s=100.0, predicted_s=0.0)
