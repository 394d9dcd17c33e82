"""Tables and plots of ``reproduce auction``."""

from __future__ import annotations

import csv
from collections.abc import Iterable, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

from scheduler.experiments.auction import plots
from scheduler.experiments.auction.experiments import FIGURES, NAMES
from scheduler.experiments.auction.report import AuctionFindings, report


def write(out: Path, found: AuctionFindings) -> None:
    """Write CSV tables, plots and the report."""
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
    _write_running_time(found, out)
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


def _write_running_time(found: AuctionFindings, out: Path) -> None:
    dynamics = found.days.get("dynamics", {})
    _csv(
        out / "running_time.csv",
        ("bids_per_slot", "seed", "policy", "ms_per_task"),
        [
            [x, m.seed, name, 1e3 * r.seconds / max(r.bids, 1)]
            for x, ms in dynamics.items()
            for m in ms
            for name, r in m.results.items()
        ],
    )
    if dynamics:
        plots.bars(
            {
                x: {
                    n: [1e3 * m.results[n].seconds / max(m.results[n].bids, 1) for m in ms]
                    for n in NAMES
                }
                for x, ms in dynamics.items()
            },
            out,
            name="running_time",
            title="Figure 13: running time",
            y="CPU ms per task",
        )


def _csv(path: Path, head: Sequence[str], rows: Iterable[Sequence[Any]]) -> None:
    with path.open("w", newline="", encoding="utf-8") as file:
        writer = csv.writer(file)
        writer.writerow(head)
        writer.writerows(rows)
