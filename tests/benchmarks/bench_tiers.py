"""Seren-size simulation and a live tick: ``python -m tests.benchmarks.bench_tiers``."""

from __future__ import annotations

import argparse
import statistics
import time

import numpy as np

from scheduler.simulator.loop import run_loop
from scheduler.simulator.run import outcome, prepare, simulate
from scheduler.simulator.workload import calibrated_burst, seren_like
from scheduler.tiers.demand import demand, pressure, window_lengths

#: Seconds each policy may take on one core, and the live tick.
LIMITS_S = {"improved": 20.0, "corrected": 10.0}
TICK_LIMIT_S = 0.010


def main() -> None:
    parse = argparse.ArgumentParser(description=__doc__)
    parse.add_argument("--jobs", type=int, default=818_327)
    options = parse.parse_args()
    workload = seren_like(seed=1, jobs=options.jobs).one_gpu_each()
    for policy, limit_s in LIMITS_S.items():
        # Compiles, or loads what was compiled before.
        simulate(workload=calibrated_burst(seed=0), policy=policy, seed=0, cap=None)
        digests: list[bytes] = []
        for _ in range(2):
            world = prepare(workload=workload, policy=policy, seed=1, cap=None)
            started = time.perf_counter()
            run_loop(world, len(workload))
            took = time.perf_counter() - started
            digests.append(world.track.tobytes())
            found = outcome(world, policy=policy, workload="seren", seed=1, cap=None)
            print(
                f"{policy:10s} {options.jobs:,} jobs in {took:6.2f} s (limit {limit_s:.0f}), "
                f"{options.jobs / took:,.0f} jobs/s, mean JCT {found.mean_jct_s:,.0f} s"
            )
        print(f"{policy:10s} bit-identical: {digests[0] == digests[1]}")
    print(
        f"live tick  10,000 jobs: {1000 * live_tick_s():.2f} ms (limit {1000 * TICK_LIMIT_S:.0f})"
    )


def live_tick_s() -> float:
    """Median time of demand and pressure over 10,000 live jobs."""
    rng = np.random.default_rng(0)
    windows = window_lengths(step_s=60.0, count=30)
    remaining, slack = rng.uniform(10, 40_000, 10_000), rng.uniform(-600, 90_000, 10_000)
    gpus = np.ones(10_000)
    times: list[float] = []
    for _ in range(50):
        started = time.perf_counter()
        found = demand(remaining_s=remaining, slack_s=slack, gpus=gpus, windows_s=windows)
        pressure(found, windows, 4000.0)
        times.append(time.perf_counter() - started)
    return statistics.median(times)


if __name__ == "__main__":
    main()
