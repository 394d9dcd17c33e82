"""Gains, scores, loss curves, iterations and times: equations 1 to 5 by hand."""

from __future__ import annotations

import math

import numpy as np
import pytest

from scheduler.experiments.merging.iterations import (
    compute_converged_iterations,
    compute_printed_iterations,
    compute_spatial_iterations,
)
from scheduler.experiments.merging.loss_curve import LossCurve, fit_loss_curve
from scheduler.experiments.merging.time_table import TimeTable
from scheduler.experiments.merging.transferability import (
    Accuracy,
    assess_predictions,
    fit_score_line,
    score_by_gradients,
    score_by_probe,
)

#: 1 / (0.01 k + 0.5) + 0.1
PLAIN = LossCurve(square=0.0, linear=0.01, constant=0.5, floor=0.1)


def test_the_gradient_score_is_a_cosine_and_the_same_both_ways() -> None:
    one, other = np.array([1.0, 2.0, 2.0]), np.array([2.0, 2.0, 1.0])
    assert score_by_gradients(one, other) == pytest.approx(8 / 9)
    assert score_by_gradients(other, one) == score_by_gradients(one, other)


def test_gradients_of_zero_have_no_score() -> None:
    # What LoRA's A gives before its first step.
    with pytest.raises(ValueError, match="no direction"):
        score_by_gradients(np.zeros(3), np.ones(3))
    with pytest.raises(ValueError, match="differ in size"):
        score_by_gradients(np.ones(2), np.ones(3))


def test_a_probe_scores_how_much_lower_the_donors_loss_is() -> None:
    assert score_by_probe(2.5, 2.0) == 0.5
    assert score_by_probe(2.0, 2.5) == -0.5


def test_a_line_goes_through_the_measured_pairs_at_least_squares() -> None:
    line = fit_score_line([0.0, 1.0, 2.0], [1.0, 0.0, 2.0])
    assert (line.intercept, line.slope) == pytest.approx((0.5, 0.5))
    assert line.predict(np.array([4.0])).tolist() == [2.5]


def test_equal_scores_make_a_flat_line_at_the_mean() -> None:
    line = fit_score_line([0.3, 0.3], [1.0, 2.0])
    assert (line.intercept, line.slope) == (1.5, 0.0)


@pytest.mark.parametrize(
    ("scores", "measured", "message"),
    [([], [], "at least one"), ([1.0], [1.0, 2.0], "as many"), ([math.nan], [1.0], "finite")],
)
def test_a_line_refuses_what_it_cannot_be_fitted_to(
    scores: list[float], measured: list[float], message: str
) -> None:
    with pytest.raises(ValueError, match=message):
        fit_score_line(scores, measured)


def test_the_majority_class_stands_beside_every_accuracy() -> None:
    # Always "positive" is right 9 times of 10, and so are these uncorrelated guesses.
    measured = np.array([0.1] * 9 + [-0.1])
    found = assess_predictions(np.full(10, 0.2), measured)
    assert (found.sign, found.majority) == (0.9, 0.9)
    assert math.isnan(found.correlation)
    better = assess_predictions(measured * 2.0, measured)
    assert better == Accuracy(correlation=pytest.approx(1.0), sign=1.0, majority=0.9)


@pytest.mark.parametrize(
    "curve",
    [PLAIN, LossCurve(1e-4, 0.003, 0.7, 0.25), LossCurve(0.002, 0.0, 1.0, 0.0)],
)
def test_a_fit_finds_the_curve_that_made_the_losses(curve: LossCurve) -> None:
    k = np.arange(1.0, 61.0)
    found = fit_loss_curve(k, curve.at(k))
    later = np.arange(1.0, 601.0)
    assert np.abs(found.at(later) - curve.at(later)).max() < 0.01
    assert min(found.square, found.linear, found.constant, found.floor) >= 0


def test_a_fit_of_rising_losses_is_flat() -> None:
    found = fit_loss_curve(np.arange(1.0, 6.0), np.array([1.0, 1.1, 1.2, 1.3, 1.4]))
    assert (found.square, found.linear) == (0.0, 0.0)


