"""Plots of ``reproduce tiers``, each as PNG and SVG."""

# Matplotlib is typed in part only.
# pyright: basic
from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import matplotlib

matplotlib.use("Agg")
import numpy as np
from matplotlib import pyplot as plt

from scheduler.simulator.experiments_tiers import LIMITED, Runs
from scheduler.simulator.run import Outcome

#: The same bytes for the same figures.
matplotlib.rcParams["svg.hashsalt"] = "finetender"
SIZE = (7.0, 4.2)
LIMITED_NAMES = ("improved", "corrected", "tiresias-p", "tiresias-np", "sjf-p", "sjf-np")
UNLIMITED_NAMES = ("improved", "corrected", "hpa", "hpa-one", "serverless-only")


def save(figure: Any, out: Path, name: str) -> None:
    figure.tight_layout()
    figure.savefig(out / f"{name}.png", dpi=110)
    figure.savefig(out / f"{name}.svg", metadata={"Date": None})
    plt.close(figure)


def jct(runs: Runs, out: Path) -> None:
    """Distribution of completion times (figures 6 and 7)."""
    for cap, names, name in (
        (LIMITED, LIMITED_NAMES, "jct_limited"),
        (None, UNLIMITED_NAMES, "jct_unlimited"),
    ):
        figure, axes = plt.subplots(figsize=SIZE)
        for policy in names:
            times = np.sort(np.concatenate([run.jct_s for run in runs[policy, cap]]))
            axes.plot(times, np.arange(1, len(times) + 1) / len(times), label=policy)
        axes.set(xscale="log", xlabel="completion time, s", ylabel="share of jobs")
        axes.axvline(600, color="grey", linewidth=0.6)
        axes.legend()
        save(figure, out, name)


def stacked(
    runs: Runs, out: Path, *, parts: Sequence[tuple[str, str]], unit: str, name: str
) -> None:
    """Bars of the mean of several figures on top of one another, capped and not."""
    figure, both = plt.subplots(1, 2, figsize=(10.0, 4.6), sharey=True)
    for axes, cap in zip(both, (LIMITED, None), strict=True):
        policies = [policy for policy, its_cap in runs if its_cap == cap and policy != "printed"]
        bottom = np.zeros(len(policies))
        for figure_name, label in parts:
            values = np.array(
                [np.mean([getattr(run, figure_name) for run in runs[p, cap]]) for p in policies]
            )
            axes.bar(policies, values, bottom=bottom, label=label)
            bottom += values
        axes.set_title("30 GPUs" if cap else "no cap")
        axes.tick_params(axis="x", labelrotation=80)
    both[0].set_ylabel(unit)
    both[0].legend()
    save(figure, out, name)


def dynamics(series: Mapping[str, Any], out: Path) -> None:
    """Queue, workers and threshold over time (figure 10)."""
    figure, axes = plt.subplots(2, 2, figsize=(10.0, 6.4))
    for name, rows in series.items():
        hours = rows["time_s"] / 3600.0
        axes[0, 0].plot(hours, rows["queued"], label=name)
        axes[0, 1].plot(hours, rows["serverful"], label=name)
        axes[1, 0].plot(hours, rows["serverless"], label=name)
    for name in ("corrected", "improved"):
        axes[1, 1].plot(series[name]["time_s"] / 3600.0, series[name]["threshold_s"], label=name)
    titles = ("GPUs waited for", "serverful GPUs", "serverless GPUs", "threshold F, s")
    for axis, title in zip(axes.flat, titles, strict=True):
        axis.set(xlabel="hours", title=title, xlim=(0, 6))
        axis.legend(fontsize=7)
    save(figure, out, "dynamics")


def sensitivity(swept: Mapping[str, Sequence[tuple[float, list[Outcome]]]], out: Path) -> None:
    """Completion time and cost over fixed thresholds (figure 11)."""
    figure, left = plt.subplots(figsize=SIZE)
    points = swept["threshold"]
    at = [seconds for seconds, _ in points]
    left.plot(at, [_mean(runs, "mean_jct_s") for _, runs in points], "o-", label="mean JCT")
    left.plot(at, [_mean(runs, "p50_jct_s") for _, runs in points], "s-", label="median JCT")
    left.set(xscale="log", yscale="log", xlabel="fixed threshold, s", ylabel="s")
    right = left.twinx()
    right.plot(at, [_mean(runs, "cost_usd") for _, runs in points], "^--", color="tab:green")
    right.set_ylabel("cost, $ (dashed)")
    left.legend(loc="upper left")
    save(figure, out, "threshold_sensitivity")


def pareto(
    runs: Runs, swept: Mapping[str, Sequence[tuple[float, list[Outcome]]]], out: Path
) -> None:
    """Completion time against cost, capped burst."""
    figure, axes = plt.subplots(figsize=SIZE)
    for label, marker in (("threshold", "o-"), ("delay price", "s-")):
        axes.plot(
            [_mean(kept, "cost_usd") for _, kept in swept[label]],
            [_mean(kept, "mean_jct_s") for _, kept in swept[label]],
            marker,
            label="fixed thresholds" if label == "threshold" else "improved, by price of delay",
        )
    for (policy, cap), kept in runs.items():
        cost = _mean(kept, "cost_usd")
        if cap == LIMITED and cost < 400 and not policy.startswith("fixed"):
            axes.plot(cost, _mean(kept, "mean_jct_s"), "k.")
            axes.annotate(policy, (cost, _mean(kept, "mean_jct_s")), fontsize=7)
    axes.set(xlabel="cost, $", ylabel="mean completion time, s")
    axes.legend()
    save(figure, out, "pareto")


def _mean(runs: Sequence[Outcome], name: str) -> float:
    return float(np.mean([getattr(run, name) for run in runs]))
