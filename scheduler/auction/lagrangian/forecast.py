"""What may still come today, drawn from what came before.

Prices that suit the mean of what may come are too low where a rush may come and
does: the worth of a cell is the mean over futures, each with its own price, not the
price of the mean future. So several futures are drawn.

Arrivals follow a *course*: one of the past days, rescaled; or today's mean rate; or
today's mean rate until now and then what is missing to a past day's total. Today's
deviation from the course goes back to nothing at a pace that past days and today
show (a first-order autoregression of the relative deviation), and on top of that
each future strays from the course by chance.
"""

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
#: Slots that are compared at a time when today is held against past days.
_BIN_SLOTS = 6
#: Slots in which today's present deviation is seen, and the bids it is averaged with.
_RECENT_SLOTS = 3
_RECENT_BIDS = 6.0
#: Share of the futures without a course of the past that end at a past day's total.
_SAME_TOTAL = 0.5
#: Slots over which a deviation is seen to grow, each time held against as many before,
#: and the bids that both are averaged with.
_TREND_SLOTS, _TREND_BIDS = 6, 50.0
#: Growth of fewer than so many (squared) standard deviations of counting is none.
_TREND_NOISE = 4.0
#: How far the growth goes on: its factor, and what it keeps from slot to slot.
_TREND, _TREND_KEPT = 2.0, 0.85
#: Most that today's deviation may multiply its course by.
_MOST_DEVIATION = 8.0
#: Bids still expected of a slot under way that has had more than a mean one, as a share
#: of those it has had.
_MORE_OF_BURST = 0.5
#: Prior of a deviation's pace and size: what it keeps from slot to slot, its
#: variance, the slots it counts for, and the slots apart at which it is compared.
_KEPT, _VARIANCE, _PRIOR_SEEN, _LAG = 0.97, 0.06, 36, 3
#: Least and most of what a deviation is taken to keep from slot to slot.
_LEAST_KEPT, _MOST_KEPT = 0.05, 0.998
#: Least variance by which a future strays where no past day tells its course, and
#: what its straying keeps from slot to slot at most (a rush lasts).
_STRAYING, _STRAYING_KEPT = 0.6, 0.985


@dataclass(frozen=True, slots=True)
class Forecast:
    """Tasks expected, each standing for ``weight`` of them."""

    tasks: tuple[Task, ...]
    weight: float


@dataclass(frozen=True, slots=True)
class _Course:
    """How arrivals may go, by slot of the day."""

    #: How likely it is taken to be.
    share: float
    #: What it would have had until now, and has from now on.
    before: Floats
    rest: Floats


