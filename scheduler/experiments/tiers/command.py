"""``python -m scheduler simulate tiers``: one policy on one workload."""

from __future__ import annotations

import argparse
import json
import math
import sys
from collections.abc import Sequence
from pathlib import Path

from scheduler.experiments.tiers.measures import as_json
from scheduler.experiments.tiers.policies import POLICIES
from scheduler.experiments.tiers.run import TierOutcome, simulate
from scheduler.experiments.tiers.supply import SupplyRules
from scheduler.experiments.tiers.traces import read_trace
from scheduler.experiments.tiers.workload import (
    OwnerRules,
    Workload,
    calibrated_burst,
    seren_like,
    steady_state,
)

#: Generators ``--trace`` knows besides a path, with the jobs each makes by default.
SYNTHETIC = {"burst": 200, "steady": 10_000, "seren-like": 818_327}
#: Memory holds no more: about 300 bytes each.
MOST_JOBS = 10_000_000


def parser() -> argparse.ArgumentParser:
    parse = argparse.ArgumentParser(
        prog="python -m scheduler simulate tiers",
        description="Run one tier policy on a trace and print what it measured.",
    )
    parse.add_argument("--policy", default="improved", choices=sorted(POLICIES))
    parse.add_argument(
        "--trace",
        default="burst",
        help="a CSV file with submit_s, duration_s and, if you like, gpus and deadline_s; "
        f"or one of {', '.join(SYNTHETIC)}",
    )
    parse.add_argument("--seed", type=int, default=0)
    parse.add_argument("--cap", type=int, help="serverful GPUs at once; no limit by default")
    parse.add_argument("--jobs", type=int, help="how many jobs to generate or read")
    parse.add_argument(
        "--gpus",
        choices=("one", "trace"),
        default="one",
        help="one GPU per job as in the paper, or the gangs of the trace",
    )
    parse.add_argument("--die-early", type=float, default=0.0, help="share of jobs that die early")
    parse.add_argument("--dying", choices=("uniform", "soon"), default="uniform")
    parse.add_argument("--vanish", type=float, default=0.0, help="chance an offer dies in its boot")
    parse.add_argument("--mean-life-h", type=float, default=math.inf, help="hours to node failure")
    parse.add_argument("--json", action="store_true", help="print one JSON object")
    return parse


def main(argv: Sequence[str]) -> int:
    options = parser().parse_args(argv)
    try:
        workload = workload_named(options.trace, seed=options.seed, jobs=options.jobs)
        if options.gpus == "one":
            workload = workload.one_gpu_each()
        run = simulate(
            workload=workload,
            policy=options.policy,
            seed=options.seed,
            cap=options.cap,
            supply=SupplyRules(vanish=options.vanish, mean_life_h=options.mean_life_h),
            owners=OwnerRules(die_early=options.die_early, dying=options.dying),
        )
    except ValueError as error:
        print(f"error: {error}", file=sys.stderr)
        return 2
    print(json.dumps(as_json(run)) if options.json else as_text(run))
    return 0


def workload_named(name: str, *, seed: int, jobs: int | None) -> Workload:
    """A generator by name, or the trace file at that path."""
    if jobs is not None and not 1 <= jobs <= MOST_JOBS:
        raise ValueError(f"--jobs must be at least 1 and at most {MOST_JOBS:,}, got {jobs}")
    if seed < 0:
        raise ValueError(f"--seed must not be below zero, got {seed}")
    if name not in SYNTHETIC:
        return read_trace(Path(name), limit=jobs)
    count = jobs or SYNTHETIC[name]
    if name == "burst":
        return calibrated_burst(seed=seed, jobs=count)
    if name == "steady":
        return steady_state(seed=seed, jobs=count)
    return seren_like(seed=seed, jobs=count)


def as_text(run: TierOutcome) -> str:
    """The same figures for a reader."""
    cap = "no cap" if run.cap is None else f"cap {run.cap}"
    return (
        f"{run.policy} on {run.workload} ({run.jobs} jobs, {cap}, seed {run.seed})\n"
        f"completion time  mean {run.mean_jct_s:,.0f} s, P50 {run.p50_jct_s:,.0f} s, "
        f"P95 {run.p95_jct_s:,.0f} s\n"
        f"waiting          mean {run.waiting_s:,.0f} s (boot {run.boot_s:,.0f}, "
        f"queue {run.queue_s:,.0f}, moves {run.moving_s:,.0f})\n"
        f"deadlines missed {run.misses} ({run.miss_share:.2%})\n"
        f"cost             ${run.cost_usd:,.2f} (serverless {run.serverless_usd:,.2f}, "
        f"marketplace {run.marketplace_usd:,.2f}, conventional {run.conventional_usd:,.2f})\n"
        f"serverless       {run.wholly_serverless:.1%} of jobs never left it\n"
        f"peak workers     {run.peak_serverful} serverful, {run.peak_serverless} serverless"
    )
