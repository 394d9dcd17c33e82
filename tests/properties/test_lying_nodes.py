"""Nodes that lie about their results lose more than they spare, and honest ones lose nothing.

A life in rounds: a node does one job after another, each pays 1 and costs ``cost`` to train. Of a
lie it does no work, but holds its machine for an eighth of the time (``PACE_MOST``). Results are
measured as the market does it; the first lie that is measured ends the life, and takes back what
was earned within the delay of its pay, but for what was measured.
"""

from __future__ import annotations

import random

import pytest

from marketplace.checks.scores import FIRST_RESULTS, share_of
from marketplace.jobs.services.result_checks import PACE_MOST
from workers.protocol.checks import score_agrees

LIVES = 1_000
#: Delays of pay that a life lasts at most.
DELAYS = 4
#: Two devices' losses on the same rows differ by this, relatively: bfloat16 beside float32.
DEVICE_NOISE = 0.01


def live(rng: random.Random, *, jobs_a_delay: int, lies: float, cost: float) -> float:
    """What one node has at the end of its life, beyond what the work cost it."""
    kept, spent = 0.0, 0.0
    waiting: list[tuple[float, bool]] = []
    for number in range(DELAYS * jobs_a_delay):
        is_measured = number < FIRST_RESULTS or rng.random() < share_of(jobs_a_delay)
        # Its first results are all measured, as it knows.
        is_lie = number >= FIRST_RESULTS and rng.random() < lies
        spent += cost / PACE_MOST if is_lie else cost
        if is_lie and is_measured:
            kept += sum(pay for pay, was_measured in waiting if was_measured)
            return kept - spent
        waiting.append((1.0, is_measured))
        if len(waiting) > jobs_a_delay:
            kept += waiting.pop(0)[0]
    return kept + sum(pay for pay, _ in waiting) - spent


def mean(*, jobs_a_delay: int, lies: float, cost: float) -> float:
    rng = random.Random(f"{jobs_a_delay} {lies} {cost}")
    lives = (live(rng, jobs_a_delay=jobs_a_delay, lies=lies, cost=cost) for _ in range(LIVES))
    return sum(lives) / LIVES


@pytest.mark.parametrize("cost", [0.3, 0.9])
@pytest.mark.parametrize("jobs_a_delay", [4, 30, 300])
def test_the_more_a_node_lies_the_less_it_earns(jobs_a_delay, cost):
    honest = mean(jobs_a_delay=jobs_a_delay, lies=0.0, cost=cost)
    assert honest == pytest.approx(DELAYS * jobs_a_delay * (1 - cost))
    rare = mean(jobs_a_delay=jobs_a_delay, lies=0.02, cost=cost)
    often = mean(jobs_a_delay=jobs_a_delay, lies=0.3, cost=cost)
    assert often < rare < honest


@pytest.mark.parametrize("cost", [0.3, 0.9])
@pytest.mark.parametrize("jobs_a_delay", [30, 300])
def test_a_node_that_always_lies_earns_less_than_nothing_beyond_its_first_results(
    jobs_a_delay, cost
):
    first = FIRST_RESULTS * (1 - cost)
    assert mean(jobs_a_delay=jobs_a_delay, lies=1.0, cost=cost) < first


def test_of_a_thousand_honest_results_none_is_refused():
    rng = random.Random(5)
    for _ in range(1_000):
        loss = rng.uniform(0.05, 4.0)
        assert score_agrees(loss, loss * rng.gauss(1.0, DEVICE_NOISE))


def test_noise_is_refused_however_good_it_says_it_is():
    rng = random.Random(6)
    for _ in range(1_000):
        base = rng.uniform(1.0, 4.0)
        assert not score_agrees(rng.uniform(0.0, 0.8) * base, base * rng.uniform(1.0, 3.0))
