"""Plots of ``reproduce tiers``, each as PNG and SVG."""

# Matplotlib is typed in part only.
# pyright: basic
from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
from matplotlib import pyplot as plt
from matplotlib.ticker import MaxNLocator

from scheduler.experiments import plot_style as style
from scheduler.experiments.tiers.experiments import LIMITED, Runs
from scheduler.experiments.tiers.measures import relative
from scheduler.experiments.tiers.run import TierOutcome

LIMITED_NAMES = ("improved", "corrected", "tiresias-p", "tiresias-np", "sjf-p", "sjf-np")
UNLIMITED_NAMES = ("improved", "corrected", "hpa", "hpa-one", "serverless-only")
#: Left out of plots, where it would squeeze the others; the tables have it.
TOO_FAR = "printed"
Swept = Mapping[str, Sequence[tuple[float, list[TierOutcome]]]]
Parts = Sequence[tuple[str, str]]
SHADES = {
    "serverless_usd": style.SKY,
    "marketplace_usd": style.GREEN,
    "conventional_usd": style.RED,
    "boot_s": style.SKY,
    "queue_s": style.YELLOW,
    "moving_s": style.PINK,
}


def under(cap: int | None) -> str:
    return "without a cap" if cap is None else f"{cap} serverful GPUs"


def seeds_of(runs: Runs) -> str:
    return f"calibrated burst of 200 jobs, {len(next(iter(runs.values())))} seeds"


@style.styled
def jct(runs: Runs, out: Path) -> None:
    """Distribution of completion times (figures 6 and 7)."""
    for cap, names, name in (
        (LIMITED, LIMITED_NAMES, "jct_limited"),
        (None, UNLIMITED_NAMES, "jct_unlimited"),
    ):
        figure, axes = plt.subplots(figsize=(9.2, 4.6))
        shares = np.linspace(0.0, 1.0, 401)
        entries: list[tuple[float, Any, str]] = []
        for policy in names:
            times = np.concatenate([run.jct_s for run in runs[policy, cap]])
            colour, dash = style.LINES[policy]
            (line,) = axes.plot(np.quantile(times, shares), 100 * shares, dash, color=colour)
            soon = 100 * float((times <= 600).mean())
            text = f"{policy}\n{soon:.0f} % in 10 min, median {np.median(times):,.0f} s"
            entries.append((-soon, line, text))
        axes.axvline(600, color=style.GREY, linewidth=0.9, linestyle=":")
        axes.set(xscale="log", xlim=(8, 400_000), ylim=(0, 100))
        axes.set(xlabel="completion time (logarithmic)", ylabel="jobs done, %")
        style.durations(axes.xaxis, 8, 400_000)
        entries.sort(key=lambda entry: entry[0])
        style.beside(axes, [(line, text) for _, line, text in entries])
        below = f"Share of jobs done within a time; {seeds_of(runs)}, best first"
        style.headed(figure, f"Completion times, {under(cap)}", below)
        style.save(figure, out, name)


@style.styled
def stacked(
    runs: Runs, out: Path, *, parts: Parts, title: str, unit: str, scale: float, name: str
) -> None:
    """Bars of the mean of several figures, one after another, capped and not."""
    shown = {
        cap: [p for p, its_cap in runs if its_cap == cap and p != TOO_FAR]
        for cap in (LIMITED, None)
    }
    rows = [len(policies) for policies in shown.values()]
    figure, both = plt.subplots(
        2,
        1,
        figsize=(8.6, 1.6 + 0.27 * sum(rows)),
        sharex=True,
        gridspec_kw={"height_ratios": rows},
    )
    for axes, (cap, policies) in zip(both, shown.items(), strict=True):
        table = {
            p: [_mean(runs[p, cap], figure_name) * scale for figure_name, _ in parts]
            for p in policies
        }
        policies.sort(key=lambda p: -sum(table[p]))
        left = np.zeros(len(policies))
        for k, (figure_name, label) in enumerate(parts):
            values = np.array([table[p][k] for p in policies])
            axes.barh(policies, values, left=left, label=label, color=SHADES[figure_name])
            left += values
        for place, total in enumerate(left):
            axes.annotate(
                f"{total:,.0f}" if total >= 100 else f"{total:,.1f}",
                (total, place),
                xytext=(4, 0),
                textcoords="offset points",
                va="center",
                fontsize=8.5,
            )
        for tick in axes.get_yticklabels():
            if tick.get_text() in ("improved", "corrected"):
                tick.set_fontweight("bold")
        axes.set_title(under(cap))
        axes.grid(visible=False, axis="y")
        axes.margins(x=0.08, y=0.02)
    both[1].set_xlabel(unit)
    both[0].legend(loc="upper right", title=None)
    style.headed(figure, title, f"Means; {seeds_of(runs)}, least first")
    style.save(figure, out, name)


