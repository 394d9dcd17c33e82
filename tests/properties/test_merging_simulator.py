"""What holds in every simulated cluster, whatever the policy."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from scheduler.experiments.merging.policies import POLICIES
from scheduler.experiments.merging.run import simulate
from scheduler.experiments.merging.transfer import WORLDS
from scheduler.experiments.merging.workload import Mix, fine_tuning_day


@settings(max_examples=4, deadline=None)
@pytest.mark.parametrize("policy", sorted(POLICIES))
@given(
    seed=st.integers(0, 10_000),
    load=st.sampled_from((0.5, 1.0, 3.0)),
    related=st.sampled_from((0.0, 0.5, 1.0)),
    pipeline=st.sampled_from((0.0, 0.3)),
    world=st.sampled_from(sorted(WORLDS)),
)
def test_every_job_ends_within_what_the_gpus_can_do(
    policy: str, seed: int, load: float, related: float, pipeline: float, world: str
) -> None:
    # Plans that give out more GPUs than there are raise in the cluster.
    mix = Mix(related=related, pipeline=pipeline)
    jobs = fine_tuning_day(seed=seed, jobs=16, gpus=16, load=load, mix=mix)
    found = simulate(jobs=jobs, policy=policy, world=WORLDS[world], seed=seed, gpus=16)
    assert found.finished == 16
    assert 0.0 < found.p50_jct_s <= found.p99_jct_s
    assert found.gpu_hours <= 16 * found.makespan_s / 3600.0
    assert found.makespan_s >= jobs.arrive_s[-1]
    if policy in ("srtf", "tiresias", "themis-like", "optimus-like", "no-merging"):
        # Without transfer nobody needs less than the work, on one GPU each.
        assert found.gpu_hours >= jobs.work_s.sum() / 3600.0 - 1e-6
        fastest = jobs.work_s * (1 + jobs.loss * 15) / 16
        assert found.mean_jct_s >= float(np.mean(fastest))
    if not POLICIES[policy].warm_starts:
        assert found.warm == 0.0
