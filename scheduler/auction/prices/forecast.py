"""What may still come today, drawn from what came before.

Prices that suit the mean of what may come are too low where a rush may come and
does: the worth of a cell is the mean over futures, each with its own price, not the
price of the mean future. So several futures are drawn.

Each future follows a scenario (``scenarios``). Today's deviation from the scenario fades at a pace
that past days and today show (a first-order autoregression of the relative deviation). Each future
also deviates from its scenario: by noise, and by a constant factor above or below it, as far as
such scenarios have been wrong.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Sequence
from dataclasses import dataclass, replace
from itertools import accumulate
from statistics import NormalDist

import numpy as np

from scheduler.auction.prices.scenarios import ArrivalScenario, find_scenarios
from scheduler.auction.search.grid import Floats
from scheduler.types import Task

#: Bids of today from which on attributes are drawn from today alone.
_ENOUGH = 200
#: Slots in which today's present deviation is seen, and the bids it is averaged with.
_RECENT_SLOTS = 3
_RECENT_BIDS = 6.0
#: Slots over which a deviation is seen to grow, each time held against as many before,
#: and the bids that both are averaged with.
_TREND_SLOTS, _TREND_BIDS = 6, 50.0
#: Growth below this many squared standard deviations of the count is taken as noise.
_TREND_NOISE = 2.0
#: How far the growth goes on: its factor, and what it keeps from slot to slot.
_TREND, _TREND_KEPT = 3.0, 0.85
#: Most that today's deviation may multiply its scenario by.
_MOST_DEVIATION = 8.0
#: For a slot under way that has had more bids than a mean slot: bids still expected, as a share of
#: those it has had, and for how many observed slots this prior counts.
_MORE_OF_BURST, _LIKE_BURSTS = 0.5, 4.0
#: Prior of a deviation's pace and size: what it keeps from slot to slot, its
#: variance, the slots it counts for, and the slots apart at which it is compared.
_KEPT, _VARIANCE, _PRIOR_SEEN, _LAG = 0.97, 0.06, 36, 3
#: Least and most of what a deviation is taken to keep from slot to slot: of a rush half is
#: expected to be over within 23 slots, however long it has lasted.
_LEAST_KEPT, _MOST_KEPT = 0.05, 0.97
#: Least variance of a future's noise where no past day predicts its scenario.
_NOISE_VARIANCE = 0.6


@dataclass(frozen=True, slots=True)
class Forecast:
    """Tasks expected, each standing for ``weight`` of them."""

    tasks: tuple[Task, ...]
    weight: float


@dataclass(frozen=True, slots=True)
class ArrivalForecast:
    """What the rest of the day may bring."""

    #: Scenarios, and bids expected by slot in each, with today's deviation.
    scenarios: tuple[ArrivalScenario, ...]
    expected: tuple[Floats, ...]
    #: What a deviation keeps from slot to slot, and the variance of those by chance.
    kept: float
    variance: float
    #: Standard deviation of the log of what comes over what is expected.
    spread: float

    @property
    def mean(self) -> Floats:
        """Bids expected by slot.

        Errors are measured in logs, so a scenario is a median: the mean lies above it.
        """
        shares = [scenario.share for scenario in self.scenarios]
        return np.average(self.expected, axis=0, weights=shares) * np.exp(self.spread**2 / 2)


def forecast_futures(
    *,
    slot: float,
    last_slot: int,
    day_start: int,
    today: Sequence[Task],
    past_days: Sequence[Sequence[Task]],
    most: int,
    futures: int,
    seed: int,
) -> tuple[Forecast, ...]:
    """Draw the bids of the rest of the day, several times.

    A task's work, window, vendors and bid are drawn (bootstrapped) together from
    today's bids, or from past days' until today has enough.

    Parameters
    ----------
    slot : float
        First slot to forecast; of slot 20.5 a half is over.
    last_slot : int
        Last one, and latest deadline.
    day_start : int
        Slot at which today began.
    today : sequence of Task
        Bids decided so far today. Some may arrive in ``slot`` itself, which is under
        way then.
    past_days : sequence of sequences of Task
        Bids of whole past days, their slots counted from the start of the day.
    most : int
        Tasks drawn at most for each future; more expected ones are stood for by
        weight.
    futures : int
        How many; all are equally likely. A single one is the mean of what may come,
        without noise.
    seed : int

    Returns
    -------
    tuple of Forecast
        Each empty when nothing was ever seen.
    """
    left = 1.0 - slot % 1.0
    slot = int(slot)
    under_way = sum(task.arrival_slot == slot for task in today)
    if under_way * (slot - day_start + 1) <= len(today) or slot >= last_slot:
        # No more than in a mean slot: it tells nothing yet.
        under_way = 0
    begin = slot + (under_way > 0)
    elapsed, remaining = begin - day_start, last_slot - begin + 1
    seen = _count_by_slot([t.arrival_slot - day_start for t in today], elapsed)
    past = [_count_by_slot([t.arrival_slot for t in day], elapsed + remaining) for day in past_days]
    more = np.zeros(begin - slot)
    if under_way:
        # As many as were forecast before, or as such bursts still bring.
        missing = float(forecast_arrivals(seen[:-1], past, remaining + 1).mean[0]) - under_way
        more[0] = max(missing, _expect_of_burst(float(under_way), seen[:-1], past))
        seen[-1] += max(missing, 0.0)
    forecast = forecast_arrivals(seen, past, remaining)
    donors = list(today)
    if len(donors) < _ENOUGH:
        donors += [t for day in past_days for t in day]
    mean = forecast.mean
    # What a slot under way still brings; of one with many bids that is said by ``more``.
    still = np.ones(len(mean))
    still[:1] = 1.0 if under_way else left
    if futures == 1:
        rate = np.concatenate([more, mean * still])
        return (_draw_tasks(rate, donors, slot, last_slot, most, np.random.default_rng(seed)),)
    rates = _draw_rates(forecast, remaining, futures=futures, seed=seed)
    return tuple(
        _draw_tasks(
            np.concatenate([more, rate * still]),
            donors,
            slot,
            last_slot,
            most,
            np.random.default_rng([seed, n]),
        )
        for n, rate in enumerate(rates)
    )


def _draw_rates(
    forecast: ArrivalForecast, remaining: int, *, futures: int, seed: int
) -> list[Floats]:
    """Give the mean arrivals by slot of each future."""
    upto = list(accumulate(scenario.share for scenario in forecast.scenarios))
    rates: list[Floats] = []
    for n in range(futures):
        scenario = min(bisect_left(upto, (n + 0.5) / futures * upto[-1]), len(upto) - 1)
        # Futures go in pairs that deviate to opposite sides.
        side = 1.0 if n % 2 == 0 else -1.0
        pair, pairs = n // 2, (futures + 1) // 2
        level = side * NormalDist().inv_cdf(0.5 + (pair + 0.5) / (2 * pairs))
        chance = side * np.random.default_rng([seed, futures + pair]).normal(size=remaining)
        noise = _draw_noise(chance, forecast.kept, forecast.variance)
        rates.append(forecast.expected[scenario] * noise * np.exp(forecast.spread * level))
    # Few futures: together they shall expect neither more nor less than the mean.
    total = float(np.sum(rates)) / futures
    scale = float(forecast.mean.sum()) / total if total > 0 else 1.0
    return [rate * scale for rate in rates]


def _count_by_slot(slots: Sequence[int], length: int) -> Floats:
    """Count by slot, those outside the length left out."""
    found = np.array([slot for slot in slots if 0 <= slot < length], np.int64)
    return np.bincount(found, minlength=max(length, 0)).astype(np.float64)


def forecast_arrivals(seen: Floats, past: Sequence[Floats], remaining: int) -> ArrivalForecast:
    """Forecast the rest of the day from today's and past days' counts."""
    found = find_scenarios(seen, past, remaining)
    likeliest = max(found.scenarios, key=lambda scenario: scenario.share)
    kept, variance = _measure_pace(seen, past, likeliest.before)
    doubt = 1.0 - found.trust
    return ArrivalForecast(
        scenarios=found.scenarios,
        expected=tuple(c.rest * _compute_deviation(seen, c, kept, doubt) for c in found.scenarios),
        kept=kept,
        variance=max(variance, doubt * _NOISE_VARIANCE),
        spread=found.spread,
    )


def _expect_of_burst(had: float, seen: Floats, past: Sequence[Floats]) -> float:
    """Give the bids that a slot with so many brings yet, by those that brought as many.

    Slots of past days count in proportion to their day.
    """
    level = (float(seen.sum()) + had) / (len(seen) + 1)
    total, count = _LIKE_BURSTS * _MORE_OF_BURST * had, _LIKE_BURSTS
    reached = [seen]
    reached += [day * (level / float(day.mean())) for day in past if day.sum() > 0]
    for day in reached:
        over = day[day >= had] - had
        total += float(over.sum())
        count += len(over)
    return total / count


def _measure_pace(seen: Floats, past: Sequence[Floats], before: Floats) -> tuple[float, float]:
    """Give what a relative deviation keeps from slot to slot, and its variance.

    Regression of the deviation on itself ``_LAG`` slots earlier, counting noise
    (Poisson) taken off, over today against its scenario and past days against their
    mean.
    """
    rows = [(seen, before, 1.0)]
    if len(past) > 1:
        mean = np.sum(past, axis=0) / len(past)
        # Each day is part of the mean, and another day than today.
        weight = 0.5 * len(past) / (len(past) - 1)
        rows += [(day, mean * (day.sum() / max(mean.sum(), 1e-9)), weight) for day in past]
    spread = _PRIOR_SEEN * _VARIANCE
    kept, held, count = spread * _KEPT**_LAG, spread, float(_PRIOR_SEEN)
    least = 0.5 * spread
    for day, scenario, weight in rows:
        if len(day) <= _LAG:
            continue
        able = scenario > 0
        safe = np.where(able, scenario, 1.0)
        off = np.where(able, day / safe - 1.0, 0.0)
        true = off**2 - np.where(able, 1.0 / safe, 0.0)
        kept += weight * float(np.sum(off[:-_LAG] * off[_LAG:]))
        held += weight * float(np.sum(true[:-_LAG]))
        spread += weight * float(np.sum(true))
        count += weight * float(np.sum(able))
    share = float(np.clip(kept / max(held, least), _LEAST_KEPT**_LAG, _MOST_KEPT**_LAG))
    return share ** (1.0 / _LAG), float(np.clip(spread / count, 1e-3, 4.0))


def _compute_deviation(
    seen: Floats, scenario: ArrivalScenario, kept: float, doubt: float
) -> Floats:
    """Give the factor of today's present deviation, fading slot by slot.

    A growing deviation goes on growing for a while: longer if deviations last longer, and if past
    days, which would have shown it, are trusted less.
    """
    now = float(seen[-_RECENT_SLOTS:].sum())
    usual = float(scenario.before[-_RECENT_SLOTS:].sum())
    ratio = np.log((_RECENT_BIDS + now) / (_RECENT_BIDS + usual))
    ahead = np.arange(1, len(scenario.rest) + 1)
    fading = kept**ahead
    log = ratio * fading
    if len(seen) >= 2 * _TREND_SLOTS:
        rise = (
            doubt
            * _TREND
            * kept**_TREND_SLOTS
            * _measure_growth(seen, scenario.before)
            / _TREND_SLOTS
        )
        log += rise * _TREND_KEPT * (1 - _TREND_KEPT**ahead) / (1 - _TREND_KEPT) * fading
    factor = np.exp(np.minimum(log, np.log(_MOST_DEVIATION)))
    return factor / factor.mean() if scenario.has_fixed_total and len(factor) else factor


def _measure_growth(seen: Floats, before: Floats) -> float:
    """Give how much the log of today's deviation grew over the last ``_TREND_SLOTS``.

    Shrunk by what counting noise alone would make of it.
    """
    late, early = slice(-_TREND_SLOTS, None), slice(-2 * _TREND_SLOTS, -_TREND_SLOTS)
    now, earlier = seen[late].sum() + _TREND_BIDS, seen[early].sum() + _TREND_BIDS
    usual = (before[late].sum() + _TREND_BIDS) / (before[early].sum() + _TREND_BIDS)
    grown = float(np.log(now / earlier / usual))
    noise = _TREND_NOISE * (1.0 / now + 1.0 / earlier)
    return grown * max(1.0 - noise / grown**2, 0.0) if grown != 0 else 0.0


def _draw_noise(chance: Floats, kept: float, variance: float) -> Floats:
    """Give factors of mean one that follow an autoregression and begin at one."""
    spread = np.log1p(variance)
    walk, at = np.empty(len(chance)), 0.0
    fresh = np.sqrt(1.0 - kept * kept)
    for n, step in enumerate(chance.tolist()):
        at = kept * at + fresh * step
        walk[n] = at
    reached = spread * (1.0 - kept ** (2 * np.arange(1, len(chance) + 1)))
    return np.exp(np.sqrt(spread) * walk - 0.5 * reached)


def _draw_tasks(
    rates: Floats,
    donors: Sequence[Task],
    slot: int,
    last_slot: int,
    most: int,
    rng: np.random.Generator,
) -> Forecast:
    """Draw tasks that arrive at given mean rates, evenly spread over them."""
    total = float(rates.sum())
    count = min(round(total), most)
    if count <= 0 or not donors:
        return Forecast(tasks=(), weight=0.0)
    at = (np.arange(count) + rng.random()) / count
    places = np.minimum(np.searchsorted(np.cumsum(rates) / total, at), len(rates) - 1)
    slots: list[int] = (slot + places).tolist()
    picks: list[int] = rng.integers(len(donors), size=count).tolist()
    return Forecast(
        tasks=tuple(
            _move_task(donors[pick], arrival, last_slot)
            for pick, arrival in zip(picks, slots, strict=True)
        ),
        weight=total / count,
    )


def _move_task(task: Task, arrival: int, last_slot: int) -> Task:
    window = task.deadline_slot - task.arrival_slot
    return replace(task, arrival_slot=arrival, deadline_slot=min(arrival + window, last_slot))
