"""One decision on 240 GPUs, a donor search, a run: ``python -m tests.benchmarks.bench_merging``."""

from __future__ import annotations

import argparse
import time

import numpy as np

from scheduler.experiments.merging.instances import draw_instance
from scheduler.experiments.merging.run import simulate
from scheduler.experiments.merging.task_merger import CHOSEN, merge_tasks
from scheduler.experiments.merging.transfer import MEASURED
from scheduler.experiments.merging.workload import fine_tuning_day
from scheduler.merging.warm_starts import choose_candidates

#: CPU seconds of one decision, all jobs new and most of them running, and of a simulation.
NEW_LIMIT_S, RUNNING_LIMIT_S, SIMULATION_LIMIT_S = 2.0, 0.060, 60.0
#: CPU seconds of the nearest eight among this many donors.
DONORS, SEARCH_LIMIT_S = 10_000, 0.020


def main() -> None:
    parse = argparse.ArgumentParser(description=__doc__)
    parse.add_argument("--jobs", type=int, default=10_000)
    parse.add_argument("--seeds", type=int, default=5)
    options = parse.parse_args()
    for fresh, limit in ((1.0, NEW_LIMIT_S), (0.04, RUNNING_LIMIT_S)):
        found = [time_decision(fresh, seed) for seed in range(options.seeds)]
        print(
            f"240 jobs, {fresh:.0%} new: worst {1000 * max(s for s, _ in found):.0f} ms "
            f"(limit {1000 * limit:.0f}), {sum(proven for _, proven in found)} of "
            f"{options.seeds} proven"
        )
    print(
        f"nearest of {DONORS:,} donors: {1000 * time_search():.1f} ms "
        f"(limit {1000 * SEARCH_LIMIT_S:.0f})"
    )
    jobs = fine_tuning_day(seed=0, jobs=options.jobs, gpus=240)
    for policy in ("ymir-chosen", "warm-starts", "optimus-like", "srtf"):
        started = time.process_time()
        run = simulate(jobs=jobs, policy=policy, world=MEASURED, seed=0)
        seconds = time.process_time() - started
        print(
            f"{policy:13s} {options.jobs:,} jobs in {seconds:5.1f} s "
            f"(limit {SIMULATION_LIMIT_S:.0f}), mean JCT {run.mean_jct_s:,.0f} s"
        )


def time_decision(fresh: float, seed: int) -> tuple[float, bool]:
    """CPU seconds of one decision, and whether it was proven."""
    instance = draw_instance(jobs=240, gpus=240, fresh=fresh, seed=seed)
    started = time.process_time()
    merge = merge_tasks(instance, CHOSEN)
    return time.process_time() - started, merge.optimal


def time_search() -> float:
    """Mean CPU seconds of one search."""
    donors = np.random.default_rng(0).normal(size=(DONORS, 256)).astype(np.float32)
    donors /= np.linalg.norm(donors, axis=1, keepdims=True)
    started = time.process_time()
    for target in donors[:20]:
        choose_candidates(target, donors)
    return (time.process_time() - started) / 20


if __name__ == "__main__":
    main()
