"""What holds for every policy, workload and market."""

from __future__ import annotations

import math

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from scheduler.experiments.tiers.demands import demands
from scheduler.experiments.tiers.loop import run_loop
from scheduler.experiments.tiers.policies import POLICIES
from scheduler.experiments.tiers.printed_demand import demand_printed
from scheduler.experiments.tiers.run import outcome, prepare
from scheduler.experiments.tiers.state import JobStage, RunState
from scheduler.experiments.tiers.supply import SupplyRules
from scheduler.experiments.tiers.workload import OwnerRules, Workload
from scheduler.tiers.demand import list_window_lengths, measure_demand

#: Policies without gangs (hpa) or with a pool of fixed size are drawn with care.
NAMES = sorted(name for name in POLICIES if not name.startswith("hpa"))


@st.composite
def worlds(draw: st.DrawFn) -> RunState:
    rows = draw(
        st.lists(
            st.tuples(
                st.floats(0.0, 5000.0), st.floats(1.0, 30_000.0), st.sampled_from((1, 1, 1, 2, 4))
            ),
            min_size=1,
            max_size=25,
        )
    )
    rows.sort()
    arrive, duration, gpus = (np.array(column, dtype=float) for column in zip(*rows, strict=True))
    policy = draw(st.sampled_from(NAMES))
    caps = st.integers(4, 12)
    return prepare(
        workload=Workload("drawn", arrive - arrive[0], duration, gpus.astype(np.int64)),
        policy=policy,
        seed=draw(st.integers(0, 50)),
        cap=draw(caps if policy.endswith("-static") else st.none() | caps),
        supply=SupplyRules(
            offers=draw(st.integers(0, 8)),
            vanish=draw(st.sampled_from((0.0, 0.3))),
            mean_life_h=draw(st.sampled_from((math.inf, 4.0))),
            leaves=0.1,
            restlessness=0.3,
        ),
        owners=OwnerRules(
            die_early=draw(st.sampled_from((0.0, 0.4))),
            dying=draw(st.sampled_from(("uniform", "soon"))),
        ),
    )


@settings(max_examples=150, deadline=None)
@given(worlds())
def test_no_job_is_lost_and_none_ends_before_its_work_is_done(world: RunState) -> None:
    count = len(world.jobs)
    assert run_loop(world, count) == count
    track, jobs = world.track, world.jobs
    assert (track["state"] == int(JobStage.DONE)).all()
    jct = track["finish_s"] - jobs["arrive_s"]
    # Conservation: completion time is run time, boots, queueing and moves, or more
    # where a start-up of the serverful tier is waited for.
    parts = jobs["run_s"] + track["booting_s"] + track["waited_s"] + track["moving_s"]
    np.testing.assert_allclose(jct, parts, rtol=1e-9, atol=1e-5)


@settings(max_examples=150, deadline=None)
@given(worlds())
def test_workers_never_exceed_the_cap_and_none_stays_rented(world: RunState) -> None:
    run_loop(world, len(world.jobs))
    tally = world.tally[0]
    assert tally["peak"] <= world.choice["cap"][0]
    assert (tally["live"], tally["idle"], tally["unpromised_boots"]) == (0, 0, 0)
    assert (tally["serverful_jobs"], tally["queued_gpus"], tally["serverless_gpus"]) == (0, 0, 0)
    assert tally["saving_victims"] == 0
    assert tally["empty"] == len(world.pool)
    assert not world.taken.any()
    assert (tally["near"], world.late.any()) == (0, False)
    assert (world.pool["job"] == -1).all()


@settings(max_examples=150, deadline=None)
@given(worlds())
def test_serverless_is_billed_from_request_to_release(world: RunState) -> None:
    run_loop(world, len(world.jobs))
    tally, track, jobs = world.tally[0], world.track, world.jobs
    spent = float(track["serverless_s"].sum())
    assert tally["serverless_usd"] == pytest.approx(spent * 2.10 / 3600.0)
    stayed = track["moved"] == 0
    np.testing.assert_allclose(
        track["serverless_s"][stayed],
        ((track["finish_s"] - jobs["arrive_s"]) * jobs["gpus"])[stayed],
    )
    # Serverful rent pays at least for the work done there, at the cheapest price.
    moved_s = ((jobs["run_s"] + track["moving_s"]) * jobs["gpus"])[~stayed].sum() - spent
    rent = tally["marketplace_usd"] + tally["conventional_usd"]
    assert rent >= 0.38 * moved_s / 3600.0 - 1e-6


