"""``python -m scheduler simulate prompts``: one policy on one drawn trace."""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Mapping, Sequence

from scheduler.experiments.prompts.outcome import TuningOutcome
from scheduler.experiments.prompts.policies import POLICIES
from scheduler.experiments.prompts.run import GPUS, simulate
from scheduler.experiments.prompts.workload import LOADS


def make_parser() -> argparse.ArgumentParser:
    parse = argparse.ArgumentParser(
        prog="python -m scheduler simulate prompts",
        description="Run one policy on 20 minutes of prompt-tuning jobs; print what it measured.",
    )
    parse.add_argument("--policy", default="chosen", choices=POLICIES)
    parse.add_argument("--load", default="medium", choices=tuple(LOADS))
    parse.add_argument(
        "--slo", type=float, default=1.0, help="S: SLO over duration, start-up apart"
    )
    parse.add_argument("--seed", type=int, default=0)
    parse.add_argument("--gpus", type=int, default=GPUS, help="GPUs of the cluster")
    parse.add_argument("--json", action="store_true", help="print one JSON object")
    return parse


def main(argv: Sequence[str]) -> int:
    options = make_parser().parse_args(argv)
    try:
        found = simulate(
            policy=options.policy,
            load=options.load,
            slo=options.slo,
            seed=options.seed,
            gpus=options.gpus,
        )
    except ValueError as error:
        print(f"error: {error}", file=sys.stderr)
        return 2
    print(json.dumps(as_json(found)) if options.json else as_text(found))
    return 0


def as_json(run: TuningOutcome) -> Mapping[str, object]:
    """What ``--json`` prints."""
    return {
        "policy": run.policy,
        "load": run.load,
        "slo": run.slo,
        "seed": run.seed,
        "jobs": run.jobs,
        "slo_violations": run.violations,
        "slo_violation_share": run.violation_share,
        "never_run": run.never_run,
        "refused": run.refused,
        "broken_promises": run.broken_promises,
        "cost_usd": run.cost_usd,
        "gpu_hours": {"warm": run.warm_gpu_h, "idle": run.idle_gpu_h, "cold": run.cold_gpu_h},
        "lookups": run.lookups,
        "lookup_s": run.lookup_s,
        "mean_jct_s": run.jct_s,
        "makespan_s": run.end_s,
    }


def as_text(run: TuningOutcome) -> str:
    """The same figures for a reader."""
    return (
        f"{run.policy}, {run.load} load, S = {run.slo:g} ({run.jobs} jobs, seed {run.seed})\n"
        f"SLOs missed      {run.violations} ({run.violation_share:.1%}), {run.never_run} never "
        f"ran, {run.refused} refused, {run.broken_promises} promises broken\n"
        f"cost             ${run.cost_usd:,.2f}\n"
        f"GPU hours        {run.warm_gpu_h:.2f} warm ({run.idle_gpu_h:.2f} idle), "
        f"{run.cold_gpu_h:.2f} while starting\n"
        f"lookups          {run.lookups}, {run.lookup_s:.1f} s each\n"
        f"completion time  mean {run.jct_s:,.0f} s"
    )
