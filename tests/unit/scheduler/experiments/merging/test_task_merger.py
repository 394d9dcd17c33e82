"""The program: what it decides on small instances, repaired and as chosen."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from scheduler.experiments.merging.fairness import (
    compute_fair_share,
    compute_unfair_share,
    finish_time_ratio,
)
from scheduler.experiments.merging.instance import Assignment, Mode
from scheduler.experiments.merging.task_merger import (
    CHOSEN,
    REPAIRED,
    RUNNABLE,
    choose_partners,
    compute_fair_times,
    merge_tasks,
    transfer_weights,
)
from tests.unit.scheduler.experiments.merging.instance_builders import instance

INF = float("inf")
#: Two jobs of 1000 s on four GPUs with a perfect speed-up, and a donor worth 900 s.
LINEAR = [1000.0, 500.0, 1000.0 / 3.0, 250.0]
TWO = instance(
    4, [LINEAR, LINEAR], [(0, 1, False, [seconds / 10 for seconds in LINEAR])], wait_s=1000.0
)


def test_the_fair_share_rounds_up() -> None:
    assert [compute_fair_share(8, jobs) for jobs in (1, 3, 8, 9)] == [8, 3, 1, 1]


def test_a_job_is_unfairly_treated_when_it_ends_later_than_alone_on_its_share() -> None:
    ratios = finish_time_ratio(np.array([100.0, 50.0, 60.0]), np.array([80.0, 50.0, 90.0]))
    assert ratios.tolist() == pytest.approx([1.25, 1.0, 2 / 3])
    assert compute_unfair_share(ratios) == pytest.approx(1 / 3)


def test_transfer_weights_compare_with_shortest_first() -> None:
    # (2 x 1000 + 1000) / (2 x 1000 + 100) after each other, 3000 / (2 x 800) together.
    both = instance(4, [LINEAR, LINEAR], [(0, 1, False, [100.0] * 4), (0, 1, True, [800.0] * 4)])
    assert transfer_weights(both)[:, 0].tolist() == pytest.approx([3000 / 2100, 3000 / 1600])


def test_a_pair_that_may_not_run_on_a_number_has_no_weight_there() -> None:
    times = [INF, INF, INF, 250.0]
    found = transfer_weights(instance(4, [LINEAR, times], [(0, 1, False, [INF, 1, 1, 25.0])]))
    assert found[0].tolist() == pytest.approx([0.0, 0.0, 0.0, 750 / 525])


def test_equation_eleven_as_printed_refuses_a_pair_that_fits() -> None:
    # The pair on four GPUs counts as eight.
    runnable = merge_tasks(TWO, RUNNABLE)
    assert runnable.assignments == (
        Assignment(0, None, Mode.NORMAL, 2),
        Assignment(1, None, Mode.NORMAL, 2),
    )
    repaired = merge_tasks(TWO, REPAIRED)
    assert repaired.assignments == (Assignment(0, 1, Mode.TEMPORAL, 4),)
    # 2 / TranWt on two fair shares.
    assert repaired.objective == pytest.approx(2.0 * 2100 / 3000)


def test_the_chosen_form_adds_the_slowdowns_of_both() -> None:
    found = merge_tasks(TWO, CHOSEN)
    assert found.assignments == (Assignment(0, 1, Mode.TEMPORAL, 4),)
    # Donor done after 250 s, target after 275; both need 500 s on their fair share.
    assert found.objective == pytest.approx((250 + 275) / 500)
    assert (found.optimal, found.feasible, found.waiting) == (True, True, ())


def test_pairs_that_gain_nothing_are_left_alone() -> None:
    # Jobs that do not scale, so that running them one after the other gains nothing.
    flat = [1000.0] * 4
    slow = instance(4, [flat, flat], [(0, 1, False, flat), (0, 1, True, [1600.0] * 4)])
    for form in (RUNNABLE, REPAIRED, CHOSEN):
        found = merge_tasks(slow, form)
        assert found.pairs == 0
        assert all(one.partner is None for one in found.assignments)
        assert found.objective == pytest.approx(2.0)


def test_more_jobs_than_gpus_leave_the_long_ones_waiting() -> None:
    times = [[60.0], [600.0], [6000.0]]
    found = merge_tasks(instance(1, times, wait_s=100.0), CHOSEN)
    assert found.assignments == (Assignment(0, None, Mode.NORMAL, 1),)
    assert found.waiting == (1, 2)
    # 1 for the job that runs, 1 + 100 / 600 and 1 + 100 / 6000 for those that wait.
    assert found.objective == pytest.approx(3 + 100 / 600 + 100 / 6000)


def test_a_job_that_has_waited_long_comes_before_a_shorter_one() -> None:
    times = [[60.0], [600.0]]
    waited = np.array([0.0, 2000.0])
    found = merge_tasks(instance(1, times, waited_s=waited), CHOSEN)
    assert found.assignments == (Assignment(1, None, Mode.NORMAL, 1),)


def test_a_switch_is_worth_its_time_only() -> None:
    # On three GPUs the job ends 100 s sooner than on two.
    times = [[600.0, 300.0, 200.0]]
    held = np.array([2])
    cheap = instance(3, times, held=held, switch_s=99.0)
    dear = replace(cheap, switch_s=101.0)
    assert merge_tasks(cheap, CHOSEN).assignments[0].gpus == 3
    assert merge_tasks(dear, CHOSEN).assignments[0].gpus == 2


def test_a_unit_of_two_jobs_counts_and_weighs_as_two() -> None:
    # Three jobs in two units share six GPUs: two each, so four for the pair's unit.
    times = [[1200.0, 600.0, 400.0, 300.0], [1200.0, 600.0, 400.0, 300.0]]
    both = instance(6, times, members=np.array([2, 1]))
    assert both.jobs == 3
    assert compute_fair_times(both).tolist() == [300.0, 600.0]
    assert merge_tasks(both, CHOSEN).assignments == (
        Assignment(0, None, Mode.NORMAL, 4),
        Assignment(1, None, Mode.NORMAL, 2),
    )


def test_pipeline_jobs_get_whole_servers() -> None:
    found = merge_tasks(instance(6, [[INF, INF, INF, 100.0], [80.0, 50.0, 40.0, 35.0]]), CHOSEN)
    assert found.assignments == (
        Assignment(0, None, Mode.NORMAL, 4),
        Assignment(1, None, Mode.NORMAL, 2),
    )


def test_each_target_keeps_its_three_best_donors() -> None:
    donors = [(i, 5, False, [share * s for s in LINEAR]) for i, share in
              enumerate((0.5, 0.1, 0.4, 0.2, 0.3))]  # fmt: skip
    six = instance(4, [LINEAR] * 6, donors)
    assert choose_partners(six, CHOSEN).tolist() == [1, 3, 4]
    assert choose_partners(six, REPAIRED).tolist() == [0, 1, 2, 3, 4]


def test_each_unit_of_a_spatial_pair_keeps_its_three_best() -> None:
    pairs = [(0, i, True, [share * s for s in LINEAR]) for i, share in
             ((1, 0.9), (2, 0.8), (3, 0.7), (4, 0.6))]  # fmt: skip
    found = choose_partners(instance(4, [LINEAR] * 5, pairs), CHOSEN)
    # The worst is not among the best of unit 0, but it is the best that unit 1 has.
    assert found.tolist() == [0, 1, 2, 3]


def test_without_time_there_is_an_answer_that_says_it_is_not_proven() -> None:
    rng = np.random.default_rng(0)
    times = np.sort(rng.uniform(10, 1000, (40, 4)), axis=1)[:, ::-1]
    pairs = [(i, k, False, times[k] * 0.3) for i in range(40) for k in range(40) if i != k]
    busy = instance(4, times.tolist(), pairs)  # type: ignore[arg-type]
    found = merge_tasks(busy, CHOSEN, time_limit_s=0.0)
    assert (found.feasible, found.optimal) == (True, False)
    assert sum(one.gpus for one in found.assignments) <= 4
    assert found.bound <= found.objective


def test_no_jobs_are_decided_at_once() -> None:
    found = merge_tasks(instance(4, []), CHOSEN)
    assert (found.assignments, found.waiting, found.objective) == ((), (), 0.0)
    assert found.optimal
