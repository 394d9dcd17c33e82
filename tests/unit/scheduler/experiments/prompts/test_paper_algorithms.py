"""Algorithms 1 and 2 and DelaySchedulable: each error of the text beside its repair."""

from __future__ import annotations

from dataclasses import replace

import pytest

from scheduler.experiments.prompts.cold_pool import Growth, grow_pools
from scheduler.experiments.prompts.delaying import delay_schedulable, delay_schedulable_printed
from scheduler.experiments.prompts.repairs import PRINTED, REPAIRED, Repairs
from scheduler.experiments.prompts.warm_pool import allocate_warm
from scheduler.prompts.jobs import Course, TuningJob
from scheduler.prompts.pools import WarmPool
from scheduler.prompts.rules import LaneRules
from tests.unit.scheduler.prompts.builders import EVEN, MODEL, make_job, make_pools


def allocate(
    *jobs: TuningJob,
    idle: int,
    now_s: float = 0.0,
    repairs: Repairs = REPAIRED,
    rules: LaneRules = EVEN,
) -> list[tuple[str, int]]:
    found = allocate_warm(jobs, idle, now_s, rules=rules, repairs=repairs)
    return [(one.job.id, one.gpus) for one in found]


def grow(
    *jobs: TuningJob,
    pools: dict[str, WarmPool],
    cold: int = 8,
    now_s: float = 0.0,
    repairs: Repairs = REPAIRED,
    delays: bool = True,
) -> int:
    found = grow_pools(jobs, pools, cold, now_s, rules=EVEN, repairs=repairs, delays=delays)
    assert all(one.base_model == MODEL for one in found)
    return sum(one.gpus for one in found)


def test_algorithm_1_gives_the_shortest_slo_the_fewest_gpus_that_meet_it() -> None:
    tight, loose = make_job("tight", slo_s=30.0), make_job("loose", slo_s=100.0)
    assert allocate(loose, tight, idle=6) == [("tight", 4), ("loose", 1)]
    assert allocate(loose, tight, idle=4) == [("tight", 4)]
    # What does not fit is passed over, and a smaller job behind it is not.
    assert allocate(loose, tight, idle=3) == [("loose", 1)]


def test_algorithm_1_as_printed_allocates_one_gpu_more_than_there_are() -> None:
    job = make_job(slo_s=50.0)
    printed = replace(REPAIRED, pool_bound=False)
    assert allocate(job, idle=1, repairs=printed) == [("job", 2)]
    assert allocate(job, idle=1) == []
    assert allocate(job, idle=2) == [("job", 2)]
    easy = make_job(slo_s=100.0)
    assert allocate(easy, idle=0, repairs=printed) == [("job", 1)]
    assert allocate(easy, idle=0) == []


def test_as_printed_a_job_that_has_waited_gets_gpus_as_if_it_had_not() -> None:
    job = make_job(slo_s=100.0)
    printed = replace(REPAIRED, time_left=False)
    assert allocate(job, idle=4, now_s=30.0, repairs=printed) == [("job", 1)]
    assert allocate(job, idle=4, now_s=30.0) == [("job", 2)]


def test_as_printed_a_job_past_saving_is_never_run() -> None:
    rules = replace(EVEN, max_gpus=4)
    late, other = make_job("late", slo_s=20.0), make_job("other", slo_s=100.0)
    printed = replace(REPAIRED, late_jobs=False)
    assert allocate(late, idle=4, rules=rules, repairs=printed) == []
    assert allocate(late, idle=4, rules=rules) == [("late", 1)]
    # Jobs that can be saved come first.
    assert allocate(late, other, idle=1, rules=rules) == [("other", 1)]
    assert allocate(late, other, idle=2, rules=rules) == [("other", 1), ("late", 1)]


