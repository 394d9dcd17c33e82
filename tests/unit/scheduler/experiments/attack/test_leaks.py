"""The estimators of bids find what is told, and the published log does not tell it."""

from __future__ import annotations

from dataclasses import replace
from math import log

import numpy as np

from scheduler.experiments.attack import leaks

ZONE = leaks.make_zones(leaks.LeakSize(1, 12, leaks.Settings()))["busy zone"]
DAY = ZONE.day(0)
SIGHTS = leaks.see_day(ZONE, DAY, settings=leaks.Settings(futures=1, iterations=6))


def test_a_published_entry_holds_neither_a_bid_nor_what_follows_from_it() -> None:
    log_ = leaks.write_log(
        ZONE, DAY, settings=leaks.Settings(futures=1, iterations=6), salt="secret"
    )
    texts = [str(leaks.publish(entry)) for entry in log_]
    decided = [text for text in texts if "BidArrived" in text]
    assert len(decided) == len(DAY)
    for text in texts:
        assert not any(
            name in text for name in ("'bid'", "salt", "raised", "surplus", "winning_deadline")
        )
    assert not any(str(task.bid) in text for task in DAY for text in texts)


def test_every_priced_bid_is_seen_with_its_price_on_the_right_side() -> None:
    assert {sight.admitted for sight in SIGHTS} == {True, False}
    assert all((sight.bid > sight.price) is sight.admitted for sight in SIGHTS)
    assert len({len(sight.revealed) for sight in SIGHTS}) == 1
    assert len({sight.before for sight in SIGHTS}) == len(SIGHTS)


def test_an_amount_that_a_log_told_would_be_found() -> None:
    rng = np.random.default_rng(0)
    known = [replace(s, revealed=(log(s.bid) + 0.01 * rng.normal(),)) for s in SIGHTS * 3]
    found = leaks.estimate(known, known[: len(SIGHTS)])
    assert found["whole_log"] < 0.1 * found["price"]
    assert found["whole_log"] < 0.1 * found["price_and_needs"]
