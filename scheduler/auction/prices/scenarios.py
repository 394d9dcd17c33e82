"""How arrivals may go on today, and how likely each scenario is.

A *predictor* takes today's count and past days and gives the rest of the day. Predictors differ in
how far they follow the shape of past days, and in how much weight the count of past days has beside
today's. Each is scored on past days and on today so far. The scores give its weight and its spread.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from scheduler.auction.search.grid import Floats

#: Predictors: the share of past days' shape in the rest of the day (what is left is even), and
#: the slots' worth of a past day's bids that today's count is averaged with.
_PREDICTORS = ((0.0, 3.0), (0.0, 48.0), (0.5, 3.0), (0.5, 48.0), (1.0, 3.0), (1.0, 48.0))
#: Stretches of slots that they are judged by, as seen from every ``_EVERY``-th slot.
_STRETCHES, _EVERY = ((0, 6), (6, 18), (18, 48)), 12
_SHORTEST = 3
#: Bids that counts of a stretch are compared with: in mean slots, and more.
_FEW_SLOTS, _FEW_BIDS = 0.5, 5.0
#: Prior error of a predictor in logs, which counts as much as one past day, and the weight of one
#: stretch as evidence: the next stretch has much the same error.
_PRIOR_ERROR, _EVIDENCE = 0.15, 0.5
#: Standard deviation of a log over its mean absolute error, and the most it is taken for.
_SPREAD, _MOST_SPREAD = 1.25, 0.8
#: Weight of the scenario with a fixed total among those without a shape when past totals agree, and
#: the standard deviation of the logs of totals at which that weight halves.
_FIXED_TOTAL, _TOTALS_HALF = 0.5, 0.2
#: Of the scenario with a fixed total: slots' worth of a past day that today's rate is averaged
#: with, and the least share of that rate still to come once the total is nearly reached.
_TOTAL_PRIOR, _LEAST_LEFT = 3.0, 0.5
#: Slots that are compared at a time when today is held against past days.
_BIN_SLOTS = 6


@dataclass(frozen=True, slots=True)
class ArrivalScenario:
    """One way that arrivals may go, by slot of the day."""

    #: How likely it is taken to be.
    share: float
    #: Bids that it has until now, and from now on.
    before: Floats
    rest: Floats
    #: Whether the sum of the rest is known: today's deviations move bids and add none.
    has_fixed_total: bool = False


@dataclass(frozen=True, slots=True)
class Scenarios:
    """The scenarios of one forecast."""

    #: Those with the fewest bids to come first; shares sum to 1.
    scenarios: tuple[ArrivalScenario, ...]
    #: How far today has the shape of past days, and they each other's, 0 to 1.
    trust: float
    #: Standard deviation of the log of the ratio of what comes to what was predicted.
    spread: float


def find_scenarios(seen: Floats, past: Sequence[Floats], remaining: int) -> Scenarios:
    """Give the scenarios of the rest of the day.

    Parameters
    ----------
    seen : float64[slot]
        Today's bids until now.
    past : sequence of float64[slot]
        Past days' bids, as long as today and the rest together.
    remaining : int
        Slots to predict.
    """
    elapsed, so_far = len(seen), float(seen.sum())
    if not past:
        level = so_far / elapsed if elapsed else 0.0
        only = ArrivalScenario(1.0, np.full(elapsed, level), np.full(remaining, level))
        return Scenarios((only,), 0.0, 0.0)
    mean = np.sum(past, axis=0) / len(past)
    usual = _measure_usual_shape(seen, past)
    shares, error = _weigh_predictors(seen, past, mean, usual)
    # For a day of the usual shape the predictors with a shape give the total.
    same = _share_fixed_total(past) * (1.0 - usual)
    ended = same * float(shares[~_SHAPED].sum())
    shares[~_SHAPED] *= 1.0 - same
    found: list[ArrivalScenario] = []
    for share, (like, prior) in zip(shares.tolist(), _PREDICTORS, strict=True):
        predicted = _predict(seen, mean, like, prior)
        before, rest = predicted[:elapsed], predicted[elapsed:]
        if like < 1.0:
            found.append(ArrivalScenario(share, before, rest))
            continue
        scale = _scale_shape(seen, mean, prior)
        # One day's own bursts, half smoothed by the other days.
        found += [
            ArrivalScenario(share / len(past), before, 0.5 * (rest + day[elapsed:] * scale))
            for day in past
        ]
    level = _predict(seen, mean, 0.0, _TOTAL_PRIOR)
    left = (float(mean.sum()) - so_far) / max(remaining, 1)
    rest = np.maximum(left, _LEAST_LEFT * level[elapsed:])
    found.append(ArrivalScenario(ended, level[:elapsed], rest, has_fixed_total=True))
    found.sort(key=lambda scenario: float(scenario.rest.sum()))
    trust = _measure_trust(seen, mean[:elapsed], days=len(past)) * _measure_likeness(past)
    return Scenarios(tuple(found), trust, min(_SPREAD * error, _MOST_SPREAD))


_SHAPED = np.array([like > 0 for like, _ in _PREDICTORS])


def _scale_shape(seen: Floats, shape: Floats, prior: float) -> float:
    """Give today's count so far as a multiple of a shape's, drawn towards 1."""
    more = float(shape.mean()) * prior
    usual = float(shape[: len(seen)].sum()) + more
    return (float(seen.sum()) + more) / usual if usual > 0 else 1.0


def _predict(seen: Floats, mean: Floats, like: float, prior: float) -> Floats:
    """Give the whole day as a predictor has it from what was seen."""
    level = float(mean.mean())
    if like == 0.0:
        rate = (float(seen.sum()) + prior * level) / max(len(seen) + prior, 1.0)
        return np.full(len(mean), rate)
    shape = like * mean + (1.0 - like) * level
    return shape * _scale_shape(seen, shape, prior)


def _weigh_predictors(
    seen: Floats, past: Sequence[Floats], mean: Floats, usual: float
) -> tuple[Floats, float]:
    """Give how likely each predictor is to be right, and the expected error in logs.

    Errors are assumed to follow Laplace's distribution with the scale of past days, each of which
    is predicted from the others. Predictors that follow a shape count as far as today has had the
    shape of past days (``usual``).
    """
    count = len(past)
    scale = np.full(len(_PREDICTORS), _PRIOR_ERROR)
    for day in past:
        # A single day can only be predicted from itself, which favours its shape.
        others = (count * mean - day) / (count - 1) if count > 1 else day
        scale += _measure_errors(day, others, len(mean))
    scale /= count + 1
    own, stretches = _measure_errors(seen, mean, len(seen)), len(seen) / _EVERY
    cost = (count * len(mean) / _EVERY + stretches) * np.log(scale)
    # An error that all predictors share does not tell them apart.
    cost += stretches * (own - own.min()) / scale
    shares = np.exp(-_EVIDENCE * (cost - cost.min()))
    shares /= shares.sum()
    shaped = float(shares[_SHAPED].sum())
    kept = shaped * usual
    for some, now, then in ((_SHAPED, shaped, kept), (~_SHAPED, 1.0 - shaped, 1.0 - kept)):
        # If all of their weight underflowed, they share it equally.
        shares[some] = shares[some] * (then / now) if now > 1e-12 else then / int(some.sum())
    return shares, float(np.sum(shares * scale))


def _measure_errors(day: Floats, mean: Floats, until: int) -> Floats:
    """Give each predictor's mean absolute error in logs over a day's first slots."""
    rows = [
        (at, at + low, min(at + high, len(mean)))
        for at in range(0, until, _EVERY)
        for low, high in _STRETCHES
    ]
    kept = [row for row in rows if row[2] <= until and row[2] - row[1] >= _SHORTEST]
    if not kept:
        return np.zeros(len(_PREDICTORS))
    at, begin, end = np.array(kept, np.int64).T
    level = float(mean.mean())
    few = _FEW_SLOTS * level + _FEW_BIDS
    had = np.concatenate([[0.0], np.cumsum(day)])
    came = np.log(had[end] - had[begin] + few)
    found = np.empty(len(_PREDICTORS))
    for n, (like, prior) in enumerate(_PREDICTORS):
        usual = np.concatenate([[0.0], np.cumsum(like * mean + (1.0 - like) * level)])
        if like == 0.0:
            rate = (had[at] + prior * level) / (at + prior)
            predicted = rate * (end - begin)
        else:
            more = usual[at] + prior * level
            scale = (had[at] + prior * level) / np.where(more > 0, more, 1.0)
            predicted = (usual[end] - usual[begin]) * scale
        found[n] = float(np.mean(np.abs(np.log(predicted + few) - came)))
    return found


def _share_fixed_total(past: Sequence[Floats]) -> float:
    """Give the weight of the scenario with a fixed total among those without a shape."""
    totals = np.log([max(float(day.sum()), 1.0) for day in past])
    return _FIXED_TOTAL / (1.0 + float(np.var(totals)) / _TOTALS_HALF**2)


def _measure_usual_shape(seen: Floats, past: Sequence[Floats]) -> float:
    """Tell how far today has had the shape of past days, 0 to 1, as they had each other's."""
    elapsed, count, total = len(seen), len(past), np.sum(past, axis=0)
    off, like = _measure_distance(seen, total[:elapsed] / count)
    usual = _expect_distance(like, days=count)
    if count > 1:
        others = [
            _measure_distance(d[:elapsed], (total - d)[:elapsed] / (count - 1))[0] for d in past
        ]
        usual = max(usual, float(np.mean(others)))
    return float(np.clip(1.0 - 3.0 * max(off - usual, 0.0), 0.0, 1.0))


