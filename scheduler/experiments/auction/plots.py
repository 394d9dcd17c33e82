"""Plots of ``reproduce auction``, each as PNG and SVG."""

# Matplotlib is typed in part only.
# pyright: basic
from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from textwrap import fill
from typing import Any

import matplotlib

matplotlib.use("Agg")
import numpy as np
from matplotlib import pyplot as plt

from scheduler.experiments.auction.experiments import NAMES, Lie, Ratio, Winner

#: The same bytes for the same figures.
matplotlib.rcParams["svg.hashsalt"] = "finetender"
#: Characters of a line below a group of bars.
LABEL_WIDTH = 17


def save(figure: Any, out: Path, name: str) -> None:
    figure.tight_layout()
    figure.savefig(out / f"{name}.png", dpi=110)
    figure.savefig(out / f"{name}.svg", metadata={"Date": None})
    plt.close(figure)


def bars(
    table: Mapping[str, Mapping[str, Sequence[float]]], out: Path, *, name: str, title: str, y: str
) -> None:
    """Draw groups by x, a bar per policy; whiskers from least to most over seeds."""
    figure, axes = plt.subplots(figsize=(max(7.0, 1.2 * len(table)), 4.4))
    width = 0.8 / len(NAMES)
    for i, policy in enumerate(NAMES):
        values = [np.array(row[policy]) for row in table.values()]
        means = np.array([v.mean() for v in values])
        spread = np.array([[m - v.min(), v.max() - m] for m, v in zip(means, values, strict=True)])
        at = np.arange(len(values)) + (i - (len(NAMES) - 1) / 2) * width
        axes.bar(at, means, width, label=policy, yerr=np.maximum(spread.T, 0.0), capsize=2)
    axes.set_xticks(np.arange(len(table)), [fill(x, LABEL_WIDTH) for x in table])
    if len(table) > 6:
        axes.tick_params(axis="x", labelsize=8)
    axes.margins(x=0.01)
    axes.spines[["top", "right"]].set_visible(False)
    axes.set(title=title, ylabel=y)
    # Room for the legend above the bars.
    axes.set_ylim(0.0, axes.get_ylim()[1] * 1.2)
    axes.legend(fontsize=7, ncols=6, loc="upper center")
    save(figure, out, name)


def lies(found: Sequence[Lie], out: Path) -> None:
    """Gain by stated bid (figure 10)."""
    figure, axes = plt.subplots(figsize=(7.0, 4.2))
    shares = [lie.share for lie in found]
    axes.plot(shares, [lie.critical for lie in found], "o-", label="critical payment")
    axes.plot(shares, [lie.eq14 for lie in found], "s--", label="eq. 14")
    axes.axvline(1.0, color="grey", linewidth=0.6)
    axes.set(xlabel="stated bid / worth", ylabel="mean gain / worth", title="Figure 10")
    axes.legend()
    save(figure, out, "truthfulness")


def winners(found: Sequence[Winner], out: Path) -> None:
    """Bids and payments (figure 11)."""
    figure, axes = plt.subplots(figsize=(7.0, 4.2))
    at = np.arange(len(found))
    axes.bar(at - 0.2, [w.bid for w in found], 0.4, label="bid")
    axes.bar(at + 0.2, [w.payment for w in found], 0.4, label="payment")
    axes.set(xlabel="winner", ylabel="money", title="Figure 11")
    axes.legend()
    save(figure, out, "rationality")


def ratios(found: Sequence[Ratio], out: Path) -> None:
    """Offline optimum over welfare (figure 12)."""
    figure, axes = plt.subplots(figsize=(7.0, 4.2))
    if found:
        axes.boxplot(
            [[min(r.ratios[name], 10.0) for r in found] for name in NAMES], tick_labels=list(NAMES)
        )
    axes.axhline(3.0, color="grey", linewidth=0.6)
    axes.set(ylabel="optimum / welfare (10: more)", title="Figure 12")
    save(figure, out, "competitive")
