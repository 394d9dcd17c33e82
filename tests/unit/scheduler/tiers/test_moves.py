"""Break-even, hazards, allowance, backlog and deadlines, by hand."""

from __future__ import annotations

import math

import numpy as np
import pytest

from scheduler.experiments.tiers.deadlines import compute_soft_deadlines_s
from scheduler.experiments.tiers.edf import compute_backlog_key
from scheduler.tiers.allowance import compute_allowance, is_stay_paid
from scheduler.tiers.break_even import (
    compute_break_even_s,
    compute_move_cost,
    estimate_remaining_s,
    is_move_due,
)
from scheduler.tiers.demotion import (
    Budget,
    DemotionDecision,
    PossibleMove,
    PossibleRehoming,
    PossibleStart,
    compute_move_saving,
    compute_renewal_saving,
    decide_demotion,
    decide_start,
    repays_rent,
)
from scheduler.tiers.hazard import (
    AGE_BINS,
    LENGTH_CLASSES,
    PRIOR_EXPOSURE_S,
    compute_hazard_rate,
    find_age_bin,
    find_length_class,
    observe,
)
from scheduler.tiers.holding import is_worth_holding, update_mean
from scheduler.tiers.rules import TierRules


@pytest.mark.parametrize(
    ("boot_s", "price", "expected_s"), [(36.04, 0.74, 202.0), (255.59, 1.29, 883.0)]
)
def test_break_even_on_the_marketplace_and_on_the_conventional_cloud(
    boot_s: float, price: float, expected_s: float
) -> None:
    cost = compute_move_cost(30.0, 250.0, boot_s, 280.0, 2.10, price, 0.0)
    assert compute_break_even_s(cost, 2.10, price) == pytest.approx(expected_s, abs=1.0)


def test_a_price_of_delay_keeps_longer_jobs_on_serverless() -> None:
    cost = compute_move_cost(30.0, 250.0, 0.0, 280.0, 2.0, 1.0, 5.0)
    assert cost == 30 * 2.0 + 250 * 1.0 + 280 * 5.0
    assert compute_break_even_s(cost, 2.0, 1.0) == 1710.0


@pytest.mark.parametrize("price", [2.10, 3.0])
def test_no_job_moves_to_a_worker_as_dear_as_serverless(price: float) -> None:
    assert compute_break_even_s(100.0, 2.10, price) == math.inf
    assert not is_move_due(1e12, 0.0, compute_break_even_s(100.0, 2.10, price))


def test_only_what_is_left_after_the_boot_can_repay_the_move() -> None:
    assert is_move_due(301.0, 100.0, 200.0)
    assert not is_move_due(300.0, 100.0, 200.0)


def test_expected_remaining_time_is_the_whole_rest_without_deaths() -> None:
    assert estimate_remaining_s(1234.5, 0.0) == 1234.5


def test_expected_remaining_time_is_the_mean_life_of_jobs_that_die_fast() -> None:
    assert estimate_remaining_s(1e9, 0.01) == pytest.approx(100.0)
    assert estimate_remaining_s(100.0, 0.01) == pytest.approx(100.0 * (1 - math.exp(-1)))


@pytest.mark.parametrize(
    ("age", "column"),
    [(0.0, 0), (29.9, 0), (30.0, 1), (60.0, 2), (119.0, 2), (120.0, 3), (1e9, 13)],
)
def test_ages_fall_in_doubling_bins(age: float, column: int) -> None:
    assert find_age_bin(age) == column


def test_exposure_is_split_over_the_ages_lived_through() -> None:
    deaths, exposure = np.zeros((LENGTH_CLASSES, AGE_BINS)), np.zeros((LENGTH_CLASSES, AGE_BINS))
    observe(deaths, exposure, 2, 10.0, 100.0, False)
    assert exposure[2, :4].tolist() == [20.0, 30.0, 40.0, 0.0]
    observe(deaths, exposure, 2, 100.0, 150.0, True)
    assert exposure[2, :4].tolist() == [20.0, 30.0, 60.0, 30.0]
    assert deaths[2].tolist() == [0, 0, 0, 1] + [0] * (AGE_BINS - 4)
    assert exposure.sum() == 140.0
    assert compute_hazard_rate(deaths, exposure, 2, 3) == 1.0 / (30.0 + PRIOR_EXPOSURE_S)
    assert compute_hazard_rate(deaths, exposure, 1, 3) == 0.0


def test_the_last_age_bin_is_open() -> None:
    deaths, exposure = np.zeros((LENGTH_CLASSES, AGE_BINS)), np.zeros((LENGTH_CLASSES, AGE_BINS))
    observe(deaths, exposure, 3, 1e6, 3e6, True)
    assert exposure[3, AGE_BINS - 1] == 2e6
    assert deaths[3, AGE_BINS - 1] == 1