@style.styled
def dynamics(series: Mapping[str, Any], out: Path) -> None:
    """Queue, workers and threshold over time (figure 10)."""
    figure, axes = plt.subplots(2, 2, figsize=(9.6, 6.6), sharex=True)
    panels = (
        ("queued", "GPUs that waiting jobs ask for"),
        ("serverful", "serverful GPUs rented"),
        ("serverless", "serverless GPUs rented"),
        ("threshold_s", "threshold F of Algorithm 1, s"),
    )
    lines: dict[str, Any] = {}
    for axis, (column, title) in zip(axes.flat, panels, strict=True):
        for policy, rows in series.items():
            if column == "threshold_s" and policy not in ("corrected", "improved"):
                continue
            colour, dash = style.LINES[policy]
            hours = rows["time_s"] / 3600.0
            (lines[policy],) = axis.plot(hours, rows[column], dash, color=colour, linewidth=1.5)
        axis.set_title(title)
        axis.set(xlim=(0, 6), ylim=(0, None))
        axis.yaxis.set_major_locator(MaxNLocator(6, integer=True))
    for axis in axes[1]:
        axis.set_xlabel("hours since the first arrival")
    figure.legend(
        [lines[policy] for policy in series],
        [policy + (" (no cap)" if policy == "hpa" else "") for policy in series],
        loc="upper right",
        ncols=2,
        bbox_to_anchor=(0.99, 1.0),
    )
    below = "One burst of 200 jobs within an hour (seed 0), 30 serverful GPUs"
    style.headed(figure, "The first six hours", below)
    style.save(figure, out, "dynamics")


@style.styled
def sensitivity(runs: Runs, swept: Swept, out: Path) -> None:
    """Completion time and cost over fixed thresholds (figure 11)."""
    figure, (upper, lower) = plt.subplots(2, 1, figsize=(8.6, 6.0), sharex=True)
    points = swept["threshold"]
    at = [seconds for seconds, _ in points]
    panels = ((upper, "mean_jct_s", "mean completion time, s"), (lower, "cost_usd", "cost, $"))
    for axes, column, label in panels:
        values = [_mean(kept, column) for _, kept in points]
        axes.plot(at, values, "o-", color=style.BLACK, markersize=4)
        for policy in ("corrected", "improved"):
            level = _mean(runs[policy, LIMITED], column)
            colour = style.LINES[policy][0]
            axes.axhline(level, color=colour, linewidth=1.4)
            axes.annotate(
                f"{policy} {level:,.0f}",
                (1.0, level),
                xycoords=("axes fraction", "data"),
                xytext=(6, 0),
                textcoords="offset points",
                color=colour,
                va="center",
            )
        axes.annotate(
            "fixed",
            (at[-1], values[-1]),
            xytext=(8, 0),
            textcoords="offset points",
            va="center",
        )
        axes.set_ylabel(label)
        axes.yaxis.set_major_formatter(style.THOUSANDS)
    upper.set_xscale("log")
    style.durations(upper.xaxis, at[0], at[-1])
    lower.set_xlabel("fixed threshold (logarithmic)")
    upper.set_xlim(at[0] * 0.85, at[-1] * 1.5)
    below = f"One F for all jobs, never moved; {seeds_of(runs)}, {under(LIMITED)}"
    style.headed(figure, "Fixed thresholds", below)
    style.save(figure, out, "threshold_sensitivity")


