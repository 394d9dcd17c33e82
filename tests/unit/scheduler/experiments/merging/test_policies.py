"""What each policy decides, and whole runs."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from scheduler.experiments.merging.cluster import Cluster, View
from scheduler.experiments.merging.policies import POLICIES
from scheduler.experiments.merging.run import Bank, simulate
from scheduler.experiments.merging.transfer import MEASURED, PAPER, WORLDS, Tasks, TransferShares
from scheduler.experiments.merging.workload import Mix, fine_tuning_day, jobs_of_trace
from scheduler.experiments.tiers.workload import Workload
from tests.unit.scheduler.experiments.merging import builders


def seen(work_s: list[float], asked: list[int], **other: list[float]) -> View:
    found = builders.jobs(work_s, asked=asked)
    here = Cluster(found, 4, builders.transfer(found, builders.world()), switch_s=0, noticed=0)
    here.admit(0.0)
    return replace(here.view(), **{name: np.array(values) for name, values in other.items()})


def gpus(policy: str, view: View) -> list[int]:
    jobs = builders.jobs(view.left_s.tolist())
    plan = POLICIES[policy].decide(view, builders.transfer(jobs, builders.world()))
    return plan.gpus.tolist()


def test_srtf_serves_the_shortest_and_whoever_still_fits() -> None:
    assert gpus("srtf", seen([100.0, 50.0, 900.0], [3, 2, 1])) == [0, 2, 1]


def test_tiresias_puts_jobs_that_had_much_behind_those_that_came_later() -> None:
    view = seen([100.0, 100.0, 100.0], [2, 2, 2], age_s=[900.0, 600.0, 300.0],
                attained_s=[4000.0, 10.0, 0.0])  # fmt: skip
    assert gpus("tiresias", view) == [0, 2, 2]


def test_themis_serves_the_farthest_from_fair_and_breaks_no_lease() -> None:
    waits = {"age_s": [100.0, 900.0, 300.0]}
    view = seen([100.0, 100.0, 100.0], [2, 2, 2], **waits)
    assert gpus("themis-like", view) == [0, 2, 2]
    leased = replace(view, held=np.array([2, 0, 0]), holding_s=np.array([60.0, 0.0, 0.0]))
    assert gpus("themis-like", leased) == [2, 2, 0]
    expired = replace(leased, holding_s=np.array([600.0, 0.0, 0.0]))
    assert gpus("themis-like", expired) == [0, 2, 2]


def test_optimus_gives_gpus_to_the_job_they_shorten_most() -> None:
    assert gpus("optimus-like", seen([100.0, 4000.0], [1, 1])) == [1, 3]
    # With more jobs than GPUs the shortest run.
    assert gpus("optimus-like", seen([60.0, 10.0, 50.0, 20.0, 40.0], [1] * 5)) == [0, 1, 1, 1, 1]


def test_ymir_merges_related_jobs_only() -> None:
    related = builders.jobs([1000.0, 1000.0], loss=0.05)
    for share, merged in ((0.1, 1), (0.98, 0)):
        here = Cluster(
            related, 4, builders.transfer(related, builders.world(related=share)),
            switch_s=20.0, noticed=0.05,
        )  # fmt: skip
        here.admit(0.0)
        world = replace(MEASURED, scaled_related=replace(MEASURED.related, median=share))
        said = TransferShares(world, related.tasks, seed=0, scaled=True, correlation=1.0)
        plan = POLICIES["ymir-chosen"].decide(here.view(), said)
        assert len(plan.merges) == merged
        assert plan.gpus.sum() == 4


def test_one_seed_gives_one_outcome() -> None:
    jobs = fine_tuning_day(seed=3, jobs=40, gpus=16)
    for policy in ("ymir-chosen", "warm-starts", "optimus-like"):
        once, again = (
            simulate(jobs=jobs, policy=policy, world=PAPER, seed=3, gpus=16) for _ in range(2)
        )
        timeless = {"mean_solver_s": 0.0, "max_solver_s": 0.0}
        assert replace(once, **timeless) == replace(again, **timeless)


def test_without_related_jobs_the_forms_do_not_merge_where_nothing_is_predicted() -> None:
    jobs = fine_tuning_day(seed=1, jobs=30, gpus=16, mix=Mix(related=0.0))
    found = simulate(jobs=jobs, policy="ymir-repaired", world=MEASURED, seed=1, gpus=16)
    # The line through scores without meaning is nearly flat, at a mean share above 1.
    assert found.spatial == 0.0
    assert found.temporal <= 0.1


def test_unknown_policies_and_jobs_wider_than_the_cluster_are_refused() -> None:
    jobs = builders.jobs([10.0], asked=[16])
    with pytest.raises(ValueError, match="no policy 'fifo'"):
        simulate(jobs=jobs, policy="fifo", world=PAPER, seed=0)
    with pytest.raises(ValueError, match="ask for 1 to 8 GPUs"):
        simulate(jobs=jobs, policy="srtf", world=PAPER, seed=0, gpus=8)


def test_a_day_asks_for_its_share_of_the_cluster() -> None:
    jobs = fine_tuning_day(seed=0, jobs=2000, gpus=64, load=1.5)
    offered = jobs.work_s.sum() / (jobs.arrive_s[-1] * 64)
    assert offered == pytest.approx(0.7 * 1.5, rel=0.01)
    again = fine_tuning_day(seed=0, jobs=2000, gpus=64, load=1.5)
    assert (jobs.work_s == again.work_s).all()
    assert (jobs.tasks.task == again.tasks.task).all()


def test_a_trace_gives_run_times_on_the_gpus_asked_for() -> None:
    trace = Workload("t", np.array([0.0, 5.0]), np.array([100.0, 50.0]), np.array([4, 64]))
    jobs = jobs_of_trace(trace, seed=0, gpus=8)
    assert jobs.asked.tolist() == [4, 8]
    run_s = jobs.work_s * (1 + jobs.loss * (jobs.asked - 1)) / jobs.asked
    assert run_s.tolist() == pytest.approx([100.0, 50.0])


def test_jobs_repeat_the_data_of_an_earlier_job_of_their_task() -> None:
    tasks = fine_tuning_day(seed=0, jobs=500, gpus=64, mix=Mix(same_data=0.5)).tasks
    repeats = np.flatnonzero(tasks.data != np.arange(500))
    assert 200 < len(repeats) < 260
    assert (tasks.task[repeats] == tasks.task[tasks.data[repeats]]).all()
    assert (tasks.data[repeats] < repeats).all()


def test_the_worlds_help_as_often_as_was_measured() -> None:
    tasks = Tasks(np.arange(4000), np.arange(4000) // 2, np.arange(4000))
    donor = np.arange(0, 4000, 2)
    related, unrelated = donor + 1, (donor + 2) % 4000
    shares = {}
    for scaled in (False, True):
        drawn = TransferShares(MEASURED, tasks, seed=0, scaled=scaled, correlation=0.0)
        shares[scaled] = [float((drawn.shares(donor, t) < 1).mean()) for t in (related, unrelated)]
    # A quarter of nine tasks' pairs is related: 30 % faster plain, 41 % and 83 % scaled.
    assert 0.25 * shares[False][0] + 0.75 * shares[False][1] == pytest.approx(0.30, abs=0.03)
    assert 0.25 * shares[True][0] + 0.75 * shares[True][1] == pytest.approx(0.41, abs=0.03)
    assert shares[True][0] == pytest.approx(0.83, abs=0.03)
    paper = TransferShares(PAPER, tasks, seed=0, scaled=False, correlation=0.6)
    both = np.concatenate([paper.shares(donor, related), paper.shares(donor, unrelated)])
    assert (both < 1).mean() > 0.5
    assert both.min() < 0.1


def test_scores_correlate_as_they_are_said_to() -> None:
    tasks = Tasks(np.arange(8000), np.arange(8000), np.arange(8000))
    donor, target = np.arange(0, 8000, 2), np.arange(1, 8000, 2)
    for world in WORLDS.values():
        drawn = TransferShares(
            world, tasks, seed=2, scaled=False, correlation=world.gradient_correlation
        )
        truth, said = drawn.shares(donor, target), drawn.predicted_shares(donor, target)
        if world.gradient_correlation == 0.0:
            assert abs(drawn.temporal_line.slope) < 0.05
        else:
            found = np.corrcoef(np.log(truth), said)[0, 1]
            assert found == pytest.approx(world.gradient_correlation, abs=0.15)


def test_equal_data_are_known_without_a_score_unless_they_may_not_merge() -> None:
    tasks = Tasks(np.array([0, 0, 1]), np.array([0, 0, 1]), np.array([7, 7, 8]))
    one, other = np.array([0]), np.array([1])
    for allowed, said in ((True, 0.02), (False, np.inf)):
        drawn = TransferShares(
            MEASURED, tasks, seed=0, scaled=True, correlation=0.58, same_data_merges=allowed
        )
        assert drawn.shares(one, other).tolist() == [0.02]
        assert drawn.predicted_shares(one, other).tolist() == [said]


def test_the_bank_takes_the_same_data_first_and_else_the_best_that_helps() -> None:
    jobs = builders.jobs([1.0] * 4)
    tasks = Tasks(np.array([0, 1, 2, 3]), np.array([0, 1, 0, 0]), np.array([0, 1, 2, 0]))
    jobs = replace(jobs, tasks=tasks)
    world = builders.world(related=0.4, unrelated=1.5)
    said = TransferShares(world, tasks, seed=0, scaled=True, correlation=1.0)
    bank = Bank(jobs, np.random.default_rng(0), 8)
    assert bank.best_donor(2, said) is None
    bank.add(np.array([1]))
    # Only an unrelated job has ended.
    assert bank.best_donor(2, said) is None
    bank.add(np.array([0]))
    assert bank.best_donor(2, said) == 0
    assert bank.best_donor(3, said) == 0