@pytest.mark.parametrize(
    ("iterations", "losses", "message"),
    [
        ([1, 2, 3], [3, 2, 1], "four losses"),
        ([1, 2, 3, 4], [3, 2, 1, 0], "above zero"),
        ([0, 1, 2, 3], [4, 3, 2, 1], "from 1 on"),
        ([1, 2, 2, 3], [4, 3, 2, 1], "increasing"),
        ([1, 2, 3, 4], [4, 3, math.nan, 1], "finite"),
    ],
)
def test_a_fit_refuses_losses_that_make_no_curve(
    iterations: list[float], losses: list[float], message: str
) -> None:
    with pytest.raises(ValueError, match=message):
        fit_loss_curve(np.array(iterations, np.float64), np.array(losses, np.float64))


def test_equation_two_read_literally_stops_at_the_first_iteration() -> None:
    assert compute_printed_iterations(PLAIN) == 1
    # A curve that begins flat: 1 / (0.002 k^2 + 1) drops by 0.001 from k = 1 on.
    assert compute_printed_iterations(LossCurve(1e-4, 0.0, 1.0, 0.0)) == 5


def test_training_has_converged_when_every_further_drop_is_small() -> None:
    # 1 / (0.01 k + 0.5) drops by 0.01 / ((0.01 k + 0.5)(0.01 k + 0.51)): 0.001 at k = 265.7.
    assert compute_converged_iterations(PLAIN) == 266
    # Over 50 iterations the drop must be fifty times smaller per iteration.
    assert compute_converged_iterations(PLAIN, unit=50.0) == 2162


def test_a_flat_start_is_not_convergence() -> None:
    # The first drops are below 0.001, later ones above: 5 is the first above.
    curve = LossCurve(1e-4, 0.0, 1.0, 0.0)
    drops = curve.at(np.arange(1.0, 1000.0)) - curve.at(np.arange(2.0, 1001.0))
    assert drops[0] < 0.001 < drops.max()
    assert compute_converged_iterations(curve) == int(np.flatnonzero(drops > 0.001)[-1]) + 2


def test_a_gain_shrinks_the_iterations_by_its_root_only() -> None:
    alone = compute_converged_iterations(PLAIN)
    gained = compute_converged_iterations(PLAIN.scaled(1.0))
    # (k + 50) goes with 1 / sqrt(2), so doubling the performance saves less than a third.
    assert (alone, gained) == (266, 174)
    assert (gained + 50.5) / (alone + 50.5) == pytest.approx(2**-0.5, abs=0.005)
    with pytest.raises(ValueError, match="above -1"):
        PLAIN.scaled(-1.0)


def test_a_spatial_pair_runs_the_epochs_of_the_slower_task_over_the_rows_of_both() -> None:
    # 400 x 10 / 1000 = 4 epochs and 300 x 20 / 2000 = 3; an epoch of both is 3000 / 30.
    found = compute_spatial_iterations(
        first=400.0,
        second=300.0,
        first_batch=10,
        second_batch=20,
        first_rows=1000,
        second_rows=2000,
    )
    assert found == 400.0


def test_execution_time_is_iterations_times_the_measured_second() -> None:
    table = TimeTable({"tiny": {1: 0.8, 4: 0.2, 8: 0.1}})
    assert table.execution_s(100.0, 4, "tiny") == pytest.approx(20.0)
    # Halfway between 1 and 4 in logarithms.
    assert table.iteration_s(2, "tiny") == pytest.approx(0.4)


def test_nothing_is_guessed_outside_of_what_was_measured() -> None:
    table = TimeTable({"tiny": {2: 0.4, 8: 0.1}})
    for gpus in (1, 12):
        with pytest.raises(ValueError, match="only on 2, 8; measure it there"):
            table.iteration_s(gpus, "tiny")
    with pytest.raises(KeyError):
        table.iteration_s(2, "large")
