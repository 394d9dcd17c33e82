"""Which donor a job begins with, and how much less work is sold for it."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from scheduler.merging.warm_starts import (
    CANDIDATES_MAX,
    PRIOR_DEVIATION,
    PRIOR_SHARE,
    SHARE_MIN,
    TARGET_MIN,
    Likeness,
    choose_candidates,
    choose_start,
    find_target_loss,
    find_warm_steps,
    judge_likeness,
    quote_share,
)


def unit_rows(count: int, *, width: int = 256, seed: int = 0) -> np.ndarray:
    rows = np.random.default_rng(seed).normal(size=(count, width)).astype(np.float32)
    return rows / np.linalg.norm(rows, axis=1, keepdims=True)


def test_the_nearest_donors_come_first_and_of_equals_the_first() -> None:
    donors = np.eye(4, dtype=np.float32)[[3, 0, 1, 0]]
    target = np.array([0.9, 0.4, 0.1, 0.0], dtype=np.float32)
    assert choose_candidates(target, donors, most=3) == [1, 3, 2]
    assert choose_candidates(target, donors[:0]) == []
    assert choose_candidates(target, donors[:1]) == [0]


def test_of_ten_thousand_donors_the_nearest_eight_are_found() -> None:
    donors = unit_rows(10_000)
    target = donors[1234]
    found = choose_candidates(target, donors)
    assert found[0] == 1234
    assert len(found) == CANDIDATES_MAX
    by_hand = np.argsort(-(donors @ target), kind="stable")[:CANDIDATES_MAX]
    assert found == by_hand.tolist()


@pytest.mark.parametrize(
    ("base", "losses", "chosen"),
    [
        (4.0, [3.0, 2.0, None], 1),
        # Not enough below the base's.
        (4.0, [3.7, 3.9], None),
        (4.0, [3.6], 0),
        (4.0, [], None),
        (4.0, [None, None], None),
        (float("nan"), [1.0], None),
        (0.0, [0.0], None),
        (4.0, [-1.0], None),
    ],
)
def test_the_lowest_loss_is_taken_where_it_is_well_below_the_base(base, losses, chosen) -> None:
    assert choose_start(base, losses) == chosen


@pytest.mark.parametrize(
    ("loss", "donor_loss", "likeness"),
    [
        (0.5, 0.4, Likeness.NEAR),
        # It knows its own rows better: this is another task.
        (0.51, 0.4, Likeness.RELATED),
        (2.4, 2.4, Likeness.NEAR),
        # It learnt little, and so all rows are alike to it.
        (2.41, 2.4, Likeness.RELATED),
    ],
)
def test_a_donor_is_near_that_does_as_well_as_on_its_own_rows(loss, donor_loss, likeness) -> None:
    assert judge_likeness(4.0, loss, donor_loss=donor_loss) is likeness


def test_a_target_is_what_a_run_from_the_base_on_such_rows_may_end_with() -> None:
    def target(likeness: Likeness, donor_loss: float, probed_loss: float) -> float:
        return find_target_loss(likeness, donor_loss=donor_loss, probed_loss=probed_loss)

    assert target(Likeness.SAME_DATA, 0.5, 0.5) == 0.5
    # A donor that learnt little, or that fits other rows, makes no easy target.
    assert target(Likeness.NEAR, 1.0, 0.5) == target(Likeness.NEAR, 0.5, 1.0) == 0.45
    # Where no row is wrong any more, no loss is worse than another.
    assert target(Likeness.NEAR, 0.001, 0.3) == target(Likeness.SAME_DATA, 0.0, 0.0) == TARGET_MIN
    assert target(Likeness.RELATED, 0.1, 2.0) == target(Likeness.RELATED, 9.0, 2.0) == 1.6


def test_a_quote_follows_what_was_measured_and_stays_above_its_mean() -> None:
    first = quote_share(Likeness.NEAR, [])
    assert first > PRIOR_SHARE[Likeness.NEAR]
    after_good, after_bad = (quote_share(Likeness.NEAR, [x] * 20) for x in (0.08, 1.0))
    assert 0.08 < after_good < first < after_bad <= 1.0
    # Fifty later, what was before is forgotten.
    assert quote_share(Likeness.NEAR, [1.0] * 50 + [0.2] * 50) == quote_share(
        Likeness.NEAR, [0.2] * 50
    )


def test_a_start_that_no_target_checks_is_sold_what_nearly_all_needed_and_never_less() -> None:
    least = quote_share(Likeness.RELATED, [])
    assert least == pytest.approx(
        PRIOR_SHARE[Likeness.RELATED] + 2 * PRIOR_DEVIATION[Likeness.RELATED]
    )
    assert quote_share(Likeness.RELATED, [0.1] * 50) == least
    # Two of four began again.
    assert quote_share(Likeness.RELATED, [0.1, 2.0, 0.1, 2.0]) > least


@given(
    likeness=st.sampled_from(Likeness),
    observed=st.lists(st.floats(0, 2), max_size=60),
    total=st.integers(1, 10_000),
)
def test_a_warm_start_is_never_sold_more_than_the_cold_work(likeness, observed, total) -> None:
    share = quote_share(likeness, observed)
    assert SHARE_MIN <= share <= 1.0
    steps = find_warm_steps(share, total_steps=total)
    assert 1 <= steps <= total
    assert share * total <= steps < share * total + 1
