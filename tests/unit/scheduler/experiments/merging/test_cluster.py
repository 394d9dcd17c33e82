"""The elastic cluster by hand: single jobs, merged pairs, harm, and what plans may do."""

from __future__ import annotations

import numpy as np
import pytest

from scheduler.experiments.merging.cluster import Cluster, Merging, MergingPlan
from scheduler.experiments.merging.transfer import World
from scheduler.experiments.merging.workload import Jobs, speed_up
from tests.unit.scheduler.experiments.merging import builders


def cluster(found: Jobs, truth: World, *, gpus: int = 8, switch_s: float = 10.0) -> Cluster:
    made = Cluster(found, gpus, builders.transfer(found, truth), switch_s=switch_s, noticed=0.0)
    made.admit(0.0)
    return made


def plan(gpus: list[int], *merges: Merging) -> MergingPlan:
    return MergingPlan(np.array(gpus), merges)


def test_a_job_pauses_for_the_switch_and_then_runs_at_its_speed() -> None:
    here = cluster(builders.jobs([100.0]), builders.world())
    here.apply(here.view(), plan([2]))
    assert here.soonest_end_s() == 60.0
    assert here.advance(40.0) == 0
    assert here.left_s.tolist() == [40.0]
    assert here.advance(120.0) == 1
    assert here.finish_s.tolist() == [60.0]
    assert (here.done, here.busy_gpu_s, len(here.units)) == (1, 120.0, 0)


def test_added_gpus_speed_a_job_up_ever_less() -> None:
    loss = np.array([0.0, 0.1])
    assert speed_up(loss, np.array([4, 4])).tolist() == pytest.approx([4.0, 4 / 1.3])
    assert speed_up(loss, np.array([0, 1])).tolist() == [0.0, 1.0]


def test_a_job_without_gpus_waits_and_loses_nothing_but_time() -> None:
    here = cluster(builders.jobs([100.0]), builders.world())
    here.apply(here.view(), plan([1]))
    here.advance(50.0)
    here.apply(here.view(), plan([0]))
    here.advance(80.0)
    assert (here.left_s[0], here.waited_s[0], here.attained_s[0]) == (60.0, 30.0, 50.0)
    assert here.switches == 1


def test_keeping_the_same_gpus_costs_no_switch() -> None:
    here = cluster(builders.jobs([100.0]), builders.world())
    here.apply(here.view(), plan([2]))
    here.advance(30.0)
    here.apply(here.view(), plan([2]))
    assert (here.switches, here.pause_s[0]) == (1, 0.0)


def test_the_target_of_a_temporal_pair_goes_on_where_the_donor_ends() -> None:
    here = cluster(builders.jobs([100.0, 200.0]), builders.world(related=0.5))
    here.apply(here.view(), plan([2, 0], Merging(0, 1, spatial=False)))
    assert here.view().members.tolist() == [2]
    here.advance(60.0)
    assert here.finish_s[0] == 60.0
    assert here.held.tolist() == [0, 2]
    # Half of its work, and its own switch.
    here.advance(200.0)
    assert here.finish_s.tolist() == [60.0, 60.0 + 10.0 + 50.0]
    assert here.busy_gpu_s == 2 * 120.0
    assert here.temporal.tolist() == [True, True]


def test_both_of_a_temporal_pair_can_end_within_one_stretch() -> None:
    here = cluster(builders.jobs([100.0, 200.0]), builders.world(related=0.5))
    here.apply(here.view(), plan([2, 0], Merging(0, 1, spatial=False)))
    here.advance(500.0)
    assert here.finish_s.tolist() == [60.0, 120.0]
    assert (here.done, here.busy_gpu_s, here.attained_s.tolist()) == (2, 240.0, [120.0, 120.0])


def test_a_harmful_donor_costs_two_epochs_and_no_more() -> None:
    # Four epochs of 200 s: two are lost, then it begins again from the base.
    here = cluster(builders.jobs([100.0, 200.0], related=False), builders.world(unrelated=1.8))
    here.apply(here.view(), plan([1, 0], Merging(0, 1, spatial=False)))
    here.advance(1000.0)
    assert here.finish_s.tolist() == [110.0, 110.0 + 10.0 + 300.0]
    assert here.harmed == 1


def test_jobs_tuned_together_end_together() -> None:
    here = cluster(builders.jobs([100.0, 200.0]), builders.world(spatial=0.5))
    here.apply(here.view(), plan([3, 0], Merging(0, 1, spatial=True)))
    here.advance(100.0)
    assert here.finish_s.tolist() == [60.0, 60.0]
    assert (here.done, here.spatial.tolist()) == (2, [True, True])


def test_harmful_joint_tuning_comes_apart_after_two_epochs() -> None:
    here = cluster(builders.jobs([100.0, 300.0]), builders.world(spatial=1.5))
    here.apply(here.view(), plan([2, 0], Merging(0, 1, spatial=True)))
    # Half of the epochs of 1.5 times 400 s, on two GPUs.
    assert here.soonest_end_s() == 160.0
    here.advance(160.0)
    assert (here.done, sorted(here.units.tolist())) == (0, [0, 1])
    assert here.left_s.tolist() == [50.0, 150.0]
    assert here.view().fresh.tolist() == [False, False]


def test_a_warm_start_needs_its_share_of_the_work() -> None:
    here = cluster(builders.jobs([100.0, 200.0]), builders.world(related=0.25))
    here.start_warm(1, donor=0)
    assert (here.left_s.tolist(), here.warm) == ([100.0, 50.0], 1)


def test_a_plan_cannot_give_more_than_there_is() -> None:
    here = cluster(builders.jobs([100.0, 100.0]), builders.world())
    for gpus in ([5, 4], [-1, 2]):
        with pytest.raises(ValueError, match="of 8 GPUs"):
            here.apply(here.view(), plan(gpus))
    assert here.held.tolist() == [0, 0]
