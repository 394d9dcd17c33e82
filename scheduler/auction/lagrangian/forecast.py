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
#: Slots whose mean rate is taken to go on.
_RECENT_SLOTS = 6
#: Slots that are compared at a time when today is held against past days.
_BIN_SLOTS = 6


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
    far against theirs, as far as today has looked like them; for the rest, and
    without past days, today's rate of the last hour goes on. Everything
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
    seen = _counts([t.arrival_slot - day_start for t in today], elapsed)
    trust = 0.0
    past_rest: Floats = np.zeros(remaining)
    if past_days:
        mean = _counts([t.arrival_slot for day in past_days for t in day], elapsed + remaining)
        mean /= len(past_days)
        trust = _trust(seen, mean[:elapsed], days=len(past_days))
        prior = float(mean.mean()) * _PRIOR_SLOTS
        before = float(mean[:elapsed].sum())
        scale = (len(today) + prior) / (before + prior) if before + prior > 0 else 1.0
        past_rest = mean[elapsed:] * scale
    recent = seen[-_RECENT_SLOTS:]
    going_on = float(recent.mean()) if elapsed > 0 else 0.0
    expected = trust * past_rest + (1.0 - trust) * going_on
    total = float(expected.sum())
    donors = list(today)
    if len(donors) < _ENOUGH:
        donors += [t for day in past_days for t in day]
    count = min(round(total), most)
    if count <= 0 or not donors:
        return Forecast(tasks=(), weight=0.0)
    arrivals = slot + rng.choice(remaining, size=count, p=expected / total)
    picks: list[int] = rng.integers(len(donors), size=count).tolist()
    slots: list[int] = np.sort(arrivals).tolist()
    tasks = tuple(
        _moved(donors[pick], arrival, last_slot) for pick, arrival in zip(picks, slots, strict=True)
    )
    return Forecast(tasks=tasks, weight=total / count)


def _counts(slots: Sequence[int], length: int) -> Floats:
    """Count by slot, those outside the length left out."""
    table = np.zeros(max(length, 0))
    for slot in slots:
        if 0 <= slot < length:
            table[slot] += 1.0
    return table


def _trust(today: Floats, past: Floats, *, days: int) -> float:
    """Tell how far today so far has had the shape of past days, 0 to 1.

    The share of today's bids that would have to move to give the past's shape,
    less what chance alone would make of it, three times.
    """
    bins = len(today) // _BIN_SLOTS
    if bins < 2:
        return 1.0
    held = today[: bins * _BIN_SLOTS].reshape(bins, -1).sum(axis=1)
    like = past[: bins * _BIN_SLOTS].reshape(bins, -1).sum(axis=1)
    if held.sum() <= 0 or like.sum() <= 0:
        return 1.0
    like = like * (held.sum() / like.sum())
    moved = float(np.abs(held - like).sum() / (2 * held.sum()))
    # Mean absolute difference of Poisson counts of this size.
    chance = float(np.sqrt(2 / np.pi * like * (1 + 1 / days)).sum() / (2 * held.sum()))
    return float(np.clip(1.0 - 3.0 * max(moved - chance, 0.0), 0.0, 1.0))


def _moved(task: Task, arrival: int, last_slot: int) -> Task:
    window = task.deadline_slot - task.arrival_slot
    return replace(task, arrival_slot=arrival, deadline_slot=min(arrival + window, last_slot))
