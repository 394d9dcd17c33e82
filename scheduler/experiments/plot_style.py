"""The look of the plots: colours that differ for every eye, plain axes, few words."""

# Matplotlib is typed in part only.
# pyright: basic
from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from functools import wraps
from pathlib import Path
from typing import Any, TypeVar, cast

import matplotlib

matplotlib.use("Agg")
from matplotlib import pyplot as plt
from matplotlib.text import Text
from matplotlib.ticker import FixedLocator, FuncFormatter, NullLocator, StrMethodFormatter

F = TypeVar("F", bound=Callable[..., object])

#: Okabe and Ito's colours.
BLACK, GREY = "#222222", "#8a8a8a"
BLUE, SKY, GREEN, YELLOW = "#0072B2", "#56B4E9", "#009E73", "#E69F00"
RED, PINK = "#D55E00", "#CC79A7"
#: Colour and dash of each policy, the same in every plot.
LINES = {
    "improved": (BLUE, "-"),
    "corrected": (RED, "-"),
    "printed": (GREY, "-"),
    "serverless-only": (SKY, "-"),
    "tiresias-p": (GREEN, "-"),
    "tiresias-np": (GREEN, "--"),
    "sjf-p": (PINK, "-"),
    "sjf-np": (PINK, "--"),
    "hpa": (YELLOW, "-"),
    "hpa-one": (YELLOW, "--"),
}
THOUSANDS = StrMethodFormatter("{x:,.0f}")
#: Durations that a reader knows, seconds.
DURATIONS = (
    (1, "1 s"),
    (10, "10 s"),
    (60, "1 min"),
    (600, "10 min"),
    (3600, "1 h"),
    (36_000, "10 h"),
    (360_000, "100 h"),
)
STYLE: dict[Any, Any] = {
    # The same bytes for the same figures, and text that stays text.
    "svg.hashsalt": "finetender",
    "svg.fonttype": "none",
    "font.size": 9.5,
    "text.color": BLACK,
    "axes.labelcolor": BLACK,
    "axes.edgecolor": GREY,
    "axes.spines.top": False,
    "axes.spines.right": False,
    "axes.grid": True,
    "axes.axisbelow": True,
    "axes.titlesize": 10,
    "axes.titlelocation": "left",
    "grid.color": "#e6e6e6",
    "grid.linewidth": 0.8,
    "xtick.color": BLACK,
    "ytick.color": BLACK,
    "lines.linewidth": 1.8,
    "legend.frameon": False,
}


def styled(draw: F) -> F:
    """Draws in this style and leaves the caller's as it was."""

    @wraps(draw)
    def drawn(*args: Any, **named: Any) -> Any:
        with plt.rc_context(STYLE):
            return draw(*args, **named)

    return cast(F, drawn)


def headed(figure: Any, title: str, below: str) -> None:
    """A title and a quieter line that says what is drawn, above all axes."""
    inch = 1.0 / figure.get_figheight()
    figure.text(0.02, 1.0 - 0.12 * inch, title, fontsize=13, fontweight="bold", va="top")
    figure.text(0.02, 1.0 - 0.42 * inch, below, color="#555555", va="top")


def save(figure: Any, out: Path, name: str) -> None:
    """Lays out below the heading and writes PNG and SVG."""
    figure.tight_layout(rect=(0.0, 0.0, 1.0, 1.0 - 0.68 / figure.get_figheight()))
    figure.savefig(out / f"{name}.png", dpi=130)
    figure.savefig(out / f"{name}.svg", metadata={"Date": None})
    plt.close(figure)


def durations(axis: Any, low: float, high: float) -> None:
    """A logarithmic axis of time, marked in seconds, minutes and hours."""
    marks = [(value, text) for value, text in DURATIONS if low <= value <= high]
    names = dict(marks)
    axis.set_major_locator(FixedLocator([value for value, _ in marks]))
    axis.set_minor_locator(NullLocator())
    axis.set_major_formatter(FuncFormatter(lambda value, _: names.get(round(value), "")))


def beside(axes: Any, entries: Sequence[tuple[Any, str]]) -> None:
    """A legend to the right of the axes, in the order given."""
    axes.legend(
        [line for line, _ in entries],
        [text for _, text in entries],
        loc="center left",
        bbox_to_anchor=(1.01, 0.5),
        labelspacing=1.1,
        handlelength=1.8,
    )


def label_apart(axes: Any, points: Sequence[tuple[float, float, str, str]]) -> None:
    """Names points (x, y, text, colour) where no name covers a point or another name."""
    figure = axes.figure
    figure.canvas.draw()
    renderer = figure.canvas.get_renderer()
    dots = [dot for line in axes.get_lines() for dot in axes.transData.transform(line.get_xydata())]
    placed: list[Any] = []
    around = [
        (dx, dy)
        for far in (8, 16, 26, 38, 52, 68)
        for dx, dy in (
            (far, 0),
            (-far, 0),
            *((x * far, y * far) for y in (-1, 1) for x in (1, -1, 0.5, -0.5)),
        )
    ]
    frame = axes.get_window_extent(renderer)

    def named(index: int, offset: tuple[float, float]) -> tuple[Any, Any]:
        x, y, text, colour = points[index]
        made = axes.annotate(
            text,
            (x, y),
            xytext=offset,
            textcoords="offset points",
            color=colour,
            fontsize=8.5,
            ha="left" if offset[0] > 0 else "right",
            va="center",
            arrowprops={"arrowstyle": "-", "color": GREY, "linewidth": 0.6}
            if math.hypot(*offset) > 12
            else None,
        )
        made.update_positions(renderer)
        # Only the text counts, not the line that leads to it.
        return made, Text.get_window_extent(made, renderer).padded(1.5)

    for index in range(len(points)):
        for offset in around:
            made, box = named(index, offset)
            free = frame.x0 <= box.x0 and box.x1 <= frame.x1
            free = free and not any(box.overlaps(other) for other in placed)
            if free and not any(box.contains(*dot) for dot in dots):
                placed.append(box)
                break
            made.remove()
        else:
            placed.append(named(index, around[0])[1])