def test_length_classes_part_minutes_from_hours_and_days() -> None:
    assert [find_length_class(s) for s in (1.0, 600.0, 3600.0, 21600.0)] == [0, 1, 2, 3]


def test_a_job_brings_what_a_threshold_would_spend_on_it() -> None:
    assert compute_allowance(200.0, 300.0, 1.5, 400.0) == 300.0
    assert compute_allowance(300.0, 300.0, 1.5, 400.0) == 450.0
    assert compute_allowance(1e6, 300.0, 1.5, 400.0) == 850.0


def test_one_job_takes_at_most_its_share_of_the_surplus() -> None:
    assert is_stay_paid(1000.0, 100.0, 0.1)
    assert not is_stay_paid(1000.0, 100.1, 0.1)
    assert not is_stay_paid(-5.0, 1.0, 0.1)


def test_an_overloaded_backlog_goes_by_what_is_left() -> None:
    assert compute_backlog_key(100.0, 7.0, False) == 100.0
    assert compute_backlog_key(100.0, 7.0, True) == 7.0


def test_deadlines_are_given_or_inferred_from_the_predicted_run_time() -> None:
    arrived, predicted = np.array([100.0, 100.0]), np.array([60.0, 60.0])
    factors = np.array([5.0, 2.0])
    inferred = compute_soft_deadlines_s(arrived_s=arrived, predicted_s=predicted, factors=factors)
    assert inferred.tolist() == [400.0, 220.0]

    def given(due_s: float) -> list[float]:
        return compute_soft_deadlines_s(
            arrived_s=arrived,
            predicted_s=predicted,
            factors=factors,
            given_s=np.array([due_s, math.nan]),
        ).tolist()

    assert given(130.0) == [130.0, 220.0]
    assert given(100.0) == [100.0, 220.0]
    with pytest.raises(ValueError, match=r"deadline 99\.0 lies before the arrival 100\.0"):
        given(99.0)
    with pytest.raises(ValueError, match="above zero"):
        compute_soft_deadlines_s(
            arrived_s=arrived, predicted_s=np.array([60.0, 0.0]), factors=factors
        )


#: Serverless at $2.10, a worker at $0.60, a move of 30 s and 250 s: F* is 142 s, and 1076 s
#: with the delay at $5 an hour.
PRICES = (2.10, 0.60)
COST = compute_move_cost(30.0, 250.0, 0.0, 0.0, *PRICES, 0.0)
DELAY = 280.0 * 5.0


def leaves(
    expected_s: float, *, surplus: float, delay: float = DELAY, planned: float = 0.0
) -> DemotionDecision:
    move = PossibleMove(expected_s, 100.0, 0.0, *PRICES, COST, delay, 2.0)
    return decide_demotion(move, Budget(planned=planned, surplus=surplus), 0.1)


def test_a_job_whose_rest_does_not_repay_a_move_stays_however_poor_the_allowance() -> None:
    assert COST / 1.5 == 142.0
    assert leaves(142.0, surplus=-1e9) == (False, 242.0 * 1.5 * 2, -1e9 - 242.0 * 1.5 * 2)
    assert leaves(142.1, surplus=-1e9)[0]


def test_the_surplus_pays_for_a_stay_until_the_rest_repays_the_delay_too() -> None:
    assert pytest.approx(1075.3, abs=0.1) == (COST + DELAY) / 1.5
    rich, poor = 1e6, 0.0
    assert not leaves(1075.0, surplus=rich)[0]
    assert leaves(1075.0, surplus=poor)[0]
    assert leaves(1076.0, surplus=rich)[0]


def test_the_books_hold_a_job_to_the_plan_it_was_given() -> None:
    stays, moves_for = (100.0 + 1000.0) * 1.5 * 2, (100.0 * 1.5 + COST) * 2
    assert leaves(1000.0, surplus=0.0) == (True, moves_for, -moves_for)
    left, planned, surplus = leaves(1000.0, surplus=5e4, planned=moves_for)
    assert (left, planned) == (False, stays)
    assert surplus == pytest.approx(5e4 + moves_for - stays)


def test_a_full_tier_is_left_alone_while_the_surplus_pays() -> None:
    assert not leaves(1e5, surplus=1e9, delay=math.inf)[0]
    assert leaves(1e5, surplus=0.0, delay=math.inf)[0]


def test_a_job_moves_on_only_for_what_is_worth_more_than_the_wait_for_a_better_offer() -> None:
    price = TierRules().rehome_delay_usd_per_h
    assert price == 5.0 + 45.0

    def saves(expected_s: float, *, due_s: float = 1e9) -> float:
        return compute_move_saving(
            PossibleRehoming(expected_s, expected_s, due_s, 36.04, 30.0, 250.0, 1.29, 0.40, price)
        )

    cost = compute_move_cost(30.0, 250.0, 36.04, 280.0, 1.29, 0.40, price)
    worth_s = cost / (1.29 - 0.40) + 36.04
    assert saves(worth_s - 0.1) == -1.0
    # Beyond its cost it just saves the pause, which the owner bears.
    assert saves(worth_s + 1e-6) == pytest.approx(280.0 * price, rel=1e-6)
    assert saves(20_000.0) == pytest.approx((1.29 - 0.40) * (20_000.0 - 36.04) - cost + 280 * price)
    # It would be in time without the pause, and late with it.
    assert saves(20_000.0, due_s=20_279.0) == -1.0
    assert saves(20_000.0, due_s=20_280.0) > 0
    # Late anyway.
    assert saves(20_000.0, due_s=19_999.0) > 0