def _measure_likeness(past: Sequence[Floats]) -> float:
    """Tell how well past days predict each other, 0 to 1.

    They do where each has the shape of the others up to chance, or where the mean of the others
    predicts it better than even arrivals do; an eighth better is enough.
    """
    if len(past) < 2:
        return 1.0
    total, others = np.sum(past, axis=0), len(past) - 1
    means = [(total - day) / others for day in past]
    pairs = list(zip(past, means, strict=True))
    trust = float(np.mean([_measure_trust(day, mean, days=others) for day, mean in pairs]))
    off = sum(_measure_distance(day, mean)[0] for day, mean in pairs)
    off_even = sum(_measure_distance(day, np.ones(len(day)))[0] for day in past)
    better = 1.0 - off / off_even if off_even > 0 else 0.0
    return float(np.clip(max(trust, 8.0 * better), 0.0, 1.0))


def _measure_trust(today: Floats, past: Floats, *, days: int) -> float:
    """Tell how far today so far has had the shape of past days, 0 to 1.

    One less three times an excess: the share of today's bids that would have to move to give the
    past's shape, less the share that chance alone would make move.
    """
    off, like = _measure_distance(today, past)
    return float(np.clip(1.0 - 3.0 * max(off - _expect_distance(like, days=days), 0.0), 0.0, 1.0))


def _expect_distance(like: Floats, *, days: int) -> float:
    """Give the share of bids that chance alone makes move: Poisson counts of this size."""
    return float(np.sqrt(2 / np.pi * like * (1 + 1 / days)).sum() / max(2 * like.sum(), 1e-9))


def _measure_distance(today: Floats, past: Floats) -> tuple[float, Floats]:
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
