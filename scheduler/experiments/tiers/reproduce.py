"""``python -m scheduler reproduce tiers``: tables, plots and a report on the two tiers."""

from __future__ import annotations

import argparse
import csv
import sys
import time
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
from tqdm import tqdm

from scheduler.experiments.tiers import clairvoyant, experiments, plots, report
from scheduler.experiments.tiers.experiments import LIMITED, Runs
from scheduler.experiments.tiers.measures import FIGURES, closed, difference, summary
from scheduler.experiments.tiers.report import GAP_GOALS
from scheduler.experiments.tiers.run import TierOutcome

#: Seeds of a quick and of a full run.
QUICK_SEEDS, FULL_SEEDS = 10, 30
WAITING = (("boot_s", "start-up"), ("queue_s", "queue"), ("moving_s", "checkpoint and restore"))
COST = (
    ("serverless_usd", "serverless"),
    ("marketplace_usd", "marketplace"),
    ("conventional_usd", "conventional"),
)


def main(argv: Sequence[str]) -> int:
    parse = argparse.ArgumentParser(
        prog="python -m scheduler reproduce tiers",
        description="Reproduce the tiers' experiments: CSV tables, plots and report.md.",
    )
    parse.add_argument("--out", type=Path, required=True, help="folder to write to")
    parse.add_argument(
        "--trace", type=Path, action="append", default=[], help="a trace file; may be repeated"
    )
    parse.add_argument("--quick", action="store_true", help=f"{QUICK_SEEDS} seeds")
    options = parse.parse_args(argv)
    seeds = QUICK_SEEDS if options.quick else FULL_SEEDS
    try:
        rows = experiments.settings(options.trace)
        options.out.mkdir(parents=True, exist_ok=True)
    except (ValueError, OSError) as error:
        print(f"error: {error}", file=sys.stderr)
        return 2
    started = time.monotonic()
    reproduce(options.out, rows, seeds)
    print(f"{options.out / 'report.md'} written in {time.monotonic() - started:.0f} s")
    return 0


def reproduce(out: Path, rows: Sequence[experiments.TierSetting], seeds: int) -> None:
    """Runs every experiment and writes what it found."""
    runs = experiments.compare(seeds, progress)
    quality = experiments.quality(rows, seeds, progress)
    swept = experiments.sweep(seeds, progress)
    shown = (("improved", LIMITED), ("corrected", LIMITED), ("tiresias-np", LIMITED), ("hpa", None))
    series = {name: experiments.dynamics(name, cap)[0] for name, cap in shown}

    write_policies(out / "policies.csv", runs)
    write_quality(out / "quality.csv", quality)
    write_baselines(out / "baselines.csv", quality)
    write_jcts(out / "jct.csv", runs)
    write_sweep(out / "sweep.csv", swept)
    write_series(out / "dynamics.csv", series)
    plots.jct(runs, out)
    plots.stacked(
        runs,
        out,
        parts=WAITING,
        title="What jobs wait for",
        unit="minutes a job waits on average",
        scale=1.0 / 60.0,
        name="waiting",
    )
    plots.stacked(
        runs, out, parts=COST, title="What a burst costs", unit="dollars", scale=1.0, name="cost"
    )
    plots.dynamics(series, out)
    plots.sensitivity(runs, swept, out)
    plots.pareto(runs, swept, out)
    plots.verdicts(quality, out)
    (out / "report.md").write_text(report.report(runs, quality, series, seeds), encoding="utf-8")


def progress(items: Iterable[Any], label: str) -> Iterable[Any]:
    return tqdm(items, desc=label, file=sys.stderr)


def cap_name(cap: int | None) -> str:
    return "unlimited" if cap is None else str(cap)


