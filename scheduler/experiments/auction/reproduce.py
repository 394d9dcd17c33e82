"""``python -m scheduler reproduce auction``: tables, plots and a report."""

from __future__ import annotations

import argparse
import multiprocessing
import os
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ProcessPoolExecutor, as_completed
from dataclasses import asdict, dataclass
from functools import partial
from pathlib import Path
from typing import Any

from tqdm import tqdm

from scheduler.experiments.auction import experiments
from scheduler.experiments.auction.days import BOUND, Effort, carry_out, day_run, source_digest
from scheduler.experiments.auction.experiments import (
    FULL,
    NAMES,
    QUICK,
    AuctionSize,
    Lie,
    Point,
    Ratio,
    Winner,
)
from scheduler.experiments.auction.progress import Progress
from scheduler.experiments.auction.quality import DayQuality, SettingResult
from scheduler.experiments.auction.report import AuctionFindings
from scheduler.experiments.auction.scenario import Scenario
from scheduler.experiments.auction.tables import write
from scheduler.experiments.tiers.traces import read_trace
from scheduler.experiments.tiers.workload import Workload

#: What has been run, in the folder written to.
PROGRESS = "runs.csv"


def main(argv: Sequence[str]) -> int:
    parse = argparse.ArgumentParser(
        prog="python -m scheduler reproduce auction",
        description="Reproduce the auction's experiments: CSV tables, plots and report.md. "
        "A run that was stopped goes on where it was when started again with the same folder.",
    )
    parse.add_argument("--out", type=Path, required=True, help="folder to write to")
    parse.add_argument(
        "--trace", type=Path, action="append", default=[], help="a trace file; may be repeated"
    )
    parse.add_argument("--quick", action="store_true", help="small days, two seeds")
    parse.add_argument("--jobs", type=int, default=2, help="processes (default 2)")
    parse.add_argument(
        "--report-only",
        action="store_true",
        help="run nothing more; report on what is in the folder and say what is missing",
    )
    options = parse.parse_args(argv)
    size = QUICK if options.quick else FULL
    try:
        if options.jobs < 1:
            raise ValueError("--jobs must be at least 1")
        traces = [read_trace(path) for path in options.trace]
        experiments.points(size, traces)
        options.out.mkdir(parents=True, exist_ok=True)
    except (ValueError, OSError) as error:
        print(f"error: {error}", file=sys.stderr)
        return 2
    started = time.monotonic()
    found = reproduce(options.out, size, traces, jobs=options.jobs, report_only=options.report_only)
    missing = f", {found.missing} runs missing" if found.missing else ""
    print(f"{options.out / 'report.md'} written in {time.monotonic() - started:.0f} s{missing}")
    return 0


@dataclass(frozen=True, slots=True)
class RunJob:
    """One thing to run, and where its result is kept."""

    key: str
    label: str
    call: Callable[[], Any]
    #: Seed by seed and figure by figure, so that a run that is stopped has whole ones.
    rank: tuple[int, int]


def reproduce(
    out: Path,
    size: AuctionSize,
    traces: Sequence[Workload],
    *,
    jobs: int,
    report_only: bool = False,
) -> AuctionFindings:
    """Run what is not yet in the folder, and write what was found."""
    plan = experiments.points(size, traces)
    work = _jobs(plan, size)
    out.mkdir(parents=True, exist_ok=True)
    progress = Progress(out / PROGRESS)
    if not report_only:
        _run([job for job in work.values() if job.key not in progress], progress, jobs)
    found = _findings(plan, size, work, progress)
    write(out, found)
    return found


