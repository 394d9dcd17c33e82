"""Seren-size simulation and a live tick: ``python -m tests.benchmarks.bench_tiers``."""

from __future__ import annotations

import argparse
import hashlib
import statistics
import time

import numpy as np

from scheduler.experiments.tiers.loop import run_loop
from scheduler.experiments.tiers.run import outcome, prepare, simulate
from scheduler.experiments.tiers.workload import Workload, calibrated_burst, seren_like
from scheduler.tiers.demand import compute_pressure, list_window_lengths, measure_demand

#: Seconds each policy may take on one core, and the live tick.
LIMITS_S = {"improved": 20.0, "corrected": 10.0}
TICK_LIMIT_S = 0.010
#: Serverful GPUs at once. Under 30 the trace asks for nearly three times the tier.
CAPS = (None, 30)


def main() -> None:
    parse = argparse.ArgumentParser(description=__doc__)
    parse.add_argument("--jobs", type=int, default=818_327)
    options = parse.parse_args()
    workload = seren_like(seed=1, jobs=options.jobs).one_gpu_each()
    for policy in LIMITS_S:
        # Compiles, or loads what was compiled before.
        simulate(workload=calibrated_burst(seed=0), policy=policy, seed=0, cap=None)
        for cap in CAPS:
            run_twice(workload, policy, cap)
    print(
        f"live tick  10,000 jobs: {1000 * live_tick_s():.2f} ms (limit {1000 * TICK_LIMIT_S:.0f})"
    )


def run_twice(workload: Workload, policy: str, cap: int | None) -> None:
    """CPU time of the better of two runs, which must agree bit for bit."""
    digests: list[bytes] = []
    times: list[float] = []
    for _ in range(2):
        world = prepare(workload=workload, policy=policy, seed=1, cap=cap)
        started = time.process_time()
        run_loop(world, len(workload))
        times.append(time.process_time() - started)
        digests.append(hashlib.sha256(world.track.tobytes() + world.tally.tobytes()).digest())
    found = outcome(world, policy=policy, workload="seren", seed=1, cap=cap)
    print(
        f"{policy:10s} {'no cap' if cap is None else f'{cap} GPUs':8s} {len(workload):,} jobs in "
        f"{min(times):6.2f} s (limit {LIMITS_S[policy]:.0f}), "
        f"{len(workload) / min(times):,.0f} jobs/s, mean JCT {found.mean_jct_s:,.0f} s, "
        f"bit-identical: {digests[0] == digests[1]}"
    )


def live_tick_s() -> float:
    """Median time of demand and pressure over 10,000 live jobs."""
    rng = np.random.default_rng(0)
    windows = list_window_lengths(step_s=60.0, count=30)
    remaining, slack = rng.uniform(10, 40_000, 10_000), rng.uniform(-600, 90_000, 10_000)
    gpus = np.ones(10_000)
    times: list[float] = []
    for _ in range(50):
        started = time.process_time()
        found = measure_demand(remaining_s=remaining, slack_s=slack, gpus=gpus, windows_s=windows)
        compute_pressure(found, windows, 4000.0)
        times.append(time.process_time() - started)
    return statistics.median(times)


if __name__ == "__main__":
    main()