def write_policies(path: Path, runs: Runs) -> None:
    """Means and 95 % half-widths of every figure by policy and cap."""
    columns = [column for name in FIGURES for column in (name, f"{name}_ci95")]
    with path.open("w", newline="", encoding="utf-8") as file:
        writer = csv.writer(file)
        writer.writerow(["policy", "cap", "seeds", *columns])
        for (policy, cap), kept in runs.items():
            found = summary(kept)
            values = [v for name in FIGURES for v in (found[name].mean, found[name].half)]
            writer.writerow([policy, cap_name(cap), len(kept), *values])


def write_quality(path: Path, quality: Mapping[str, Runs]) -> None:
    """Paired differences improved minus corrected, by workload and cap.

    Without a cap also the shares of the gap to a clairvoyant that are closed.
    """
    with path.open("w", newline="", encoding="utf-8") as file:
        writer = csv.writer(file)
        shares = [f"{name}_{kind}" for name in GAP_GOALS for kind in ("closed", "closed_ci95")]
        writer.writerow(["workload", "cap", "seeds", *_DIFFERENCES, *shares])
        for workload, runs in quality.items():
            for cap in experiments.CAPS:
                one = runs["improved", cap]
                base = runs["corrected", cap]
                found: list[float | str] = [*_list_differences(one, base)]
                for name in GAP_GOALS:
                    if cap is None:
                        share = closed(one, base, runs[clairvoyant.NAME, None], name)
                        found += [share.mean, share.half]
                    else:
                        found += ["", ""]
                writer.writerow([workload, cap_name(cap), len(one), *found])


def write_baselines(path: Path, quality: Mapping[str, Runs]) -> None:
    """Paired differences improved minus each base, by workload and cap."""
    with path.open("w", newline="", encoding="utf-8") as file:
        writer = csv.writer(file)
        writer.writerow(["workload", "cap", "against", "seeds", *_DIFFERENCES])
        for workload, runs in quality.items():
            for cap in experiments.CAPS:
                one = runs["improved", cap]
                for base in (name for name in experiments.BASES if (name, cap) in runs):
                    found = _list_differences(one, runs[base, cap])
                    writer.writerow([workload, cap_name(cap), base, len(one), *found])


_DIFFERENCE_FIGURES = ("mean_jct_s", "p95_jct_s", "cost_usd", "miss_share")
_DIFFERENCES = [f"{name}_{kind}" for name in _DIFFERENCE_FIGURES for kind in ("difference", "ci95")]


def _list_differences(one: Sequence[TierOutcome], base: Sequence[TierOutcome]) -> list[float]:
    found = [difference(one, base, name) for name in _DIFFERENCE_FIGURES]
    return [value for item in found for value in (item.mean, item.half)]


def write_jcts(path: Path, runs: Runs) -> None:
    """Completion times by policy, at 200 evenly spaced shares of all jobs."""
    shares = np.linspace(0.0, 1.0, 201)
    with path.open("w", newline="", encoding="utf-8") as file:
        writer = csv.writer(file)
        writer.writerow(["policy", "cap", *(f"{share:.3f}" for share in shares)])
        for (policy, cap), kept in runs.items():
            times = np.concatenate([run.jct_s for run in kept])
            writer.writerow([policy, cap_name(cap), *np.quantile(times, shares).round(2)])


def write_sweep(path: Path, swept: Mapping[str, Sequence[tuple[float, Any]]]) -> None:
    """Fixed thresholds and prices of delay."""
    with path.open("w", newline="", encoding="utf-8") as file:
        writer = csv.writer(file)
        writer.writerow(["what", "value", *FIGURES])
        for what, points in swept.items():
            for value, kept in points:
                found = summary(kept)
                writer.writerow([what, value, *(found[name].mean for name in FIGURES)])


def write_series(path: Path, series: Mapping[str, Any]) -> None:
    """Tick by tick, one seed."""
    with path.open("w", newline="", encoding="utf-8") as file:
        writer = csv.writer(file)
        names = next(iter(series.values())).dtype.names
        writer.writerow(["policy", *names])
        for policy, rows in series.items():
            for row in rows:
                writer.writerow([policy, *(row[name] for name in names)])
