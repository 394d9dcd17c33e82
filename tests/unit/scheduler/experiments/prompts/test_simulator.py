"""Runs of the prompt-tuning simulator: by hand, repeated, and against each other."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from scheduler.experiments.prompts.cluster import PooledCluster
from scheduler.experiments.prompts.elasticflow import run_elasticflow
from scheduler.experiments.prompts.lanes import ChosenLane, PaperLane, TuningLane
from scheduler.experiments.prompts.lookup_quality import measure_lookups
from scheduler.experiments.prompts.outcome import GPU_USD_PER_H, summarize
from scheduler.experiments.prompts.policies import ELASTICFLOW, LANES, POLICIES, make_lane
from scheduler.experiments.prompts.run import GPUS, run_lane, simulate
from scheduler.experiments.prompts.tuning_tasks import TaskRules
from scheduler.experiments.prompts.workload import (
    LOADS,
    MODELS,
    DrawnJob,
    WorkloadRules,
    draw_jobs,
)
from scheduler.prompts.jobs import Course, TuningJob
from scheduler.prompts.rules import LaneRules

#: A gang costs nothing and no lookup is ever afforded.
PLAIN = LaneRules(connect_s=0.0, exchange_share=0.0, lookup_share=0.0)


def make_drawn(
    name: str, submitted_s: float, work_gpu_s: float, slo_s: float, *, gain: float = 2.0
) -> DrawnJob:
    return DrawnJob(TuningJob(name, "gpt2-base", submitted_s, slo_s, work_gpu_s, 5.0), gain)


def run_by_hand(lane: TuningLane, *drawn: DrawnJob, gpus: int = 4) -> PooledCluster:
    return run_lane(lane, drawn, gpus)


def test_a_first_job_waits_for_its_gpu_and_the_window_is_paid() -> None:
    found = run_by_hand(PaperLane(rules=PLAIN), make_drawn("a", 0.0, 30.0, 45.0))
    assert found.ended_s == {"a": 40.0}
    assert (found.boot_s, found.busy_s, found.idle_s) == (10.0, 30.0, 0.0)


def test_a_second_job_takes_the_warm_gpu_within_the_window() -> None:
    jobs = (make_drawn("a", 0.0, 30.0, 45.0), make_drawn("b", 60.0, 30.0, 45.0))
    found = run_by_hand(PaperLane(rules=PLAIN), *jobs)
    assert found.ended_s == {"a": 40.0, "b": 90.0}
    assert (found.boot_s, found.busy_s) == (10.0, 60.0)
    assert found.idle_s == pytest.approx(20.0)
    found = run_by_hand(PaperLane(rules=replace(PLAIN, reclaim_s=15.0)), *jobs)
    assert found.ended_s == {"a": 40.0, "b": 100.0}
    assert found.idle_s == pytest.approx(15.0)
    assert found.boot_s == 20.0


def test_a_lookup_shortens_the_run_by_its_gain_after_its_own_time() -> None:
    rules = replace(PLAIN, lookup_share=0.2)
    found = run_by_hand(PaperLane(rules=rules), make_drawn("a", 0.0, 30.0, 60.0))
    assert found.ended_s == {"a": 10.0 + 5.0 + 15.0}
    assert found.lookups_s == {"a": 5.0}


def test_the_gang_of_the_lane_shares_its_lookup() -> None:
    rules = replace(PLAIN, lookup_share=0.2, round_s=0.05)
    lane = ChosenLane(rules=rules, least_floor=2, most_floor=2)
    found = run_lane(lane, [make_drawn("a", 0.0, 80.0, 45.0)], 6)
    # 85 GPU seconds on two GPUs are in time; the gain of 2 ends it after 45 of them.
    assert found.ended_s == {"a": 22.5}
    assert found.lookups_s == {"a": 2.5}


def test_a_floor_is_warm_at_the_beginning_and_its_start_is_paid() -> None:
    lane = ChosenLane(rules=PLAIN, least_floor=1, most_floor=1)
    found = run_by_hand(lane, make_drawn("a", 3.0, 30.0, 45.0))
    assert found.ended_s == {"a": 33.0}
    assert found.boot_s == sum(model.boot_s for model in MODELS)
    assert found.idle_s == pytest.approx(33.0 * 3 - 30.0)


def test_a_cluster_gives_no_gpu_that_it_does_not_have() -> None:
    cluster = PooledCluster(MODELS, 2, {"a": 1.0})
    with pytest.raises(ValueError, match="3 GPUs asked of the cold pool, 2 are there"):
        cluster.boot("gpt2-base", 3)
    cluster.boot("gpt2-base", 2)
    assert cluster.cold == 0
    job, course = make_drawn("a", 0.0, 30.0, 45.0).job, Course(False, 30.0, 0.0)
    with pytest.raises(ValueError, match="a needs 1 idle GPUs, 0 are there"):
        cluster.start(job, 1, course, PLAIN)


def test_elasticflow_pays_all_gpus_and_starts_each_gang() -> None:
    drawn = [make_drawn("a", 0.0, 30.0, 60.0, gain=1.0)]
    rules = replace(PLAIN, max_gpus=1)
    found = run_elasticflow(drawn, load="low", slo=1.0, seed=0, gpus=4, rules=rules)
    # Start 10 s, lookup 5 s and work 30 s on its one GPU, which the rest only makes faster.
    assert found.violations == 0
    assert found.cost_usd == pytest.approx(4 * found.end_s / 3600.0 * GPU_USD_PER_H)
    assert found.cold_gpu_h * 3600.0 >= 10.0


def test_a_job_that_was_promised_more_time_than_it_asked_for_is_still_a_violation() -> None:
    job = make_drawn("a", 0.0, 30.0, 20.0).job
    found = summarize(
        [job],
        {"a": 25.0},
        policy="p",
        load="low",
        slo=1.0,
        seed=0,
        gpu_s={"busy": 3600.0, "idle": 0.0, "boot": 0.0},
        lookups_s=[],
        end_s=25.0,
        certified_due_s={"a": 30.0},
    )
    assert (found.violations, found.broken_promises) == (1, 0)
    assert found.cost_usd == GPU_USD_PER_H


@pytest.mark.parametrize("load", list(LOADS))
def test_jobs_are_those_the_paper_prints(load: str) -> None:
    drawn = draw_jobs(load=load, slo=1.0, seed=4)
    for model, count in zip(MODELS, LOADS[load], strict=True):
        mine = [one for one in drawn if one.job.base_model == model.name]
        assert len(mine) == count
        low, high = model.gains
        assert all(low <= one.gain <= high for one in mine)
    arrivals = [one.job.submitted_s for one in drawn]
    assert arrivals == sorted(arrivals)
    assert 0.0 <= arrivals[0] <= arrivals[-1] <= 1200.0
    assert drawn == draw_jobs(load=load, slo=1.0, seed=4)
    assert drawn != draw_jobs(load=load, slo=1.0, seed=5)


def test_s_scales_the_duration_and_not_the_start_up() -> None:
    boots = {model.name: model.boot_s for model in MODELS}
    pairs = zip(
        draw_jobs(load="low", slo=1.0, seed=1), draw_jobs(load="low", slo=0.5, seed=1), strict=True
    )
    for whole, half in pairs:
        boot_s = boots[whole.job.base_model]
        assert half.job.slo_s - boot_s == pytest.approx(0.5 * (whole.job.slo_s - boot_s))
        assert half.job.work_gpu_s == whole.job.work_gpu_s


@pytest.mark.nightly
def test_arrivals_come_in_bursts_of_five_to_six_times_the_mean() -> None:
    peaks: list[float] = []
    for seed in range(50):
        for model, count in zip(MODELS, LOADS["medium"], strict=True):
            times = [
                one.job.submitted_s
                for one in draw_jobs(load="medium", slo=1.0, seed=seed)
                if one.job.base_model == model.name
            ]
            peaks.append(float(np.bincount((np.array(times) // 60).astype(int)).max()) / count * 20)
    assert 5.0 <= np.mean(peaks) <= 6.0


@pytest.mark.nightly
@pytest.mark.parametrize("policy", POLICIES)
def test_every_policy_accounts_for_every_job_and_repeats_itself(policy: str) -> None:
    minutes = replace(WorkloadRules(), minutes=5)
    found = simulate(policy=policy, load="high", seed=3, workload=minutes)
    assert found == simulate(policy=policy, load="high", seed=3, workload=minutes)
    assert found.jobs == 24 + 21 + 19
    assert 0 <= found.never_run <= found.violations <= found.jobs
    assert found.refused <= found.never_run
    assert found.broken_promises == 0
    assert 0.0 <= found.idle_gpu_h <= found.warm_gpu_h
    hours = found.warm_gpu_h + found.cold_gpu_h
    assert found.cost_usd == pytest.approx(hours * GPU_USD_PER_H)
    if policy != ELASTICFLOW:
        # All GPUs from the first second on, and the floors' start before it, cost more.
        most = GPUS * found.end_s + 6 * sum(model.boot_s for model in MODELS)
        assert hours * 3600.0 <= most


@pytest.mark.nightly
def test_the_chosen_lane_misses_fewer_slos_for_less_than_the_papers_rules() -> None:
    def measure(policy: str) -> tuple[float, float]:
        runs = [simulate(policy=policy, load="medium", seed=seed) for seed in range(20)]
        return (
            100.0 * float(np.mean([run.violation_share for run in runs])),
            float(np.mean([run.cost_usd for run in runs])),
        )

    assert measure("repaired") == (pytest.approx(14.2, abs=0.05), pytest.approx(40.1, abs=0.05))
    assert measure("chosen") == (pytest.approx(8.4, abs=0.05), pytest.approx(30.8, abs=0.05))


def test_no_promise_of_an_admitting_lane_is_broken_even_where_it_must_refuse() -> None:
    crowded = replace(WorkloadRules(), median_s=80.0, minutes=8)
    for seed in (1, 3):
        found = simulate(policy="chosen-admits", load="high", seed=seed, workload=crowded)
        assert found.refused > 0
        assert found.broken_promises == 0


def test_predictions_that_hope_for_more_than_the_bank_gives_break_nothing_but_slos() -> None:
    careful, hopeful = (
        simulate(policy=policy, load="medium", seed=0) for policy in ("chosen", "chosen-gain-2")
    )
    assert hopeful.violations > careful.violations
    assert hopeful.never_run == careful.never_run == 0


def test_mistakes_are_answered_with_what_to_do() -> None:
    with pytest.raises(ValueError, match="no policy 'x'; choose one of printed, repaired, chosen"):
        simulate(policy="x", load="low", seed=0)
    with pytest.raises(ValueError, match="no load 'x'; choose one of low, medium, high"):
        simulate(policy="chosen", load="x", seed=0)
    with pytest.raises(ValueError, match="S must be above zero"):
        simulate(policy="chosen", load="low", seed=0, slo=0.0)
    with pytest.raises(ValueError, match="a seed must not be below zero"):
        simulate(policy="chosen", load="low", seed=-1)
    with pytest.raises(ValueError, match="5 GPUs are too few for a floor of 2 under each of 3"):
        simulate(policy="chosen", load="low", seed=0, gpus=5)
    with pytest.raises(ValueError, match="a cluster needs at least one GPU"):
        simulate(policy=ELASTICFLOW, load="low", seed=0, gpus=0)


def test_every_lane_has_a_name_of_its_own_and_is_made_afresh() -> None:
    assert set(POLICIES) == {*LANES, ELASTICFLOW}
    assert make_lane("chosen", 0).pending is not make_lane("chosen", 0).pending


def test_lookups_tune_from_what_they_find_and_halving_costs_a_fraction() -> None:
    rules = TaskRules(tokens=4, bank_iterations=20, target_iterations=20, most_iterations=40)
    results = measure_lookups(seed=1, tasks=3, candidates=120, rules=rules)
    again = measure_lookups(seed=1, tasks=3, candidates=120, rules=rules)
    assert [one.found for one in results] == [one.found for one in again]
    for one in results:
        brute, halving = one.found["brute force"], one.found["halving"]
        assert brute.rows_scored == 120 * 16
        assert halving.rows_scored == 120 + 60 * 3 + 15 * 12
        assert all(brute.score <= found.score + 1e-12 for found in one.found.values())
        assert 1 <= one.ideal <= min(found.iterations for found in one.found.values())
        assert one.speedup("brute force") == np.median(one.random) / brute.iterations
