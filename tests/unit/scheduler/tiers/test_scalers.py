"""Algorithms 1 and 2: corrected, and what goes wrong as printed."""

from __future__ import annotations

import math

import pytest

from scheduler.experiments.tiers.printed_scaler import compute_printed_workers_change
from scheduler.tiers.rules import TierRules, Variant
from scheduler.tiers.serverful_scaler import (
    TierLoad,
    compute_worker_change,
)
from scheduler.tiers.serverless_scaler import compute_next_threshold

#: G_up, R_up, G_dn, R_dn of section 5.1.
GAINS = (10.0, 100.0, 2.0, 30.0)
UNBOUNDED = (-math.inf, math.inf)


@pytest.mark.parametrize(
    ("pressure", "expected"),
    [(1.0, 300.0), (2.0, 310.0), (50.0, 400.0), (math.inf, 400.0), (0.0, 298.0), (0.5, 299.0)],
)
def test_the_threshold_follows_the_pressure_within_its_rates(
    pressure: float, expected: float
) -> None:
    assert compute_next_threshold(300.0, pressure, *GAINS, 60.0, 3600.0) == expected


def test_the_printed_threshold_falls_below_zero_when_idle() -> None:
    threshold = 300.0
    for _ in range(151):
        threshold = compute_next_threshold(threshold, 0.0, *GAINS, *UNBOUNDED)
    assert threshold == -2.0


def test_the_printed_threshold_has_no_ceiling() -> None:
    threshold = 300.0
    for _ in range(1000):
        threshold = compute_next_threshold(threshold, math.inf, *GAINS, *UNBOUNDED)
    assert threshold == 100_300.0


def test_the_clamped_threshold_stays_in_its_bounds() -> None:
    assert compute_next_threshold(61.0, 0.0, *GAINS, 60.0, 3600.0) == 60.0
    assert compute_next_threshold(3590.0, math.inf, *GAINS, 60.0, 3600.0) == 3600.0


@pytest.mark.parametrize("pressure", [0.0, 0.3, 0.999])
def test_the_falling_rate_limit_never_binds(pressure: float) -> None:
    with_limit = compute_next_threshold(300.0, pressure, *GAINS, *UNBOUNDED)
    without = compute_next_threshold(300.0, pressure, 10.0, 100.0, 2.0, math.inf, *UNBOUNDED)
    assert with_limit == without


@pytest.mark.parametrize("workers", [1, 10, 1000])
def test_the_printed_scaler_never_releases_a_pool_without_demand(workers: int) -> None:
    assert compute_printed_workers_change(0.0, workers, 1.0, 1800.0, 0.0) == 0


def test_the_printed_scaler_buys_the_same_demand_again_at_every_tick() -> None:
    # Demand worth 11 workers and 10 of them there: one is missing.
    demand_s, window = 11 * 1800.0, 1800.0
    assert compute_printed_workers_change(demand_s, 10.0, 1.0, window, 1.1) == 11
    assert compute_worker_change(TierLoad(demand_s, 10.0, 1.0, window, 1.1, 0.0, 0.0)) == 1


def test_the_printed_scaler_releases_workers_because_of_demand() -> None:
    # Below full pressure its shortfall, meant for scale-out, is what it releases.
    assert compute_printed_workers_change(9 * 1800.0, 10.0, 1.0, 1800.0, 0.9) == -8


def test_the_corrected_scaler_releases_what_demand_does_not_fill() -> None:
    assert compute_worker_change(TierLoad(3.5 * 1800.0, 10.0, 1.0, 1800.0, 0.35, 0.0, 8.0)) == -6
    assert compute_worker_change(TierLoad(3.5 * 1800.0, 10.0, 1.0, 1800.0, 0.35, 0.0, 2.0)) == -2
    assert compute_worker_change(TierLoad(0.0, 4.0, 1.0, 1800.0, 0.0, 0.0, 4.0)) == -4


def test_waiting_jobs_get_a_worker_each_unless_one_is_coming() -> None:
    assert compute_worker_change(TierLoad(0.0, 5.0, 1.0, 1800.0, 0.0, 3.0, 1.0)) == 2
    assert compute_worker_change(TierLoad(0.0, 5.0, 1.0, 1800.0, 0.0, 3.0, 3.0)) == 0
    assert compute_worker_change(TierLoad(0.0, 5.0, 1.0, 1800.0, 0.0, 3.0, 4.0)) == -1


def test_a_dead_tier_with_demand_adds_what_the_window_needs() -> None:
    assert compute_worker_change(TierLoad(3000.0, 0.0, 1.0, 1800.0, math.inf, 1.0, 0.0)) == 2


def test_only_the_printed_variant_is_unbounded() -> None:
    assert TierRules(variant=Variant.PRINTED).threshold_bounds == UNBOUNDED
    assert TierRules(variant=Variant.IMPROVED).threshold_bounds == (60.0, 3600.0)


def test_a_move_on_must_save_as_much_however_short_its_pause() -> None:
    slow, fast = TierRules(), TierRules(checkpoint_s=24.0, restore_s=60.0)
    assert slow.rehome_delay_usd_per_h == 50.0
    for rules in (slow, fast):
        pause_h = (rules.checkpoint_s + rules.restore_s) / 3600.0
        asked = pause_h * (rules.rehome_delay_usd_per_h - rules.delay_usd_per_h)
        assert asked == pytest.approx(3.5)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"tick_s": 0.0}, "tick_s must be above zero"),
        ({"windows": 0}, "windows must be at least 1"),
        ({"checkpoint_s": -1.0}, "checkpoint_s must not be below zero"),
        ({"threshold_min_s": 9.0, "threshold_max_s": 8.0}, "is above"),
    ],
)
def test_rules_that_cannot_work_are_refused(change: dict[str, float], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        TierRules(**change)