@style.styled
def pareto(runs: Runs, swept: Swept, out: Path) -> None:
    """Completion time against cost, capped burst."""
    figure, axes = plt.subplots(figsize=(8.8, 5.6))
    names: list[tuple[float, float, str, str]] = []
    curves = (
        ("threshold", "fixed thresholds", style.GREY, "{:,.0f} s"),
        ("delay price", "improved, by price of delay", style.SKY, "${:,.0f}/h"),
    )
    for what, label, colour, each in curves:
        spots = [(_mean(k, "cost_usd"), _mean(k, "mean_jct_s")) for _, k in swept[what]]
        axes.plot(*zip(*spots, strict=True), "o-", color=colour, markersize=3.5, label=label)
        ends = (0, len(spots) - 1)
        names += [(*spots[k], each.format(swept[what][k][0]), "#555555") for k in ends]
    limit = 1.15 * max(x for x, *_ in names)
    for (policy, cap), kept in runs.items():
        cost, time = _mean(kept, "cost_usd"), _mean(kept, "mean_jct_s")
        if cap == LIMITED and cost < limit and not policy.startswith("fixed"):
            colour = style.LINES.get(policy, (style.BLACK, ""))[0]
            axes.plot([cost], [time], "o", color=colour, markersize=7)
            names.append((cost, time, policy, colour))
    axes.margins(0.15)
    axes.set(xlabel="cost, $", ylabel="mean completion time, s")
    axes.yaxis.set_major_formatter(style.THOUSANDS)
    axes.legend(loc="upper right")
    below = f"Lower left is better; {seeds_of(runs)}, {under(LIMITED)}"
    style.headed(figure, "Completion time against cost", below)
    figure.tight_layout(rect=(0.0, 0.0, 1.0, 1.0 - 0.68 / figure.get_figheight()))
    # Crowded ones first, while there is room around them.
    names.sort(key=lambda name: sum(abs(name[0] - other[0]) for other in names))
    style.label_apart(axes, names)
    style.save(figure, out, "pareto")


@style.styled
def verdicts(quality: Mapping[str, Runs], out: Path) -> None:
    """``improved`` against ``corrected`` on every workload, with 95 % intervals."""
    rows = list(quality)
    figure, both = plt.subplots(1, 2, figsize=(10.4, 1.7 + 0.3 * len(rows)), sharey=True)
    panels = (("mean_jct_s", "mean completion time, %"), ("cost_usd", "cost, %"))
    for axes, (column, label) in zip(both, panels, strict=True):
        for cap, shift, colour, mark in (
            (LIMITED, 0.16, style.BLUE, "o"),
            (None, -0.16, style.RED, "s"),
        ):
            found = [
                relative(runs["improved", cap], runs["corrected", cap], column)
                for runs in quality.values()
            ]
            axes.errorbar(
                [100 * item.mean for item in found],
                [len(rows) - 1 - k + shift for k in range(len(rows))],
                xerr=[100 * item.half for item in found],
                fmt=mark,
                color=colour,
                markersize=4.5,
                linewidth=1.3,
                label=under(cap),
            )
        axes.axvline(0.0, color=style.BLACK, linewidth=1.0)
        axes.set_title(label)
        axes.set_xlabel("improved less corrected")
        axes.set_ylim(-0.6, len(rows) - 0.4)
    both[0].set_yticks([len(rows) - 1 - k for k in range(len(rows))], rows)
    handles, labels = both[0].get_legend_handles_labels()
    figure.legend(handles, labels, loc="upper right", ncols=2, bbox_to_anchor=(0.99, 1.0))
    count = len(next(iter(next(iter(quality.values())).values())))
    below = f"Mean relative difference under {count} common seeds, 95 % intervals"
    style.headed(figure, "Left of zero, improved is better", below)
    style.save(figure, out, "quality")


def _mean(runs: Sequence[TierOutcome], name: str) -> float:
    return float(np.mean([getattr(run, name) for run in runs]))
