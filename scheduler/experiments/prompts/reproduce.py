"""``python -m scheduler reproduce prompts``: tables, plots and a report on the express lane."""

from __future__ import annotations

import argparse
import csv
import sys
import time
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

from tqdm import tqdm

from scheduler.experiments.prompts import plots
from scheduler.experiments.prompts.experiments import (
    FULL,
    QUICK,
    PromptFindings,
    PromptSize,
    run_all,
)
from scheduler.experiments.prompts.lookup_quality import WAYS, TaskResult
from scheduler.experiments.prompts.outcome import TuningOutcome
from scheduler.experiments.prompts.report import write_report
from scheduler.experiments.tiers.measures import interval

#: Figures of every run, by column.
FIGURES = (
    "violation_share",
    "cost_usd",
    "warm_gpu_h",
    "idle_gpu_h",
    "cold_gpu_h",
    "never_run",
    "refused",
    "broken_promises",
    "lookups",
    "lookup_s",
    "jct_s",
)


def main(argv: Sequence[str]) -> int:
    parse = argparse.ArgumentParser(
        prog="python -m scheduler reproduce prompts",
        description="Reproduce PromptTuner's experiments: CSV tables, plots and report.md.",
    )
    parse.add_argument("--out", type=Path, required=True, help="folder to write to")
    parse.add_argument(
        "--quick", action="store_true", help=f"{QUICK.seeds} seeds instead of {FULL.seeds}"
    )
    options = parse.parse_args(argv)
    try:
        options.out.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        print(f"error: {error}", file=sys.stderr)
        return 2
    started = time.monotonic()
    reproduce(options.out, QUICK if options.quick else FULL)
    print(f"{options.out / 'report.md'} written in {time.monotonic() - started:.0f} s")
    return 0


def reproduce(out: Path, size: PromptSize) -> None:
    """Run every experiment and write what it found."""
    found = run_all(size, show_progress)
    write_runs(out / "sweeps.csv", ("policy", "load", "slo"), found.sweeps)
    write_runs(
        out / "ablations.csv",
        ("policy",),
        {(name,): runs for name, runs in found.ablations.items()},
    )
    write_runs(
        out / "workloads.csv",
        ("workload", "policy"),
        {
            (workload, policy): runs
            for workload, policies in found.workloads.items()
            for policy, runs in policies.items()
        },
    )
    write_runs(
        out / "unseen.csv", ("policy",), {(name,): runs for name, runs in found.unseen.items()}
    )
    write_lookups(out / "lookups.csv", found.lookups)
    draw_all(found, out)
    (out / "report.md").write_text(write_report(found), encoding="utf-8")


def show_progress(items: Iterable[Any], label: str) -> Iterable[Any]:
    return tqdm(items, desc=label, file=sys.stderr)


def draw_all(found: PromptFindings, out: Path) -> None:
    """Draw every plot."""
    plots.draw_sweeps(found.sweeps, out)
    plots.draw_tradeoff(found.ablations, found.sweeps, out)
    plots.draw_errors(found.ablations, out)
    plots.draw_lookups(found.lookups, out)


def write_runs(
    path: Path, keys: Sequence[str], rows: Mapping[tuple[Any, ...], Sequence[TuningOutcome]]
) -> None:
    """Write means and 95 % half-widths of every figure."""
    columns = [column for name in FIGURES for column in (name, f"{name}_ci95")]
    with path.open("w", newline="", encoding="utf-8") as file:
        writer = csv.writer(file)
        writer.writerow([*keys, "seeds", *columns])
        for key, runs in rows.items():
            found = [interval([float(getattr(run, name)) for run in runs]) for name in FIGURES]
            writer.writerow([*key, len(runs), *(v for one in found for v in (one.mean, one.half))])


def write_lookups(path: Path, results: Sequence[TaskResult]) -> None:
    """Write one line per task and way."""
    with path.open("w", newline="", encoding="utf-8") as file:
        writer = csv.writer(file)
        writer.writerow(["task", "way", "rows_scored", "score", "iterations", "ideal", "speedup"])
        for k, result in enumerate(results):
            for way in WAYS:
                one = result.found[way]
                writer.writerow(
                    [
                        k,
                        way,
                        one.rows_scored,
                        one.score,
                        one.iterations,
                        result.ideal,
                        result.speedup(way),
                    ]
                )
