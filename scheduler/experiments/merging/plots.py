"""Plots of ``reproduce merging``, each as PNG and SVG."""

# Matplotlib is typed in part only.
# pyright: basic
from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
from matplotlib import pyplot as plt

from scheduler.experiments import plot_style as style
from scheduler.experiments.merging.findings import MergingFindings

#: Colour and dash of each policy, the same in every plot.
LINES = {
    "tiresias": (style.GREEN, "-"),
    "themis-like": (style.GREEN, "--"),
    "srtf": (style.PINK, "-"),
    "optimus-like": (style.YELLOW, "-"),
    "no-merging": (style.GREY, "-"),
    "ymir-runnable": (style.SKY, "--"),
    "ymir-repaired": (style.SKY, "-"),
    "ymir-temporal": (style.SKY, "-."),
    "ymir-spatial": (style.SKY, ":"),
    "ymir-chosen": (style.BLUE, "-"),
    "warm-starts": (style.RED, "-"),
}


def draw_all(found: MergingFindings, out: Path) -> None:
    """Draw every figure."""
    draw_bars(found, out, "mean_jct_s", "jct", "Mean completion time", 60.0, "minutes")
    draw_bars(found, out, "makespan_s", "makespan", "Makespan", 3600.0, "hours")
    draw_solver(found, out)
    draw_lines(
        found, out, "switches", "switches", "Context switches",
        "seconds of a context switch", "minutes of mean completion time", None, "load 1.5",
    )  # fmt: skip
    for figure, name, note in (
        ("related", "related", "jobs on the very same data, a tenth of them, may merge"),
        ("related, no repeats", "related_no_repeats", "no job repeats the data of another"),
    ):
        draw_lines(
            found, out, figure, name, "Gain by share of related jobs",
            "share of jobs from nine tasks in three families",
            "without merging over with, mean completion time", "no-merging", note,
        )  # fmt: skip


def describe(found: MergingFindings, jobs: int) -> str:
    return f"240 GPUs, {jobs} jobs, {found.size.seeds} seeds, bars of 95 %"


@style.styled
def draw_bars(
    found: MergingFindings, out: Path, column: str, name: str, title: str, scale: float, unit: str
) -> None:
    """A figure of every policy, by world and load."""
    worlds = ("paper", "measured")
    loads = found.places("policies paper")
    policies = found.policies("policies paper")
    figure, axes = plt.subplots(
        1,
        2,
        figsize=(10.2, 1.4 + 0.34 * len(policies) * len(loads) / 1.6),
        sharey=True,
        sharex=True,
    )
    height = 0.8 / len(loads)
    for axis, world in zip(axes, worlds, strict=True):
        for k, load in enumerate(loads):
            values = [found.figure_of(f"policies {world}", load, p, column) for p in policies]
            at = np.arange(len(policies)) + (k - (len(loads) - 1) / 2) * height
            axis.barh(
                at, [v.mean / scale for v in values], height,
                xerr=[v.half / scale for v in values], capsize=1.5,
                color=[LINES[p][0] for p in policies], alpha=1.0 - 0.3 * k,
                error_kw={"elinewidth": 0.8, "ecolor": style.BLACK},
            )  # fmt: skip
        axis.set_yticks(np.arange(len(policies)), policies)
        axis.set_title("transfer as in the paper" if world == "paper" else "transfer as measured")
        axis.set_xlabel(unit)
        axis.grid(visible=False, axis="y")
        axis.set_xlim(left=0.0)
    axes[0].invert_yaxis()
    text = f"{describe(found, found.size.jobs)}; loads {', '.join(loads)} from dark to light"
    style.headed(figure, title, text)
    style.save(figure, out, name)


@style.styled
def draw_lines(
    found: MergingFindings,
    out: Path,
    figure_name: str,
    name: str,
    title: str,
    x: str,
    y: str,
    base: str | None,
    note: str,
) -> None:
    """A sweep; times better than a base policy, or minutes where there is none."""
    figure, axes = plt.subplots(figsize=(8.4, 4.6))
    places = found.places(figure_name)
    at = [float(place) for place in places]
    entries: list[tuple[Any, str]] = []
    for policy in found.policies(figure_name):
        if policy == base:
            continue
        if base is None:
            values = [found.figure_of(figure_name, p, policy, "mean_jct_s") for p in places]
            scale = 60.0
        else:
            values = [found.times_better(figure_name, p, policy, base) for p in places]
            scale = 1.0
        colour, dash = LINES[policy]
        line = axes.errorbar(
            at, [v.mean / scale for v in values], yerr=[v.half / scale for v in values],
            color=colour, linestyle=dash, capsize=2, marker="o", markersize=4,
        )  # fmt: skip
        entries.append((line, policy))
    if base is not None:
        axes.axhline(1.0, color=style.GREY, linewidth=0.9, linestyle=":")
    axes.set(xlabel=x, ylabel=y)
    axes.set_ylim(bottom=0.0)
    style.beside(axes, entries)
    style.headed(figure, title, f"{describe(found, found.size.swept_jobs)}; {note}")
    style.save(figure, out, name)


@style.styled
def draw_solver(found: MergingFindings, out: Path) -> None:
    """CPU seconds of one decision by number of jobs."""
    figure, axes = plt.subplots(figsize=(8.4, 4.6))
    entries: list[tuple[Any, str]] = []
    for form, colour in (("repaired", style.SKY), ("chosen", style.BLUE)):
        for fresh, dash, text in ((1.0, "-", "all new"), (0.04, "--", "4 % new")):
            rows = [t for t in found.timings if (t.form, t.fresh) == (form, fresh)]
            sizes = sorted({t.jobs for t in rows})
            worst = [max(t.seconds for t in rows if t.jobs == n) for n in sizes]
            (line,) = axes.plot(sizes, worst, dash, color=colour, marker="o", markersize=4)
            proven = all(t.proven for t in rows)
            kept = "three partners" if form == "chosen" else "every pair"
            entries.append((line, f"{kept}, {text}" + ("" if proven else "\n(not all proven)")))
    axes.set(yscale="log", xlabel="jobs on 240 GPUs", ylabel="CPU seconds, the worst of the seeds")
    style.beside(axes, entries)
    style.headed(figure, "Solver time", "HiGHS, one thread; pairs, relaxation and search")
    style.save(figure, out, "solver")