def test_algorithm_2_adds_the_gang_that_meets_the_slo_after_its_start() -> None:
    assert grow(make_job(slo_s=120.0), pools=make_pools()) == 1
    assert grow(make_job(slo_s=60.0), pools=make_pools()) == 3
    assert grow(make_job(slo_s=60.0), pools=make_pools(), cold=3) == 3
    assert grow(make_job(slo_s=60.0), pools=make_pools(), cold=2) == 0
    assert grow(make_job(slo_s=20.0), pools=make_pools()) == 0


def test_line_12_as_printed_grows_no_gang_and_would_not_end_below_t_cold() -> None:
    printed = replace(REPAIRED, growth=False)
    assert grow(make_job(slo_s=120.0), pools=make_pools(), repairs=printed) == 1
    assert grow(make_job(slo_s=60.0), pools=make_pools(), repairs=printed) == 0
    assert grow(make_job(slo_s=10.0), pools=make_pools(), repairs=printed) == 0


def test_a_job_that_can_wait_for_a_running_one_buys_no_gpu() -> None:
    job = make_job(work_gpu_s=30.0)
    assert grow(job, pools=make_pools(10.0)) == 0
    assert grow(job, pools=make_pools(10.0), delays=False) == 1
    assert grow(job, pools=make_pools(31.0)) == 1


def test_two_jobs_do_not_wait_for_one_gpu() -> None:
    jobs = (make_job("a", work_gpu_s=30.0), make_job("b", work_gpu_s=30.0))
    assert grow(*jobs, pools=make_pools(10.0)) == 1


def test_growth_of_several_pools_shares_the_cold_pool_in_order_of_slos() -> None:
    jobs = (make_job(slo_s=60.0), TuningJob("v", "vicuna-7b", 0.0, 70.0, 100.0))
    pools = {**make_pools(), "vicuna-7b": WarmPool("vicuna-7b", 40.0, ())}
    found = grow_pools(jobs, pools, 6, 0.0, rules=EVEN, repairs=REPAIRED)
    assert found == (Growth(MODEL, 3),)
    found = grow_pools(jobs, pools, 7, 0.0, rules=EVEN, repairs=REPAIRED)
    assert found == (Growth(MODEL, 3), Growth("vicuna-7b", 4))


def test_delay_schedulable_takes_the_whole_gang_until_the_job_ends() -> None:
    course = Course(looks_up=False, work_gpu_s=60.0, fixed_s=0.0)
    assert delay_schedulable((110.0, 110.0, 110.0), course, 145.0, EVEN) == (
        (110.0, 140.0, 140.0),
        2,
    )
    assert delay_schedulable((110.0,), course, 170.0, EVEN) == ((170.0,), 1)
    assert delay_schedulable((110.0,), course, 169.0, EVEN) is None
    assert delay_schedulable((), course, 1e9, EVEN) is None


def test_line_30_as_printed_marks_one_gpu_and_writes_a_length_among_timestamps() -> None:
    course = Course(looks_up=False, work_gpu_s=60.0, fixed_s=0.0)
    found = delay_schedulable_printed((110.0, 110.0, 110.0), course, 45.0, 100.0, EVEN)
    assert found == (40.0, 110.0, 110.0)


def test_line_29_as_printed_leaves_out_the_last_gpu_of_the_pool() -> None:
    course = Course(looks_up=False, work_gpu_s=60.0, fixed_s=0.0)
    assert delay_schedulable_printed((110.0,), course, 200.0, 100.0, EVEN) is None
    assert delay_schedulable_printed((110.0, 300.0), course, 200.0, 100.0, EVEN) == (70.0, 300.0)


def test_the_letter_of_the_text_has_every_error() -> None:
    assert Repairs(False, False, False, False, False) == PRINTED
    assert Repairs() == REPAIRED


def test_times_of_a_pool_must_rise() -> None:
    with pytest.raises(ValueError, match="free_at_s of gpt2-base must rise"):
        make_pools(2.0, 1.0)
    assert make_pools(0.0, 1.0, 5.0)[MODEL].free_at_s == (0.0, 1.0, 5.0)
