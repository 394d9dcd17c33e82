"""The lane's plan, its promises and admission, by hand."""

from __future__ import annotations

from dataclasses import replace

import pytest

from scheduler.prompts.admission import Admission, LaneAnswer, admit_job
from scheduler.prompts.floor import compute_newsvendor_floor
from scheduler.prompts.jobs import TuningJob
from scheduler.prompts.planning import Growth, Promise, Round, keep_promises, plan_round
from scheduler.prompts.pools import WarmPool
from scheduler.prompts.reclaim import count_reclaimable
from scheduler.prompts.rules import LaneRules
from tests.unit.scheduler.prompts.builders import EVEN, MODEL, make_job, make_pools


def plan(
    *jobs: TuningJob,
    pools: dict[str, WarmPool],
    cold: int = 0,
    now_s: float = 0.0,
    rules: LaneRules = EVEN,
) -> Round:
    return plan_round(jobs, pools, cold, now_s, rules=rules)


def starts_of(found: Round) -> list[tuple[str, int]]:
    return [(one.job.id, one.gpus) for one in found.starts]


def promises_of(found: Round) -> list[tuple[str, int, float, float]]:
    return [(one.job.id, one.gpus, one.start_s, one.end_s) for one in found.promises]


def test_jobs_start_on_the_fewest_idle_gpus_in_order_of_deadline() -> None:
    tight, loose = make_job("tight", slo_s=50.0), make_job("loose", slo_s=100.0)
    found = plan(loose, tight, pools=make_pools(0.0, 0.0, 0.0, 0.0))
    assert starts_of(found) == [("tight", 2), ("loose", 1)]
    assert promises_of(found) == [("tight", 2, 0.0, 50.0), ("loose", 1, 0.0, 100.0)]
    assert found.growths == ()
    assert found.unclaimed == {MODEL: 1}


def test_idle_gpus_wait_for_a_gang_with_an_earlier_deadline() -> None:
    tight, loose = make_job("tight", slo_s=45.0), make_job("loose", slo_s=60.0)
    found = plan(loose, tight, pools=make_pools(0.0, 0.0, 10.0, 10.0))
    assert starts_of(found) == []
    assert promises_of(found) == [("tight", 3, 10.0, pytest.approx(10.0 + 100.0 / 3))]
    assert found.unclaimed == {MODEL: 0}


def test_a_gang_is_filled_up_with_new_gpus_rather_than_bought_whole() -> None:
    job = make_job(work_gpu_s=120.0)
    found = plan(job, pools=make_pools(0.0), cold=5)
    assert found.growths == (Growth(MODEL, 2),)
    assert promises_of(found) == [("job", 3, 20.0, 60.0)]
    assert found.unclaimed == {MODEL: 0}
    assert plan(job, pools=make_pools(0.0), cold=1).promises == ()


def test_a_late_job_gets_an_idle_gpu_that_no_promise_counts_on() -> None:
    rules = replace(EVEN, max_gpus=4)
    late, other = make_job("late", slo_s=20.0), make_job("other", slo_s=100.0)
    assert starts_of(plan(late, other, pools=make_pools(0.0), rules=rules)) == [("other", 1)]
    found = plan(late, other, pools=make_pools(0.0, 0.0), rules=rules)
    assert starts_of(found) == [("other", 1), ("late", 1)]
    assert [one.job.id for one in found.promises] == ["other"]


def test_a_late_job_of_a_base_model_without_gpus_gets_a_new_one() -> None:
    rules = replace(EVEN, max_gpus=4)
    late = make_job("late", slo_s=20.0)
    found = plan(late, make_job("later", slo_s=21.0), pools=make_pools(), cold=3, rules=rules)
    assert (found.starts, found.growths) == ((), (Growth(MODEL, 1),))
    assert plan(late, pools=make_pools(5.0), cold=3, rules=rules).growths == ()


def test_a_plan_leaves_a_round_between_two_jobs_on_one_gpu() -> None:
    jobs = [make_job("a", work_gpu_s=30.0), make_job("b", work_gpu_s=30.0, slo_s=60.1)]
    rules = replace(EVEN, round_s=0.05)
    found = plan(*jobs, pools=make_pools(0.0), rules=rules)
    assert promises_of(found) == [("a", 1, 0.0, 30.0), ("b", 1, 30.05, 60.05)]