@settings(max_examples=150, deadline=None)
@given(worlds(), st.floats(0.0, 1.0))
def test_demand_kept_up_to_date_is_the_demand_counted_anew(world: RunState, share: float) -> None:
    run_loop(world, max(1, int(share * len(world.jobs))))
    now, choice = float(world.tally["end_s"][0]), world.choice[0]
    track = world.track
    held = (track["moved"] == 1) & (track["state"] != int(JobStage.DONE))
    jobs, track = world.jobs[held], track[held]
    state = track["state"]
    running, restoring = state == int(JobStage.SERVERFUL), state == int(JobStage.RESTORING)
    left = np.maximum(
        0.0, jobs["predicted_s"] - track["done_s"] - running * (now - track["since_s"])
    )
    windows = list_window_lengths(step_s=choice.tick_s, count=int(choice.windows))
    gpus = jobs["gpus"].astype(float)
    if choice.printed_demand:
        counted = demand_printed(
            remaining_s=left, due_in_s=jobs["due_s"] - now, gpus=gpus, windows_s=windows
        )
    else:
        due = ~running & ~restoring & (track["restores"] == 1)
        left += due * choice.restore_s
        left += restoring * np.maximum(0.0, track["since_s"] + choice.restore_s - now)
        counted = measure_demand(
            remaining_s=left, slack_s=jobs["due_s"] - now - left, gpus=gpus, windows_s=windows
        )
    np.testing.assert_allclose(demands(world, now), counted, rtol=1e-9, atol=1e-3)
    # Asked again, what has become late is not counted twice.
    np.testing.assert_allclose(demands(world, now), counted, rtol=1e-9, atol=1e-3)


@settings(max_examples=40, deadline=None)
@given(worlds())
def test_a_run_is_the_same_bit_for_bit_when_repeated(world: RunState) -> None:
    again = world._replace(
        track=world.track.copy(),
        pool=world.pool.copy(),
        taken=world.taken.copy(),
        late=world.late.copy(),
        tally=world.tally.copy(),
        learned=type(world.learned)(*(table.copy() for table in world.learned)),
    )
    run_loop(world, len(world.jobs))
    run_loop(again, len(world.jobs))
    assert world.track.tobytes() == again.track.tobytes()
    assert world.tally.tobytes() == again.tally.tobytes()
    assert outcome(world, policy="", workload="", seed=0, cap=None).cost_usd >= 0.0


def test_the_backlog_of_a_threshold_policy_is_served_by_deadline() -> None:
    # One worker, all jobs there before it is ready: they run in order of deadline.
    rng = np.random.default_rng(11)
    duration = rng.uniform(10.0, 300.0, 40)
    world = prepare(
        workload=Workload("edf", np.linspace(0.0, 1.0, 40), duration, np.ones(40, np.int64)),
        policy="tiresias-np-static",
        seed=2,
        cap=1,
        supply=SupplyRules(offers=0),
    )
    world.choice["order"] = 0
    run_loop(world, 40)
    by_finish = np.argsort(world.track["finish_s"])
    assert by_finish.tolist() == np.argsort(world.jobs["due_s"]).tolist()


def test_a_static_pool_waits_as_erlang_says() -> None:
    servers, load, mean_s, count = 8, 6.4, 100.0, 200_000
    rng = np.random.default_rng(7)
    arrive = np.cumsum(rng.exponential(mean_s / load, count))
    world = prepare(
        workload=Workload("mmc", arrive, rng.exponential(mean_s, count), np.ones(count, np.int64)),
        policy="tiresias-np-static",
        seed=1,
        cap=servers,
        supply=SupplyRules(offers=0, conventional_boot_s=(0.0, 0.0)),
    )
    run_loop(world, count)
    terms = [load**k / math.factorial(k) for k in range(servers)]
    last = load**servers / math.factorial(servers) * servers / (servers - load)
    waits = last / (sum(terms) + last)
    expected = waits * mean_s / (servers - load)
    assert float(world.track["waited_s"].mean()) == pytest.approx(expected, rel=0.05)
