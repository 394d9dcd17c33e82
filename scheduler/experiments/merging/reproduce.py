"""``python -m scheduler reproduce merging``: tables, plots and a report on task merging."""

from __future__ import annotations

import argparse
import csv
import multiprocessing
import os
import sys
import time
from collections.abc import Iterable, Sequence
from concurrent.futures import ProcessPoolExecutor
from dataclasses import asdict, fields
from pathlib import Path
from typing import Any

from tqdm import tqdm

from scheduler.experiments.merging import plots
from scheduler.experiments.merging.experiments import (
    FULL,
    QUICK,
    MergingSize,
    Run,
    RunPoint,
    Timing,
    carry_out,
    check_traces,
    list_points,
    time_solver,
)
from scheduler.experiments.merging.findings import MergingFindings
from scheduler.experiments.merging.report import write_report
from scheduler.experiments.merging.run import MergingOutcome


def main(argv: Sequence[str]) -> int:
    parse = argparse.ArgumentParser(
        prog="python -m scheduler reproduce merging",
        description="Reproduce Ymir's experiments: CSV tables, plots and report.md.",
    )
    parse.add_argument("--out", type=Path, required=True, help="folder to write to")
    parse.add_argument(
        "--trace", type=Path, action="append", default=[], help="a trace file; may be repeated"
    )
    parse.add_argument("--quick", action="store_true", help="small days, few seeds")
    parse.add_argument("--jobs", type=int, default=2, help="processes (default 2)")
    options = parse.parse_args(argv)
    try:
        if options.jobs < 1:
            raise ValueError("--jobs must be at least 1")
        check_traces(options.trace)
        options.out.mkdir(parents=True, exist_ok=True)
    except (ValueError, OSError) as error:
        print(f"error: {error}", file=sys.stderr)
        return 2
    started = time.monotonic()
    reproduce(options.out, QUICK if options.quick else FULL, options.trace, processes=options.jobs)
    print(f"{options.out / 'report.md'} written in {time.monotonic() - started:.0f} s")
    return 0


def reproduce(out: Path, size: MergingSize, traces: Sequence[Path], *, processes: int) -> None:
    """Run every experiment and write what it found."""
    points = list_points(size, traces)
    runs = list(dict.fromkeys(point.run for point in points))
    # One after another and alone, so that other runs do not slow what is timed.
    timings = time_solver(size)
    outcomes = _carry_out(runs, processes)
    found = MergingFindings(size, points, outcomes, timings)
    _write_runs(out / "runs.csv", points, outcomes)
    _write_rows(out / "solver.csv", [asdict(timing) for timing in timings], Timing)
    plots.draw_all(found, out)
    (out / "report.md").write_text(write_report(found), encoding="utf-8")


def _carry_out(runs: Sequence[Run], processes: int) -> dict[Run, MergingOutcome]:
    if processes == 1:
        return {run: carry_out(run) for run in _progress(runs, len(runs))}
    # One thread for each process: the linear algebra would take all cores.
    os.environ.setdefault("OMP_NUM_THREADS", "1")
    context = multiprocessing.get_context("spawn")
    with ProcessPoolExecutor(processes, mp_context=context) as pool:
        done = pool.map(carry_out, runs, chunksize=4)
        return dict(zip(runs, _progress(done, len(runs)), strict=True))


def _progress(items: Iterable[Any], total: int) -> Iterable[Any]:
    return tqdm(items, desc="runs", total=total, file=sys.stderr)


def _write_runs(
    path: Path, points: Sequence[RunPoint], outcomes: dict[Run, MergingOutcome]
) -> None:
    """Every run by figure and place; solver times are the machine's, the rest repeats."""
    rows = [
        {"figure": point.figure, "x": point.x} | asdict(outcomes[point.run]) for point in points
    ]
    _write_rows(path, rows, MergingOutcome, ("figure", "x"))


def _write_rows(
    path: Path, rows: Sequence[dict[str, Any]], kind: Any, before: Sequence[str] = ()
) -> None:
    with path.open("w", newline="", encoding="utf-8") as file:
        writer = csv.DictWriter(file, [*before, *(field.name for field in fields(kind))])
        writer.writeheader()
        writer.writerows(rows)
