"""Which donor a job begins with, and how much less work is sold for it."""

from __future__ import annotations

import time

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from scheduler.merging.warm_starts import (
    CANDIDATES_MAX,
    PRIOR_SHARE,
    SHARE_MIN,
    Likeness,
    choose_candidates,
    choose_start,
    find_warm_steps,
    judge_likeness,
    predict_target_loss,
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


def test_eight_of_ten_thousand_donors_are_found_in_milliseconds() -> None:
    donors = unit_rows(10_000)
    target = donors[1234]
    began = time.process_time()
    for _ in range(20):
        found = choose_candidates(target, donors)
    assert (time.process_time() - began) / 20 < 0.02
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


def test_how_near_a_donor_is_follows_from_its_loss() -> None:
    assert judge_likeness(4.0, 1.2) is Likeness.NEAR
    assert judge_likeness(4.0, 1.21) is Likeness.RELATED


def test_the_target_is_what_the_donors_own_run_makes_likely() -> None:
    assert predict_target_loss(4.0, donor_before=3.0, donor_after=1.5) == pytest.approx(2.04)
    for before, after in ((3.0, 3.0), (3.0, 4.0), (0.0, 0.0), (3.0, 0.0)):
        assert predict_target_loss(4.0, donor_before=before, donor_after=after) is None


def test_a_quote_follows_what_was_measured_and_stays_above_its_mean() -> None:
    first = quote_share(Likeness.RELATED, [])
    assert first > PRIOR_SHARE[Likeness.RELATED]
    after_good, after_bad = (quote_share(Likeness.RELATED, [x] * 20) for x in (0.3, 1.0))
    assert 0.3 < after_good < first < after_bad <= 1.0
    # Fifty later, what was before is forgotten.
    assert quote_share(Likeness.NEAR, [1.0] * 50 + [0.2] * 50) == quote_share(
        Likeness.NEAR, [0.2] * 50
    )


@given(
    likeness=st.sampled_from(Likeness),
    observed=st.lists(st.floats(0, 1), max_size=60),
    total=st.integers(1, 10_000),
    interval=st.integers(1, 500),
)
def test_a_warm_start_is_never_sold_more_than_the_cold_work(
    likeness, observed, total, interval
) -> None:
    share = quote_share(likeness, observed)
    assert SHARE_MIN <= share <= 1.0
    steps = find_warm_steps(share, total_steps=total, interval=interval)
    assert 1 <= steps <= total
    assert steps == total or steps % interval == 0
    assert steps == total or steps >= share * total
