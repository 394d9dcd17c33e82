"""Lookups: what they find, what they score, and poisoned prompts."""

from __future__ import annotations

import math

import numpy as np
import pytest

from scheduler.experiments.prompts.bank import build_bank
from scheduler.experiments.prompts.clustering import Floats, Ints
from scheduler.experiments.prompts.lookup import (
    HalvingRules,
    look_up_all,
    look_up_by_halving,
    look_up_two_layers,
)


class Table:
    """Scores from a table of losses, and remembers what was asked."""

    def __init__(self, losses: Floats) -> None:
        self.losses = losses
        self.asked: list[tuple[int, int]] = []

    def __call__(self, candidates: Ints, rows: range) -> Floats:
        self.asked += [(int(k), row) for k in candidates for row in rows]
        return self.losses[np.ix_(candidates, rows)]


def draw_losses(count: int, *, noise: float, seed: int = 0) -> Floats:
    """Candidates whose true losses lie apart, and rows that blur them."""
    rng = np.random.default_rng(seed)
    return rng.uniform(1.0, 3.0, (count, 1)) + noise * rng.standard_normal((count, 16))


def test_brute_force_finds_the_least_mean_loss() -> None:
    table = Table(draw_losses(50, noise=1.0))
    found = look_up_all(np.arange(50), table)
    means = table.losses.mean(axis=1)
    assert found.candidate == int(np.argmin(means))
    assert found.score == pytest.approx(means.min())
    assert found.rows_scored == len(table.asked) == 50 * 16


def test_two_layers_score_the_medoids_and_then_one_cluster() -> None:
    degrees = np.radians([-8, 0, 9, 82, 90, 99])
    features = np.stack([np.cos(degrees), np.sin(degrees)], axis=1)
    bank = build_bank([str(k) for k in range(6)], features, clusters=2, seed=3)
    # The best of all is in the cluster whose medoid is worse, so it is not found.
    table = Table(np.repeat([[0.1], [3.0], [3.0], [2.5], [2.0], [1.5]], 16, axis=1))
    found = look_up_two_layers(bank, table)
    assert (found.candidate, found.score) == (5, pytest.approx(1.5))
    assert found.rows_scored == len(table.asked) == (2 + 2) * 16
    assert len(set(table.asked)) == len(table.asked)


def test_a_medoid_better_than_its_cluster_is_what_two_layers_find() -> None:
    degrees = np.radians([-8, 0, 9, 90])
    features = np.stack([np.cos(degrees), np.sin(degrees)], axis=1)
    bank = build_bank([str(k) for k in range(4)], features, clusters=2, seed=3)
    table = Table(np.repeat([[2.0], [1.0], [2.0], [3.0]], 16, axis=1))
    assert look_up_two_layers(bank, table).candidate == 1


@pytest.mark.parametrize(
    ("count", "rows"),
    [(3000, 3360), (600, 960), (463, 823), (120, 480), (60, 330), (20, 245), (15, 240), (1, 16)],
)
def test_halving_scores_all_on_one_row_and_few_on_sixteen(count: int, rows: int) -> None:
    table = Table(draw_losses(count, noise=0.3))
    found = look_up_by_halving(np.arange(count), table)
    assert found.rows_scored == len(table.asked) == rows
    # Nothing is scored twice.
    assert len(set(table.asked)) == rows
    if count >= 463:
        assert 9 * rows <= 16 * count


@pytest.mark.parametrize("seed", range(20))
def test_halving_finds_what_brute_force_finds_where_a_row_says_something(seed: int) -> None:
    table = Table(draw_losses(600, noise=0.01, seed=seed))
    brute = look_up_all(np.arange(600), table)
    found = look_up_by_halving(np.arange(600), table)
    assert (found.candidate, found.score) == (brute.candidate, pytest.approx(brute.score))


def test_halving_looks_among_the_candidates_it_is_given() -> None:
    table = Table(draw_losses(10, noise=0.0))
    given = np.array([7, 2, 5])
    best = given[np.argmin(table.losses[given, 0])]
    assert look_up_by_halving(given, table).candidate == best


@pytest.mark.parametrize("poison", [math.nan, math.inf, -math.inf])
def test_a_poisoned_prompt_is_never_chosen(poison: float) -> None:
    losses = np.full((5, 16), 2.0)
    losses[2] = poison
    losses[3, 9] = math.nan
    losses[4] = 1.0
    features = np.eye(5) + 0.1
    bank = build_bank([str(k) for k in range(5)], features, clusters=2, seed=1)
    assert look_up_all(np.arange(5), Table(losses)).candidate == 4
    assert look_up_by_halving(np.arange(5), Table(losses)).candidate == 4
    assert look_up_two_layers(bank, Table(losses)).candidate not in (2, 3)


def test_a_bank_of_poison_is_an_error_and_so_is_none_at_all() -> None:
    table = Table(np.full((5, 16), math.nan))
    for look_up in (look_up_all, look_up_by_halving):
        with pytest.raises(ValueError, match="no candidate has a loss that is a number"):
            look_up(np.arange(5), table)
        with pytest.raises(ValueError, match="at least one candidate"):
            look_up(np.arange(0), table)


def test_equal_scores_fall_to_the_first() -> None:
    table = Table(np.ones((100, 16)))
    assert look_up_all(np.arange(100), table).candidate == 0
    assert look_up_by_halving(np.arange(100), table).candidate == 0


@pytest.mark.parametrize(
    ("rows", "survivors", "message"),
    [
        ((), (), "every stage"),
        ((1, 4), (1,), "every stage"),
        ((4, 1), (5, 1), "rows must rise"),
        ((0, 1), (5, 1), "rows must rise"),
        ((1, 4), (5, 5), "survivors must fall"),
        ((1, 4), (5, 2), "one candidate survives"),
    ],
)
def test_halving_rules_that_make_no_sense_are_refused(
    rows: tuple[int, ...], survivors: tuple[int, ...], message: str
) -> None:
    with pytest.raises(ValueError, match=message):
        HalvingRules(rows, survivors)
