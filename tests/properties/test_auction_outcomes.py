"""Prices follow from what was taken and left, and from no limit."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
from hypothesis import given, settings
from hypothesis import strategies as st

from scheduler.auction.log.chain import ChainEntry
from scheduler.auction.log.events import PricesSolved
from scheduler.auction.prices import Settings
from scheduler.experiments.attack import decoys
from scheduler.experiments.attack.market_logs import make_log_rules, write_log
from scheduler.experiments.auction.beats import list_beats
from scheduler.types import Decision, Task

SCENARIO = replace(decoys.make_zones(decoys.QUICK)[0].scenario, slots=8, nodes=3, bids_per_slot=5.0)
EFFORT = Settings(futures=2, iterations=8)


def write(day: list[Task]) -> list[ChainEntry]:
    return write_log(SCENARIO, day, settings=EFFORT, salt="s")


def list_decisions(log: list[ChainEntry]) -> list[Decision]:
    return [entry.outcome for entry in log if isinstance(entry.outcome, Decision)]


#: In the order in which they are decided.
DAY = [
    task
    for _, tasks in list_beats(SCENARIO.day(4), make_log_rules(SCENARIO, EFFORT))
    for task in tasks
]
HONEST = write(DAY)
ANSWERS = list_decisions(HONEST)


def draw_limit(decision: Decision, rng: np.random.Generator) -> float:
    """Give another limit with the same answer at the price that the bid met."""
    price = decision.winning_price
    if price is None:
        return float(rng.uniform(0, 1e9))
    if decision.admitted:
        return price * float(rng.choice([1.000001, 1.5, 1e3])) + 1e-3
    return price * float(rng.choice([0.999999, 0.5, 0.0]))


@settings(max_examples=12, deadline=None)
@given(seed=st.integers(0, 2**32))
def test_other_limits_with_the_same_answers_change_no_price_by_one_bit(seed: int) -> None:
    rng = np.random.default_rng(seed)
    limits = [draw_limit(decision, rng) for decision in ANSWERS]
    other = write([replace(task, bid=bid) for task, bid in zip(DAY, limits, strict=True)])
    found = list_decisions(other)
    assert [(d.task_id, d.admitted, d.payment, d.winning_price) for d in found] == [
        (d.task_id, d.admitted, d.payment, d.winning_price) for d in ANSWERS
    ]
    assert [e.event for e in other if isinstance(e.event, PricesSolved)] == [
        e.event for e in HONEST if isinstance(e.event, PricesSolved)
    ]


def test_the_day_has_answers_of_each_kind_and_prices_that_they_move() -> None:
    assert {(d.admitted, d.winning_price is None) for d in ANSWERS} >= {
        (True, False),
        (False, False),
    }
    nobody = write([replace(task, bid=1e-9) for task in DAY])
    prices = [
        [e.event.compute_price for e in log if isinstance(e.event, PricesSolved)]
        for log in (HONEST, nobody)
    ]
    assert prices[0][-1] != prices[1][-1]