def test_a_rent_is_renewed_only_if_the_cheaper_one_repays_its_boot() -> None:
    worth_s = (36.04 * 0.40 + 36.04 * 50.0) / (1.29 - 0.40)
    assert compute_renewal_saving(worth_s, 36.04, 1.29, 0.40, 50.0) == -1.0
    saved = compute_renewal_saving(worth_s + 1.0, 36.04, 1.29, 0.40, 50.0)
    assert saved == pytest.approx((1.29 - 0.40) * (worth_s + 1.0) - 0.40 * 36.04)
    assert compute_renewal_saving(1e9, 36.04, 0.40, 0.40, 50.0) == -1.0


def start(**changes: float) -> PossibleStart:
    """A job of an hour, a worker at half of serverless that boots for 40 s, moves of 280 s."""
    values: dict[str, float] = {
        "expected_s": 3600.0,
        "boot_s": 40.0,
        "serverless_boot_s": 4.0,
        "serverless_price": 2.0,
        "worker_price": 1.0,
        "checkpoint_s": 30.0,
        "restore_s": 250.0,
        "delay_price": 5.0,
        "waits": False,
        "gpus": 1.0,
    }
    return PossibleStart(**(values | changes))


def test_a_job_begins_on_a_worker_if_its_run_repays_the_boot() -> None:
    begins = decide_start(start(), Budget(0.0, 0.0), 0.1)
    # Only the boot's rent is planned for it.
    assert begins == DemotionDecision(True, 40.0, -40.0)
    assert not decide_start(start(expected_s=40.0), Budget(0.0, 0.0), 0.1).leaves
    assert decide_start(start(expected_s=40.1), Budget(0.0, 0.0), 0.1).leaves


def test_a_rich_allowance_lets_a_job_begin_on_serverless_whose_boot_delays_it() -> None:
    # 40 s of rent and 36 s of delay at $5: 220 s.
    assert not decide_start(start(expected_s=220.0), Budget(0.0, 1e6), 0.1).leaves
    assert decide_start(start(expected_s=220.1), Budget(0.0, 1e6), 0.1).leaves


def test_a_short_move_is_better_than_a_long_boot_and_an_idle_worker_than_both() -> None:
    quick = {"checkpoint_s": 1.0, "restore_s": 1.0}
    assert not decide_start(start(**quick), Budget(0.0, 0.0), 0.1).leaves
    assert decide_start(start(boot_s=0.0, **quick), Budget(0.0, 0.0), 0.1).leaves


def test_a_job_that_finds_no_room_waits_only_if_no_surplus_pays_for_serverless() -> None:
    assert decide_start(start(waits=True), Budget(0.0, 0.0), 0.1).leaves
    assert not decide_start(start(waits=True), Budget(0.0, 1e6), 0.1).leaves
    # What would not repay a move never waits.
    assert not decide_start(start(waits=True, expected_s=300.0), Budget(0.0, 0.0), 0.1).leaves


def test_a_job_repays_a_rent_that_costs_less_than_serverless_with_the_wait_for_it() -> None:
    assert not repays_rent(240.0, 40.0, 2.0, 1.0, 5.0)
    assert repays_rent(240.1, 40.0, 2.0, 1.0, 5.0)
    assert not repays_rent(1e12, 40.0, 1.0, 1.0, 5.0)


def test_an_idle_worker_is_held_until_its_rent_is_what_the_next_job_saves_by_it() -> None:
    # $0.4 against $0.6 for an hour of use, and 40 s of boot at $0.6 and $5: 944.
    assert is_worth_holding(0.4, 0.6, 40.0, 5.0, 3600.0, 2359.9)
    assert not is_worth_holding(0.4, 0.6, 40.0, 5.0, 3600.0, 2360.1)
    # One that is dearer than what can be rented is not held for its price.
    assert not is_worth_holding(0.6, 0.4, 40.0, 5.0, 3600.0, 0.0)


def test_a_running_mean_counts_the_first_values_alike_and_forgets_old_ones() -> None:
    mean = 0.0
    for count, value in enumerate((3.0, 6.0, 9.0)):
        mean = update_mean(mean, value, count)
    assert mean == pytest.approx(6.0)
    assert update_mean(6.0, 26.0, 10_000) == pytest.approx(7.0)
