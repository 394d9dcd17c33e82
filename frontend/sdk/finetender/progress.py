"""Where a job stands, drawn while it runs: a line in a terminal, a panel in a notebook."""

from __future__ import annotations

import html
import sys
import uuid
from collections.abc import Callable, Mapping
from contextlib import suppress
from importlib import import_module
from itertools import pairwise
from typing import Any, TextIO

from finetender.values import ENDED, JobEvent

_BAR_CELLS = 24
#: Heights of a curve's columns.
_HEIGHTS = "▁▂▃▄▅▆▇█"
_CURVE_CELLS = 24


def draw_bar(share: float, *, cells: int = _BAR_CELLS) -> str:
    """A bar of which ``share`` (0 to 1) is filled."""
    filled = round(min(max(share, 0.0), 1.0) * cells)
    return "█" * filled + "░" * (cells - filled)


def draw_curve(values: list[float], *, cells: int = _CURVE_CELLS) -> str:
    """The course of values, the newest last; each column is the mean of its share of them."""
    if not values:
        return ""
    count = min(cells, len(values))
    edges = [index * len(values) // count for index in range(count + 1)]
    columns = [sum(values[start:stop]) / (stop - start) for start, stop in pairwise(edges)]
    low, high = min(columns), max(columns)
    span = (high - low) or 1.0
    return "".join(_HEIGHTS[round((each - low) / span * (len(_HEIGHTS) - 1))] for each in columns)


def keep_printable(text: str, *, also: str = "") -> str:
    """Text for a terminal: no character that could steer it, but for those in ``also``."""
    return "".join(letter if letter.isprintable() or letter in also else " " for letter in text)


def say(
    text: str = "",
    *,
    file: TextIO | None = None,
    end: str = "\n",
    also: str = "",
    flush: bool = False,
) -> None:
    """Print text that a market or a file may have a part in, which steers no terminal by it."""
    print(keep_printable(text, also=also), file=file, end=end, flush=flush)


class JobView:
    """What of a job's stream is worth showing."""

    def __init__(self) -> None:
        self.status = ""
        self.losses: list[float] = []
        self._progress: Mapping[str, Any] = {}

    def take(self, event: JobEvent) -> None:
        self.status = event.status or self.status
        self._progress = event.progress or self._progress
        loss = self._progress.get("train_loss")
        if loss is not None and (not self.losses or self.losses[-1] != loss):
            self.losses.append(loss)

    @property
    def share(self) -> float:
        return (self._progress.get("step") or 0) / (self._progress.get("total_steps") or 1)

    def describe(self) -> str:
        """Steps, losses and status in one line."""
        step = self._progress.get("step") or 0
        parts = [f"{self.share:4.0%}", f"step {step}/{self._progress.get('total_steps') or '?'}"]
        for name, label in (("train_loss", "loss"), ("valid_loss", "validation")):
            if (value := self._progress.get(name)) is not None:
                parts.append(f"{label} {value:.3f}")
        return "  ".join([*parts, self.status])


def follow_in_terminal(stream: TextIO) -> Callable[[JobEvent], None]:
    """Draw a job's events: one line that is drawn again, or plain lines without a terminal."""
    view, drawn = JobView(), ""

    def show(event: JobEvent) -> None:
        nonlocal drawn
        view.take(event)
        is_news = event.kind != "progress"
        if not stream.isatty():
            if is_news:
                say(event.message, file=stream, flush=True)
            return
        if is_news:
            print(f"\r\x1b[K{keep_printable(event.message)}", file=stream)
        told = f"{draw_bar(view.share)} {view.describe()}  {draw_curve(view.losses)}"
        drawn = keep_printable(told)
        end = "\n" if event.status in ENDED else ""
        print(f"\r\x1b[K{drawn}", end=end, file=stream, flush=True)

    return show


def follow_in_notebook(display: Callable[..., Any]) -> Callable[[JobEvent], None]:
    """Draw a job's events into one output of a notebook's cell."""
    view, shown, messages = JobView(), uuid.uuid4().hex, list[str]()
    is_first = True

    def show(event: JobEvent) -> None:
        nonlocal is_first
        view.take(event)
        if event.kind != "progress":
            messages.append(html.escape(event.message))
        panel = (
            f'<progress max="1" value="{view.share:.4f}"></progress> '
            f"{html.escape(view.describe())} <code>{draw_curve(view.losses)}</code>"
            f"<ul>{''.join(f'<li>{each}</li>' for each in messages[-5:])}</ul>"
        )
        display({"text/html": panel}, raw=True, display_id=shown, update=not is_first)
        is_first = False

    return show


def choose_view() -> Callable[[JobEvent], None]:
    """The view that suits where this runs."""
    with suppress(ImportError):
        # There only where a notebook is.
        shell: Any = import_module("IPython")
        if "IPKernelApp" in getattr(shell.get_ipython(), "config", {}):
            return follow_in_notebook(shell.display.display)
    return follow_in_terminal(sys.stderr)
