"""``python -m scheduler reproduce auction``: tables, plots and a report."""

from __future__ import annotations

import argparse
import csv
import multiprocessing
import sys
import time
from collections.abc import Callable, Iterable, Sequence
from concurrent.futures import ProcessPoolExecutor, as_completed
from dataclasses import asdict
from functools import partial
from pathlib import Path
from typing import Any

from tqdm import tqdm

from scheduler.simulator.auction import experiments, plots
from scheduler.simulator.auction.experiments import FIGURES, FULL, NAMES, QUICK, Point, Ratio, Size
from scheduler.simulator.auction.quality import Measured, measure
from scheduler.simulator.auction.report import Findings, report
from scheduler.simulator.auction.scenario import Scenario
from scheduler.simulator.traces import read_trace
from scheduler.simulator.workload import Workload


def main(argv: Sequence[str]) -> int:
    parse = argparse.ArgumentParser(
        prog="python -m scheduler reproduce auction",
        description="Reproduce the auction's experiments: CSV tables, plots and report.md.",
    )
    parse.add_argument("--out", type=Path, required=True, help="folder to write to")
    parse.add_argument(
        "--trace", type=Path, action="append", default=[], help="a trace file; may be repeated"
    )
    parse.add_argument("--quick", action="store_true", help="small days, two seeds")
    parse.add_argument("--workers", type=int, default=2, help="processes (default 2)")
    options = parse.parse_args(argv)
    size = QUICK if options.quick else FULL
    try:
        if options.workers < 1:
            raise ValueError("--workers must be at least 1")
        traces = [read_trace(path) for path in options.trace]
        experiments.points(size, traces)
        options.out.mkdir(parents=True, exist_ok=True)
    except (ValueError, OSError) as error:
        print(f"error: {error}", file=sys.stderr)
        return 2
    started = time.monotonic()
    reproduce(options.out, size, traces, workers=options.workers)
    print(f"{options.out / 'report.md'} written in {time.monotonic() - started:.0f} s")
    return 0


def reproduce(out: Path, size: Size, traces: Sequence[Workload], *, workers: int) -> Findings:
    """Run every experiment and write what it found."""
    plan = [(p, seed) for p in experiments.points(size, traces) for seed in range(size.seeds)]
    days: dict[str, dict[str, list[Measured]]] = {}
    measured = _run([partial(_measure, point, seed, size) for point, seed in plan], workers, "days")
    for (point, _), result in zip(plan, measured, strict=True):
        days.setdefault(point.figure, {}).setdefault(point.x, []).append(result)
    ratios: list[Ratio] = _run(
        [
            partial(experiments.competitive, index, time_limit_s=size.optimum_s)
            for index in range(size.instances)
        ],
        workers,
        "offline optimum",
    )
    # Bids near what the cells cost, where misreports have something to gain.
    scenario = Scenario(
        "one",
        slots=min(size.slots, 48),
        nodes=10,
        bids_per_slot=8.0 * min(1.0, size.scale * 10),
        worth_per_sample=(0.3, 2.0),
    )
    lies, critical, eq14 = experiments.truthfulness(scenario, bidders=40 * size.seeds)
    winners, won, over = experiments.rationality(scenario, sample=10)
    found = Findings(size, days, lies, (critical, eq14), winners, (won, over), ratios)
    _write(out, found)
    return found


def _measure(point: Point, seed: int, size: Size) -> Measured:
    return measure(
        point.setting, seed, names=NAMES, iterations=size.iterations, time_limit_s=size.titan_s
    )


def _run(jobs: Sequence[Callable[[], Any]], workers: int, label: str) -> list[Any]:
    """Run jobs in processes of their own; results in the order of the jobs."""
    if workers == 1:
        return [job() for job in tqdm(jobs, desc=label, file=sys.stderr)]
    context = multiprocessing.get_context("spawn")
    with ProcessPoolExecutor(workers, mp_context=context) as pool:
        futures = [pool.submit(job) for job in jobs]
        for _ in tqdm(as_completed(futures), total=len(jobs), desc=label, file=sys.stderr):
            pass
        return [future.result() for future in futures]


def _write(out: Path, found: Findings) -> None:
    rows: list[list[Any]] = []
    for figure, table in found.days.items():
        for x, measured in table.items():
            for m in measured:
                rows.extend(
                    [figure, x, m.seed, name, r.welfare, m.bound, m.share(name), r.admitted,
                     r.bids, r.revenue, r.seconds]
                    for name, r in m.results.items()
                )  # fmt: skip
        plots.bars(
            {x: {n: [m.share(n) for m in ms] for n in NAMES} for x, ms in table.items()},
            out,
            name=figure,
            title=FIGURES[figure][0],
            y="welfare / Lagrangian bound",
        )
    head = ("figure", "x", "seed", "policy", "welfare", "lagrangian_bound", "share", "admitted",
            "bids", "revenue", "cpu_s")  # fmt: skip
    _csv(out / "days.csv", head, rows)
    _csv(
        out / "running_time.csv",
        ("bids_per_slot", "seed", "policy", "ms_per_task"),
        [
            [x, m.seed, name, 1e3 * r.seconds / max(r.bids, 1)]
            for x, ms in found.days.get("dynamics", {}).items()
            for m in ms
            for name, r in m.results.items()
        ],
    )
    plots.bars(
        {
            x: {
                n: [1e3 * m.results[n].seconds / max(m.results[n].bids, 1) for m in ms]
                for n in NAMES
            }
            for x, ms in found.days.get("dynamics", {}).items()
        },
        out,
        name="running_time",
        title="Figure 13: running time",
        y="CPU ms per task",
    )
    _csv(
        out / "truthfulness.csv",
        ("stated_over_worth", "gain_critical", "gain_eq14"),
        [list(asdict(lie).values()) for lie in found.lies],
    )
    _csv(
        out / "rationality.csv",
        ("task", "bid", "payment"),
        [list(asdict(w).values()) for w in found.winners],
    )
    _csv(
        out / "competitive.csv",
        ("instance", "tasks", "optimum", "proven", *NAMES),
        [[r.instance, r.tasks, r.optimum, r.proven, *(r.ratios[n] for n in NAMES)]
         for r in found.ratios],
    )  # fmt: skip
    plots.lies(found.lies, out)
    plots.winners(found.winners, out)
    plots.ratios(found.ratios, out)
    (out / "report.md").write_text(report(found), encoding="utf-8")


def _csv(path: Path, head: Sequence[str], rows: Iterable[Sequence[Any]]) -> None:
    with path.open("w", newline="", encoding="utf-8") as file:
        writer = csv.writer(file)
        writer.writerow(head)
        writer.writerows(rows)
