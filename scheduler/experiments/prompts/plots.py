"""Plots of ``reproduce prompts``, each as PNG and SVG."""

# Matplotlib is typed in part only.
# pyright: basic
from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path

import numpy as np
from matplotlib import pyplot as plt

from scheduler.experiments import plot_style as style
from scheduler.experiments.prompts.experiments import MAIN, SLOS, Runs
from scheduler.experiments.prompts.lookup_quality import WAYS, TaskResult
from scheduler.experiments.prompts.outcome import TuningOutcome
from scheduler.experiments.prompts.workload import LOADS
from scheduler.experiments.tiers.measures import Interval, interval

#: Colour of each policy, the same in every plot.
COLOURS = {
    "printed": style.GREY,
    "repaired": style.RED,
    "chosen": style.BLUE,
    "chosen-admits": style.SKY,
    "infless": style.GREEN,
    "elasticflow": style.YELLOW,
}
WAY_COLOURS = (style.BLACK, style.RED, style.YELLOW, style.BLUE)


@style.styled
def draw_sweeps(sweeps: Runs, out: Path) -> None:
    """Violations and cost by load and by S (figure 7)."""
    figure, axes = plt.subplots(2, 2, figsize=(10.4, 7.0), sharey="row")
    columns = (
        ([("load", load, 1.0) for load in LOADS], list(LOADS), "load, S = 1"),
        ([("slo", "medium", slo) for slo in SLOS], [f"{slo:g}" for slo in SLOS], "S, medium load"),
    )
    width = 0.8 / len(MAIN)
    for column, (settings, names, label) in enumerate(columns):
        for row, measure in enumerate((_violations, _cost)):
            axis = axes[row][column]
            for k, policy in enumerate(MAIN):
                found = [measure(sweeps[policy, load, slo]) for _, load, slo in settings]
                at = np.arange(len(settings)) + (k - (len(MAIN) - 1) / 2) * width
                axis.bar(
                    at,
                    [one.mean for one in found],
                    width,
                    yerr=[one.half for one in found],
                    color=COLOURS[policy],
                    label=policy,
                    error_kw={"linewidth": 0.8},
                )
            axis.set_xticks(np.arange(len(settings)), names)
            axis.grid(visible=False, axis="x")
            axis.set_xlabel(label)
    axes[0][0].set_ylabel("SLOs missed, %")
    axes[1][0].set_ylabel("cost, $")
    handles, labels = axes[0][0].get_legend_handles_labels()
    figure.legend(handles, labels, loc="upper right", ncols=3, bbox_to_anchor=(0.99, 1.0))
    count = len(next(iter(sweeps.values())))
    style.headed(figure, "Loads and SLOs", f"Means of {count} seeds, 95 % intervals")
    style.save(figure, out, "sweeps")


@style.styled
def draw_tradeoff(
    ablations: Mapping[str, Sequence[TuningOutcome]], sweeps: Runs, out: Path
) -> None:
    """Violations against cost, medium load, S = 1."""
    figure, axes = plt.subplots(figsize=(9.4, 6.0))
    shown = {name: runs for name, runs in ablations.items() if "printed" not in name}
    shown["elasticflow"] = sweeps["elasticflow", "medium", 1.0]
    names: list[tuple[float, float, str, str]] = []
    for name, runs in shown.items():
        colour = COLOURS.get(name) or COLOURS[name.split("-")[0]]
        x, y = _cost(runs).mean, _violations(runs).mean
        axes.plot([x], [y], "o", color=colour, markersize=8 if name in COLOURS else 4.5)
        names.append((x, y, name, colour))
    axes.margins(0.15)
    axes.set(xlabel="cost, $", ylabel="SLOs missed, %")
    count = len(next(iter(shown.values())))
    below = f"Lower left is better; medium load, S = 1, means of {count} seeds"
    style.headed(figure, "SLOs missed against cost", below)
    figure.tight_layout(rect=(0.0, 0.0, 1.0, 1.0 - 0.68 / figure.get_figheight()))
    style.label_apart(axes, names)
    style.save(figure, out, "tradeoff")


@style.styled
def draw_errors(ablations: Mapping[str, Sequence[TuningOutcome]], out: Path) -> None:
    """The repaired rules with one error of the text put back."""
    rows = ["repaired", *(name for name in ablations if name.endswith("-printed")), "printed"]
    figure, both = plt.subplots(1, 2, figsize=(10.0, 1.6 + 0.36 * len(rows)), sharey=True)
    panels = ((both[0], _violations, "SLOs missed, %"), (both[1], _cost, "cost, $"))
    for axes, measure, label in panels:
        found = [measure(ablations[name]) for name in rows]
        axes.barh(
            rows,
            [one.mean for one in found],
            xerr=[one.half for one in found],
            color=[COLOURS.get(name, style.PINK) for name in rows],
            error_kw={"linewidth": 0.8},
        )
        axes.set_xlabel(label)
        axes.grid(visible=False, axis="y")
    both[0].invert_yaxis()
    count = len(ablations["repaired"])
    below = f"Medium load, S = 1; means of {count} seeds, 95 % intervals"
    style.headed(figure, "One error of the text at a time", below)
    style.save(figure, out, "errors")


@style.styled
def draw_lookups(results: Sequence[TaskResult], out: Path) -> None:
    """How near to the ideal each lookup comes, and what it scores (figures 9a and 10b)."""
    figure, (left, right) = plt.subplots(1, 2, figsize=(10.4, 4.6))
    for way, colour in zip(WAYS, WAY_COLOURS, strict=True):
        near = np.sort([100.0 * result.relative(way) for result in results])
        share = 100.0 * np.arange(1, len(near) + 1) / len(near)
        left.step(near, share, where="post", color=colour, label=way)
        rows = float(np.mean([result.found[way].rows_scored for result in results]))
        gain = interval([result.speedup(way) for result in results])
        right.errorbar([rows], [gain.mean], yerr=[gain.half], fmt="o", color=colour, label=way)
    left.set(xlabel="speed of tuning, % of the ideal prompt's", ylabel="tasks below, %")
    left.legend(loc="upper left")
    right.set_xscale("log")
    right.set(xlabel="losses computed (logarithmic)", ylabel="speed-up over a random prompt")
    below = f"{len(results)} tasks; a prompt's speed is one over its iterations to accuracy"
    style.headed(figure, "What lookups find", below)
    style.save(figure, out, "lookups")


def _violations(runs: Sequence[TuningOutcome]) -> Interval:
    return interval([100.0 * run.violation_share for run in runs])


def _cost(runs: Sequence[TuningOutcome]) -> Interval:
    return interval([run.cost_usd for run in runs])