def test_promised_gangs_keep_the_order_of_their_starts_not_of_their_deadlines() -> None:
    waits = make_job("waits", slo_s=55.0, work_gpu_s=20.0)
    bought = make_job("bought", slo_s=60.0, work_gpu_s=80.0)
    before = plan(waits, bought, pools=make_pools(30.0), cold=2)
    assert promises_of(before) == [("waits", 1, 30.0, 50.0), ("bought", 2, 20.0, 60.0)]
    # In order of deadline the first would take a new GPU and the second would be late.
    grown = make_pools(20.0, 20.0, 30.0)
    after = keep_promises(before.promises, grown, 0, 1.0, rules=EVEN)
    assert promises_of(after) == [("bought", 2, 20.0, 60.0), ("waits", 1, 30.0, 50.0)]


def test_a_promise_whose_gpus_are_gone_is_planned_again() -> None:
    job = make_job()
    before = plan(job, pools=make_pools(0.0, 0.0))
    assert promises_of(before) == [("job", 2, 0.0, 50.0)]
    after = keep_promises(before.promises, make_pools(0.0), 4, 0.0, rules=EVEN)
    assert after.growths == (Growth(MODEL, 2),)
    assert promises_of(after) == [("job", 3, 20.0, pytest.approx(20.0 + 100.0 / 3))]
    assert keep_promises(before.promises, make_pools(0.0), 0, 0.0, rules=EVEN).promises == ()


def admit(
    job: TuningJob,
    *promises: Promise,
    pools: dict[str, WarmPool],
    cold: int = 0,
    rules: LaneRules = EVEN,
) -> Admission:
    held = {one.job.id: one for one in promises}
    return admit_job(job, held, pools, cold, 0.0, rules=rules)


def test_a_job_that_the_plan_keeps_is_certified_its_slo() -> None:
    found = admit(make_job(), pools=make_pools(0.0, 0.0))
    assert found.answer is LaneAnswer.CERTIFIED
    assert found.promise is not None
    assert (found.promise.job, found.promise.gpus, found.promise.end_s) == (make_job(), 2, 50.0)


def test_a_job_that_would_break_a_promise_is_certified_a_later_slo() -> None:
    (promise,) = plan(make_job("a", work_gpu_s=50.0), pools=make_pools(0.0)).promises
    newcomer = make_job("b", work_gpu_s=20.0, slo_s=30.0)
    assert admit(newcomer, pools=make_pools(0.0)).answer is LaneAnswer.CERTIFIED
    found = admit(newcomer, promise, pools=make_pools(0.0))
    assert found.answer is LaneAnswer.LATER
    assert found.promise is not None
    assert (found.promise.job.slo_s, found.promise.end_s) == (90.0, 70.0)
    assert found.plan is not None
    assert {one.job.id for one in found.plan.promises} == {"a", "b"}


def test_a_no_says_whether_the_slo_is_too_short_or_the_lane_full() -> None:
    rules = replace(EVEN, max_gpus=2)
    too_short = admit(make_job(slo_s=10.0), pools=make_pools(0.0), rules=rules)
    assert too_short == Admission(LaneAnswer.TOO_SHORT, None, None)
    full = admit(make_job(work_gpu_s=10.0, slo_s=20.0), pools=make_pools(1000.0))
    assert full == Admission(LaneAnswer.FULL, None, None)


def test_an_slo_in_the_past_is_refused_as_too_short() -> None:
    job = make_job(slo_s=1.0, submitted_s=-100.0)
    assert admit(job, pools=make_pools(0.0)).answer is LaneAnswer.TOO_SHORT


@pytest.mark.parametrize(
    ("warm", "floor", "claimed", "count"),
    [(5, 0, 0, 2), (5, 4, 0, 1), (5, 5, 0, 0), (5, 9, 0, 0), (5, 0, 2, 1), (5, 0, 3, 0)],
)
def test_gpus_idle_for_the_window_go_back_above_the_floor_and_unclaimed(
    warm: int, floor: int, claimed: int, count: int
) -> None:
    found = count_reclaimable(
        (0.0, 5.0, 20.0), warm=warm, floor=floor, claimed=claimed, now_s=15.0, reclaim_s=10.0
    )
    assert found == count


def test_the_floor_covers_the_share_of_demand_that_its_costs_ask_for() -> None:
    def floor(shortage: float, least: int = 0, most: int = 20) -> int:
        return compute_newsvendor_floor(
            range(10), shortage=shortage, idle=1.0, least=least, most=most
        )

    assert floor(1.0) == 4
    assert floor(3.0) == 7
    assert floor(3.0, most=6) == 6
    assert floor(0.01, least=2) == 2
    assert compute_newsvendor_floor([], shortage=1.0, idle=1.0, least=3, most=6) == 3
    with pytest.raises(ValueError, match="bounds must rise"):
        floor(1.0, least=7, most=6)
    with pytest.raises(ValueError, match="costs must be above zero"):
        floor(0.0)
