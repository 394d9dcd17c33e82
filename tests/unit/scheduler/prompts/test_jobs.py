"""Jobs, gangs and the latency budget, by hand."""

from __future__ import annotations

import math
from dataclasses import replace

import pytest

from scheduler.experiments.prompts.warm_pool import affords_lookup, compute_printed_budget_s
from scheduler.prompts.jobs import Course, find_fewest_gpus, order_by_deadline, run_s
from scheduler.prompts.planning import choose_course, predict_course
from scheduler.prompts.rules import LaneRules
from tests.unit.scheduler.prompts.builders import EVEN, make_job


def test_a_gang_connects_and_exchanges_gradients_and_one_gpu_does_not() -> None:
    course = Course(looks_up=False, work_gpu_s=100.0, fixed_s=5.0)
    assert run_s(course, 1, LaneRules()) == 105.0
    assert run_s(course, 4, LaneRules()) == 5.0 + 2.0 + 100.0 * 1.005 / 4


@pytest.mark.parametrize(
    ("until_s", "gpus"), [(100.0, 1), (60.0, 2), (45.0, 3), (40.0, 4), (35.0, 4), (34.9, 0)]
)
def test_the_smallest_gang_is_counted_from_when_its_last_gpu_is_free(
    until_s: float, gpus: int
) -> None:
    course = Course(looks_up=False, work_gpu_s=100.0, fixed_s=0.0)
    assert find_fewest_gpus(course, until_s, (0.0, 0.0, 10.0, 10.0), EVEN) == gpus


def test_a_gang_is_no_larger_than_the_pool_and_the_rules_allow() -> None:
    course = Course(looks_up=False, work_gpu_s=100.0, fixed_s=0.0)
    assert find_fewest_gpus(course, 25.0, (0.0,) * 4, EVEN) == 4
    assert find_fewest_gpus(course, 25.0, (0.0,) * 3, EVEN) == 0
    assert find_fewest_gpus(course, 25.0, (0.0,) * 4, replace(EVEN, max_gpus=3)) == 0
    assert find_fewest_gpus(course, 25.0, (), EVEN) == 0


def test_jobs_of_one_deadline_go_in_order_of_submission_then_by_id() -> None:
    late = make_job("c", slo_s=90.0)
    second = make_job("b", slo_s=50.0, submitted_s=10.0)
    first, tied = make_job("b0", slo_s=60.0), make_job("a0", slo_s=60.0)
    assert order_by_deadline([late, second, first, tied]) == [tied, first, second, late]


def test_a_lookup_is_afforded_up_to_its_budget_and_never_without_a_bank() -> None:
    job = make_job(slo_s=100.0, lookup_gpu_s=20.0)
    assert compute_printed_budget_s(job, EVEN) == 20.0
    assert affords_lookup(job, 20.0)
    assert not affords_lookup(job, 19.9)
    assert not affords_lookup(make_job(lookup_gpu_s=0.0), 1e9)


def test_the_lanes_budget_shrinks_as_the_deadline_comes_nearer() -> None:
    # A fifth of the 50 s that are left is what it takes; a moment later it is not.
    job = make_job(slo_s=100.0, submitted_s=7.0, lookup_gpu_s=10.0)
    assert choose_course(job, 57.0, EVEN).looks_up
    for late_s in (57.1, 107.0, 1000.0):
        assert not choose_course(job, late_s, EVEN).looks_up
    assert not choose_course(replace(job, lookup_gpu_s=0.0), 57.0, EVEN).looks_up


def test_a_gang_shares_the_lookup_in_the_lane_and_waits_for_it_in_the_paper() -> None:
    job = make_job(work_gpu_s=120.0, lookup_gpu_s=8.0)
    rules = replace(EVEN, predicted_gain=1.2)
    shared = predict_course(job, True, rules, shared=True)
    paper = predict_course(job, True, rules, shared=False)
    assert run_s(shared, 4, rules) == pytest.approx((100.0 + 8.0) / 4)
    assert run_s(paper, 4, rules) == pytest.approx(8.0 + 100.0 / 4)
    assert run_s(predict_course(job, False, rules, shared=True), 4, rules) == 30.0


@pytest.mark.parametrize(
    ("field", "value", "message"),
    [
        ("slo_s", 0.0, "an SLO is a finite number of seconds above zero"),
        ("slo_s", -3.0, "an SLO is a finite number of seconds above zero"),
        ("slo_s", math.inf, "an SLO is a finite number of seconds above zero"),
        ("submitted_s", math.nan, "an SLO is a finite number"),
        ("work_gpu_s", 0.0, "work_gpu_s must be above zero"),
        ("work_gpu_s", math.nan, "work_gpu_s must be above zero"),
        ("lookup_gpu_s", -1.0, "lookup_gpu_s must not be below zero"),
    ],
)
def test_a_job_that_makes_no_sense_is_refused(field: str, value: float, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        make_job(**{field: value})


@pytest.mark.parametrize(
    ("field", "value"),
    [
        ("max_gpus", 0),
        ("connect_s", -1.0),
        ("round_s", math.nan),
        ("lookup_share", 1.1),
        ("predicted_gain", 0.9),
    ],
)
def test_rules_that_make_no_sense_are_refused(field: str, value: float) -> None:
    with pytest.raises(ValueError, match=field):
        replace(LaneRules(), **{field: value})