def _jobs(plan: Sequence[Point], size: AuctionSize) -> dict[tuple[Any, ...], RunJob]:
    """Give all that must be run, by what it is; equal days once."""
    made: dict[tuple[Any, ...], RunJob] = {}
    effort = Effort(size.iterations, size.titan_s)
    for number, point in enumerate(plan):
        for seed in range(size.seeds):
            for what in (BOUND, *NAMES):
                run = day_run(what, point.setting(seed), seed)
                # A day of several figures belongs to the first of them.
                made.setdefault(
                    (run,),
                    RunJob(
                        run.key(effort),
                        run.label,
                        partial(carry_out, run, effort),
                        (seed, number),
                    ),
                )
    version = source_digest(solves=True)
    for index in range(size.instances):
        made["optimum", index] = RunJob(
            f"optimum-{index}-{size.optimum_s:g}-{version}",
            f"offline optimum, instance {index}",
            partial(_optimum, index, size.optimum_s),
            (index * size.seeds // size.instances, len(plan)),
        )
    made["lies",] = RunJob(f"lies-{size!r}-{version}", "misreports", partial(_lies, size), (0, 0))
    made["winners",] = RunJob(
        f"winners-{size!r}-{version}", "winners", partial(_winners, size), (0, 0)
    )
    return made


def _near_cost(size: AuctionSize) -> Scenario:
    """Bids near what the cells cost, where misreports have something to gain."""
    return Scenario(
        "one",
        slots=min(size.slots, 48),
        nodes=10,
        bids_per_slot=8.0 * min(1.0, size.scale * 10),
        worth_per_sample=(0.3, 2.0),
    )


def _optimum(index: int, time_limit_s: float) -> dict[str, Any]:
    return asdict(experiments.competitive(index, time_limit_s=time_limit_s))


def _lies(size: AuctionSize) -> dict[str, Any]:
    lies, critical, eq14 = experiments.truthfulness(_near_cost(size), bidders=40 * size.seeds)
    return {"lies": [asdict(lie) for lie in lies], "profitable": [critical, eq14]}


def _winners(size: AuctionSize) -> dict[str, Any]:
    winners, won, over = experiments.rationality(_near_cost(size), sample=10)
    return {"winners": [asdict(winner) for winner in winners], "won": [won, over]}


def _run(work: Sequence[RunJob], progress: Progress, jobs: int) -> None:
    """Run jobs in processes of their own; each result is on disk at once."""
    work = sorted(work, key=lambda job: job.rank)
    bar = tqdm(total=len(work), desc="runs", file=sys.stderr)
    if jobs == 1:
        for job in work:
            progress.put(job.key, job.label, job.call())
            bar.update()
    else:
        # One thread for each process: the linear algebra would take all cores.
        os.environ.setdefault("OMP_NUM_THREADS", "1")
        context = multiprocessing.get_context("spawn")
        with ProcessPoolExecutor(jobs, mp_context=context) as pool:
            try:
                waiting = {pool.submit(job.call): job for job in work}
                for future in as_completed(waiting):
                    job = waiting[future]
                    progress.put(job.key, job.label, future.result())
                    bar.update()
            except BaseException:
                pool.shutdown(wait=False, cancel_futures=True)
                raise
    bar.close()


def _findings(
    plan: Sequence[Point],
    size: AuctionSize,
    work: Mapping[tuple[Any, ...], RunJob],
    progress: Progress,
) -> AuctionFindings:
    days: dict[str, dict[str, list[SettingResult]]] = {}
    for point in plan:
        for seed in range(size.seeds):
            found = {
                what: progress.get(work[day_run(what, point.setting(seed), seed),].key)
                for what in (BOUND, *NAMES)
            }
            if any(result is None for result in found.values()):
                continue
            results = {name: DayQuality(**found[name]) for name in NAMES}
            measured = SettingResult(point.x, seed, found[BOUND]["value"], results)
            days.setdefault(point.figure, {}).setdefault(point.x, []).append(measured)
    lies: dict[str, Any] = progress.get(work["lies",].key) or {"lies": [], "profitable": [0, 0]}
    winners: dict[str, Any] = progress.get(work["winners",].key) or {"winners": [], "won": [0, 0]}
    optima = [progress.get(work["optimum", index].key) for index in range(size.instances)]
    return AuctionFindings(
        size=size,
        days=days,
        lies=[Lie(**lie) for lie in lies["lies"]],
        profitable=(lies["profitable"][0], lies["profitable"][1]),
        winners=[Winner(**winner) for winner in winners["winners"]],
        won=(winners["won"][0], winners["won"][1]),
        ratios=[Ratio(**optimum) for optimum in optima if optimum is not None],
        missing=sum(job.key not in progress for job in work.values()),
    )
