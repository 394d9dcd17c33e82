"""One run: a workload, a market and a policy in, an outcome out."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from scheduler.experiments.tiers.choices import Choice, Demotion, Scaling
from scheduler.experiments.tiers.loop import run_loop
from scheduler.experiments.tiers.policies import POLICIES
from scheduler.experiments.tiers.state import RunState, new_world
from scheduler.experiments.tiers.supply import SupplyRules, draw_supply
from scheduler.experiments.tiers.workload import OwnerRules, Workload, draw_jobs
from scheduler.tiers.rules import TierRules

Floats = NDArray[np.float64]


@dataclass(frozen=True, slots=True)
class TierOutcome:
    """What one run measured. Times in seconds, money in dollars."""

    policy: str
    workload: str
    seed: int
    cap: int | None
    jobs: int
    jct_s: Floats
    mean_jct_s: float
    p50_jct_s: float
    p95_jct_s: float
    misses: int
    serverless_usd: float
    marketplace_usd: float
    conventional_usd: float
    #: Share of jobs that never left serverless.
    wholly_serverless: float
    #: Means over all jobs: completion time less run time, and its parts.
    waiting_s: float
    boot_s: float
    queue_s: float
    moving_s: float
    peak_serverful: int
    peak_serverless: int
    demotions: int
    preemptions: int
    vanished_offers: int
    node_failures: int
    end_s: float

    @property
    def cost_usd(self) -> float:
        return self.serverless_usd + self.marketplace_usd + self.conventional_usd

    @property
    def miss_share(self) -> float:
        return self.misses / self.jobs


def simulate(
    *,
    workload: Workload,
    policy: str | Choice,
    seed: int,
    cap: int | None,
    rules: TierRules | None = None,
    supply: SupplyRules | None = None,
    owners: OwnerRules | None = None,
) -> TierOutcome:
    """Runs one policy on one workload.

    Parameters
    ----------
    workload : Workload
        Jobs, from a generator or a trace.
    policy : str or Choice
        A name of :data:`~scheduler.experiments.tiers.policies.POLICIES`, or a choice made by
        hand.
    seed : int
        Draws deadlines, deaths, start-up times and the market; two policies under
        one seed meet the same.
    cap : int or None
        Serverful GPUs at once; ``None`` for no limit.
    rules, supply, owners
        What differs from the defaults.

    Raises
    ------
    ValueError
        For an unknown policy, a cap below one, a gang above the cap of a policy without
        a serverless tier, or a run that does not come to an end.
    """
    world = prepare(
        workload=workload,
        policy=policy,
        seed=seed,
        cap=cap,
        rules=rules,
        supply=supply,
        owners=owners,
    )
    # Twenty times as long as all jobs one after another, moves included.
    stop_s = workload.span_s + 20.0 * float((workload.duration_s + 1000.0).sum())
    done = run_loop(world, len(workload), stop_s)
    if done < len(workload):
        raise ValueError(
            f"after {stop_s / 86400.0:,.0f} days {done} of {len(workload)} jobs are done: workers "
            "fail sooner than jobs get on; let them live longer (--mean-life-h)"
        )
    name = policy if isinstance(policy, str) else "choice"
    return outcome(world, policy=name, workload=workload.name, seed=seed, cap=cap)


def prepare(
    *,
    workload: Workload,
    policy: str | Choice,
    seed: int,
    cap: int | None,
    rules: TierRules | None = None,
    supply: SupplyRules | None = None,
    owners: OwnerRules | None = None,
    record_ticks: int = 0,
) -> RunState:
    """The world :func:`simulate` runs, before its first event."""
    if cap is not None and cap < 1:
        raise ValueError(f"cap must be at least 1, got {cap}; leave it out for no limit")
    if isinstance(policy, str):
        if policy not in POLICIES:
            raise ValueError(f"no policy {policy!r}; choose one of {', '.join(sorted(POLICIES))}")
        chosen = POLICIES[policy](rules or TierRules(), cap)
    else:
        chosen = policy
    widest = int(workload.gpus.max())
    if chosen.demotion == Demotion.SERVERFUL_ONLY and widest > chosen.cap:
        raise ValueError(
            f"a job of {workload.name} needs {widest} GPUs at once and the cap is {chosen.cap}: "
            f"a policy without a serverless tier cannot run it; raise the cap or use one GPU each"
        )
    if chosen.scaling in (Scaling.HPA, Scaling.HPA_ONE) and widest > 1:
        raise ValueError(
            f"a job of {workload.name} needs {widest} GPUs at once: the autoscaler reads "
            "utilisation and never gathers a gang of idle workers; use one GPU each"
        )
    supply = supply or SupplyRules()
    jobs = draw_jobs(workload=workload, owners=owners or OwnerRules(), supply=supply, seed=seed)
    span_s = min(workload.span_s, 200 * 86400.0)
    return new_world(
        chosen,
        jobs,
        draw_supply(rules=supply, seed=seed, span_s=span_s),
        record_ticks=record_ticks,
    )


def outcome(
    world: RunState, *, policy: str, workload: str, seed: int, cap: int | None
) -> TierOutcome:
    """Reads the figures of a finished world."""
    jobs, track, tally = world.jobs, world.track, world.tally[0]
    jct = track.finish_s - jobs.arrive_s
    p50, p95 = np.percentile(jct, [50, 95])
    return TierOutcome(
        policy=policy,
        workload=workload,
        seed=seed,
        cap=cap,
        jobs=len(jct),
        jct_s=jct,
        mean_jct_s=float(jct.mean()),
        p50_jct_s=float(p50),
        p95_jct_s=float(p95),
        misses=int((track.finish_s > jobs.due_s).sum()),
        serverless_usd=float(tally["serverless_usd"]),
        marketplace_usd=float(tally["marketplace_usd"]),
        conventional_usd=float(tally["conventional_usd"]),
        wholly_serverless=float((track.moved == 0).mean()),
        waiting_s=float((jct - jobs.run_s).mean()),
        boot_s=float(track.booting_s.mean()),
        queue_s=float(track.waited_s.mean()),
        moving_s=float(track.moving_s.mean()),
        peak_serverful=int(tally["peak"]),
        peak_serverless=int(tally["peak_serverless"]),
        demotions=int(tally["demotions"]),
        preemptions=int(tally["preemptions"]),
        vanished_offers=int(tally["vanished"]),
        node_failures=int(tally["failures"]),
        end_s=float(tally["end_s"]),
    )
