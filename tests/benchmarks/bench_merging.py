"""One decision on 240 GPUs, a donor search, a run: ``python -m tests.benchmarks.bench_merging``."""

from __future__ import annotations

import argparse
import json
import time
from collections.abc import Sequence

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


def main(arguments: Sequence[str] | None = None) -> None:
    parse = argparse.ArgumentParser(description=__doc__)
    parse.add_argument("--jobs", type=int, default=10_000)
    parse.add_argument("--gpus", type=int, default=240)
    parse.add_argument("--seeds", type=int, default=5)
    options = parse.parse_args(arguments)
    for fresh, limit in ((1.0, NEW_LIMIT_S), (0.04, RUNNING_LIMIT_S)):
        found = [time_decision(fresh, seed, options.gpus) for seed in range(options.seeds)]
        report(
            f"{options.gpus} jobs, {fresh:.0%} new, the worst",
            s=max(seconds for seconds, _ in found),
            limit_s=limit,
            proven=sum(proven for _, proven in found),
            seeds=options.seeds,
        )
    report(f"nearest of {DONORS:,} donors", s=time_search(), limit_s=SEARCH_LIMIT_S)
    jobs = fine_tuning_day(seed=0, jobs=options.jobs, gpus=options.gpus)
    for policy in ("ymir-chosen", "warm-starts", "optimus-like", "srtf"):
        started = time.process_time()
        run = simulate(jobs=jobs, policy=policy, world=MEASURED, seed=0)
        seconds = time.process_time() - started
        report(
            f"{options.jobs:,} jobs, {policy}",
            s=seconds,
            limit_s=SIMULATION_LIMIT_S,
            mean_jct_s=run.mean_jct_s,
        )


def report(case: str, **figures: float) -> None:
    rounded = {name: round(value, 4) for name, value in figures.items()}
    print(json.dumps({"bench": "merging", "case": case, **rounded}), flush=True)


def time_decision(fresh: float, seed: int, gpus: int) -> tuple[float, bool]:
    """CPU seconds of one decision, and whether it was proven."""
    instance = draw_instance(jobs=gpus, gpus=gpus, fresh=fresh, seed=seed)
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
