"""What may still come today, drawn from what came before."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np

from scheduler.auction.grid import Floats
from scheduler.types import Task

#: Bids of today from which on attributes are drawn from today alone.
_ENOUGH = 200
#: Slots' worth of a past day's bids that today's count is averaged with.
_PRIOR_SLOTS = 6


@dataclass(frozen=True, slots=True)
class Forecast:
    """Tasks expected, each standing for ``weight`` of them."""

    tasks: tuple[Task, ...]
    weight: float


def forecast_arrivals(
    *,
    slot: int,
    last_slot: int,
    day_start: int,
    today: Sequence[Task],
    past_days: Sequence[Sequence[Task]],
    most: int,
    seed: int,
) -> Forecast:
    """Draw the bids of the rest of the day.

    Arrival times come from past days, their number rescaled by today's count so
    far against theirs; without past days, today's mean rate goes on. Everything
    else about a task is drawn (bootstrapped) from today's bids, or from past
    days' until today has enough.

    Parameters
    ----------
    slot : int
        First slot to forecast.
    last_slot : int
        Last one, and latest deadline.
    day_start : int
        Slot at which today began.
    today : sequence of Task
        Bids decided so far today.
    past_days : sequence of sequences of Task
        Bids of whole past days, their slots counted from the start of the day.
    most : int
        Tasks drawn at most; more expected ones are stood for by weight.
    seed : int

    Returns
    -------
    Forecast
        Empty when nothing was ever seen.
    """
    rng = np.random.default_rng(seed)
    elapsed = slot - day_start
    remaining = last_slot - slot + 1
    times: list[int] = []
    if past_days:
        past = [t.arrival_slot for day in past_days for t in day]
        span = max((max((t.arrival_slot for t in day), default=0) for day in past_days), default=0)
        times = [t for t in past if elapsed <= t <= elapsed + remaining - 1]
        before = sum(1 for t in past if t < elapsed) / len(past_days)
        prior = len(past) / len(past_days) / (span + 1) * _PRIOR_SLOTS
        scale = (len(today) + prior) / (before + prior) if before + prior > 0 else 1.0
        expected = len(times) / len(past_days) * scale
    else:
        expected = len(today) / elapsed * remaining if elapsed > 0 else 0.0
    donors = list(today)
    if len(donors) < _ENOUGH:
        donors += [t for day in past_days for t in day]
    count = min(round(expected), most)
    if count <= 0 or not donors or (past_days and not times):
        return Forecast(tasks=(), weight=0.0)
    arrivals: Floats = (
        np.array(times, np.float64)[rng.integers(len(times), size=count)] + day_start
        if past_days
        else slot + rng.integers(remaining, size=count).astype(np.float64)
    )
    picks: list[int] = rng.integers(len(donors), size=count).tolist()
    slots: list[float] = np.sort(arrivals).tolist()
    tasks = tuple(
        _moved(donors[pick], int(arrival), last_slot)
        for pick, arrival in zip(picks, slots, strict=True)
    )
    return Forecast(tasks=tasks, weight=expected / count)


def _moved(task: Task, arrival: int, last_slot: int) -> Task:
    window = task.deadline_slot - task.arrival_slot
    return replace(task, arrival_slot=arrival, deadline_slot=min(arrival + window, last_slot))