def forecast_futures(
    *,
    slot: int,
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
    slot : int
        First slot to forecast.
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
        without straying.
    seed : int

    Returns
    -------
    tuple of Forecast
        Each empty when nothing was ever seen.
    """
    under_way = sum(task.arrival_slot == slot for task in today)
    if under_way * (slot - day_start + 1) <= len(today) or slot >= last_slot:
        # No more than in a mean slot: it tells nothing yet.
        under_way = 0
    begin = slot + (under_way > 0)
    elapsed, remaining = begin - day_start, last_slot - begin + 1
    seen = _counts([t.arrival_slot - day_start for t in today], elapsed)
    past = [_counts([t.arrival_slot for t in day], elapsed + remaining) for day in past_days]
    courses, trust = _courses(seen, past, remaining)
    more = np.full(begin - slot, _MORE_OF_BURST * under_way)
    if under_way and past:
        # As far as past days are trusted they tell what the slot has still to come.
        missing = trust * max(float(courses[0].before[-1]) - under_way, 0.0)
        more = np.maximum(more, missing)
        seen[-1] += missing
    kept, variance = _pace(seen, past, max(courses, key=lambda c: c.share).before)
    variance = max(variance, (1.0 - trust) * _STRAYING)
    expected = [course.rest * _deviation(seen, course, kept, 1.0 - trust) for course in courses]
    donors = list(today)
    if len(donors) < _ENOUGH:
        donors += [t for day in past_days for t in day]
    shares = np.array([course.share for course in courses])
    mean = np.sum([s * rate for s, rate in zip(shares, expected, strict=True)], axis=0)
    if futures == 1:
        rate = np.concatenate([more, mean])
        return (_drawn(rate, donors, slot, last_slot, most, np.random.default_rng(seed)),)
    upto = np.cumsum(shares) / shares.sum()
    rates: list[Floats] = []
    for n in range(futures):
        course = min(int(np.searchsorted(upto, (n + 0.5) / futures)), len(courses) - 1)
        # Futures go in pairs that stray to opposite sides.
        chance = np.random.default_rng([seed, futures + n // 2]).normal(size=remaining)
        rates.append(
            expected[course]
            * _straying(chance if n % 2 == 0 else -chance, min(kept, _STRAYING_KEPT), variance)
        )
    # Few futures: together they shall expect neither more nor less than the mean.
    total = float(np.sum(rates)) / futures
    scale = float(mean.sum()) / total if total > 0 else 1.0
    return tuple(
        _drawn(
            np.concatenate([more, rate * scale]),
            donors,
            slot,
            last_slot,
            most,
            np.random.default_rng([seed, n]),
        )
        for n, rate in enumerate(rates)
    )


def _counts(slots: Sequence[int], length: int) -> Floats:
    """Count by slot, those outside the length left out."""
    found = np.array([slot for slot in slots if 0 <= slot < length], np.int64)
    return np.bincount(found, minlength=max(length, 0)).astype(np.float64)


def _courses(seen: Floats, past: Sequence[Floats], remaining: int) -> tuple[list[_Course], float]:
    """Give the courses arrivals may take, and how far past days are trusted."""
    elapsed, so_far = len(seen), float(seen.sum())
    if not past:
        level = so_far / elapsed if elapsed else 0.0
        return [_Course(1.0, np.full(elapsed, level), np.full(remaining, level))], 0.0
    mean = np.sum(past, axis=0) / len(past)
    trust = _trust(seen, mean[:elapsed], days=len(past)) * _alike(past)
    prior = float(mean.mean()) * _PRIOR_SLOTS
    usual = float(mean[:elapsed].sum())
    scale = (so_far + prior) / (usual + prior) if usual + prior > 0 else 1.0
    courses = [
        _Course(
            trust / len(past),
            mean[:elapsed] * scale,
            # One day's own bursts, half smoothed by the other days.
            0.5 * (day + mean)[elapsed:] * scale,
        )
        for day in past
    ]
    level = (so_far + 0.5 * prior) / (elapsed + 0.5 * _PRIOR_SLOTS)
    missing = max((float(mean.sum()) - so_far) / max(remaining, 1), 0.5 * level)
    for share, rate in ((1.0 - _SAME_TOTAL, level), (_SAME_TOTAL, missing)):
        before, rest = np.full(elapsed, level), np.full(remaining, rate)
        courses.append(_Course((1.0 - trust) * share, before, rest))
    return courses, trust


def _alike(past: Sequence[Floats]) -> float:
    """Tell how far past days tell of each other, 0 to 1.

    They do where each has the shape of the others but for chance, and where the
    others' mean foretells it better than even arrivals do; an eighth better is
    enough.
    """
    if len(past) < 2:
        return 1.0
    total, others = np.sum(past, axis=0), len(past) - 1
    means = [(total - day) / others for day in past]
    pairs = list(zip(past, means, strict=True))
    trust = float(np.mean([_trust(day, mean, days=others) for day, mean in pairs]))
    off = sum(_off(day, mean)[0] for day, mean in pairs)
    off_even = sum(_off(day, np.ones(len(day)))[0] for day in past)
    better = 1.0 - off / off_even if off_even > 0 else 0.0
    return float(np.clip(max(trust, 8.0 * better), 0.0, 1.0))


def _trust(today: Floats, past: Floats, *, days: int) -> float:
    """Tell how far today so far has had the shape of past days, 0 to 1.

    The share of today's bids that would have to move to give the past's shape,
    less what chance alone would make of it, three times.
    """
    off, like = _off(today, past)
    # Mean absolute difference of Poisson counts of this size.
    chance = np.sqrt(2 / np.pi * like * (1 + 1 / days)).sum() / max(2 * like.sum(), 1e-9)
    return float(np.clip(1.0 - 3.0 * max(off - float(chance), 0.0), 0.0, 1.0))


def _off(today: Floats, past: Floats) -> tuple[float, Floats]:
    """Give the share of bids that would have to move, and what the past's shape is.

    Some slots at a time; 0 where there is too little to tell.
    """
    bins = len(today) // _BIN_SLOTS
    held = today[: bins * _BIN_SLOTS].reshape(bins, _BIN_SLOTS).sum(axis=1)
    like = past[: bins * _BIN_SLOTS].reshape(bins, _BIN_SLOTS).sum(axis=1)
    if bins < 2 or held.sum() <= 0 or like.sum() <= 0:
        return 0.0, np.zeros(0)
    like = like * (held.sum() / like.sum())
    return float(np.abs(held - like).sum() / (2 * held.sum())), like


def _pace(seen: Floats, past: Sequence[Floats], before: Floats) -> tuple[float, float]:
    """Give what a relative deviation keeps from slot to slot, and its variance.

    Regression of the deviation on itself ``_LAG`` slots earlier, counting noise
    (Poisson) taken off, over today against its course and past days against their
    mean.
    """
    rows = [(seen, before, 1.0)]
    if len(past) > 1:
        mean = np.sum(past, axis=0) / len(past)
        # Each day is part of the mean, and tells of another day than today.
        weight = 0.5 * len(past) / (len(past) - 1)
        rows += [(day, mean * (day.sum() / max(mean.sum(), 1e-9)), weight) for day in past]
    spread = _PRIOR_SEEN * _VARIANCE
    kept, held, count = spread * _KEPT**_LAG, spread, float(_PRIOR_SEEN)
    least = 0.5 * spread
    for day, course, weight in rows:
        if len(day) <= _LAG:
            continue
        able = course > 0
        safe = np.where(able, course, 1.0)
        off = np.where(able, day / safe - 1.0, 0.0)
        true = off**2 - np.where(able, 1.0 / safe, 0.0)
        kept += weight * float(np.sum(off[:-_LAG] * off[_LAG:]))
        held += weight * float(np.sum(true[:-_LAG]))
        spread += weight * float(np.sum(true))
        count += weight * float(np.sum(able))
    share = float(np.clip(kept / max(held, least), _LEAST_KEPT**_LAG, _MOST_KEPT**_LAG))
    return share ** (1.0 / _LAG), float(np.clip(spread / count, 1e-3, 4.0))


def _deviation(seen: Floats, course: _Course, kept: float, doubt: float) -> Floats:
    """Give the factor of today's present deviation, fading slot by slot.

    One that grows goes on growing for a while, the further the longer deviations last and
    the less past days are trusted, which would have told of it.
    """
    now = float(seen[-_RECENT_SLOTS:].sum())
    usual = float(course.before[-_RECENT_SLOTS:].sum())
    ratio = np.log((_RECENT_BIDS + now) / (_RECENT_BIDS + usual))
    ahead = np.arange(1, len(course.rest) + 1)
    fading = kept**ahead
    log = ratio * fading
    if len(seen) >= 2 * _TREND_SLOTS:
        rise = doubt * _TREND * kept**_TREND_SLOTS * _growth(seen, course.before) / _TREND_SLOTS
        log += rise * _TREND_KEPT * (1 - _TREND_KEPT**ahead) / (1 - _TREND_KEPT) * fading
    return np.exp(np.minimum(log, np.log(_MOST_DEVIATION)))


def _growth(seen: Floats, before: Floats) -> float:
    """Give how much the log of today's deviation grew over the last ``_TREND_SLOTS``.

    Shrunk by what counting noise alone would make of it.
    """
    late, early = slice(-_TREND_SLOTS, None), slice(-2 * _TREND_SLOTS, -_TREND_SLOTS)
    now, earlier = seen[late].sum() + _TREND_BIDS, seen[early].sum() + _TREND_BIDS
    usual = (before[late].sum() + _TREND_BIDS) / (before[early].sum() + _TREND_BIDS)
    grown = float(np.log(now / earlier / usual))
    noise = _TREND_NOISE * (1.0 / now + 1.0 / earlier)
    return grown * max(1.0 - noise / grown**2, 0.0) if grown != 0 else 0.0


def _straying(chance: Floats, kept: float, variance: float) -> Floats:
    """Give factors of mean one that wander, beginning at one."""
    spread = np.log1p(variance)
    walk, at = np.empty(len(chance)), 0.0
    fresh = np.sqrt(1.0 - kept * kept)
    for n, step in enumerate(chance.tolist()):
        at = kept * at + fresh * step
        walk[n] = at
    reached = spread * (1.0 - kept ** (2 * np.arange(1, len(chance) + 1)))
    return np.exp(np.sqrt(spread) * walk - 0.5 * reached)


def _drawn(
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
            _moved(donors[pick], arrival, last_slot)
            for pick, arrival in zip(picks, slots, strict=True)
        ),
        weight=total / count,
    )


def _moved(task: Task, arrival: int, last_slot: int) -> Task:
    window = task.deadline_slot - task.arrival_slot
    return replace(task, arrival_slot=arrival, deadline_slot=min(arrival + window, last_slot))
