"""Compiled bounds on covers, and their rounding to first schedules.

A cover picks at most one cell per slot so that the units of work add up to the
need, at the least cost. ``best[slot, rate]`` holds cell costs, infinity where
there is no cell.
"""

from __future__ import annotations

import numpy as np

from scheduler.auction.search.kernels.compiled import INFINITY, Floats, Ints, compiled


@compiled
def relax_cover(
    best: Floats,
    units: Floats,
    need: int,
    first: int,
    last: int,
    mu: float,
) -> tuple[float, float]:
    """Evaluate the Lagrangian bound of a cover at one price of work.

    Returns
    -------
    bound, slope : float
        ``mu * need + sum over slots of min(0, cost - mu * units)`` and its
        derivative.
    """
    bound = mu * need
    slope = float(need)
    if units.shape[0] == 2:
        # The same without a loop over rates: most searches are of two, and spend their time here.
        first_priced = mu * units[0]
        second_priced = mu * units[1]
        for i in range(last - first + 1):
            one = best[first + i, 0] - first_priced
            other = best[first + i, 1] - second_priced
            taken = units[0] if one < 0.0 else 0.0
            gain = one if one < 0.0 else 0.0
            taken = units[1] if other < gain else taken
            gain = other if other < gain else gain
            bound += gain
            slope -= taken
        return bound, slope
    for t in range(first, last + 1):
        gain = 0.0
        taken = 0.0
        for c in range(units.shape[0]):
            reduced = best[t, c] - mu * units[c]
            if reduced < gain:
                gain = reduced
                taken = units[c]
        bound += gain
        slope -= taken
    return bound, slope


@compiled
def find_multiplier(
    best: Floats,
    units: Floats,
    need: int,
    first: int,
    last: int,
    guess: float,
    enough: float,
) -> tuple[float, float]:
    """Find the price of work that gives the best Lagrangian bound.

    The bound is concave and piecewise linear; the two tangents that enclose its
    peak are intersected until they meet. Every price of work gives a valid
    bound, so stopping early costs strength only; a bound of ``enough`` will do.

    Returns
    -------
    mu, bound : float
        ``bound`` is infinity when the slots cannot cover the work at all.
    """
    most = 0.0
    for t in range(first, last + 1):
        top = 0.0
        for c in range(units.shape[0]):
            if best[t, c] < INFINITY and units[c] > top:
                top = units[c]
        most += top
    if most < need:
        return 0.0, INFINITY
    left, left_bound, left_slope = 0.0, 0.0, float(need)
    right = guess
    if right <= 0.0:
        for t in range(first, last + 1):
            for c in range(units.shape[0]):
                if best[t, c] < INFINITY:
                    right = max(right, best[t, c] / units[c])
        if right <= 0.0:
            return 0.0, 0.0
    right_bound, right_slope = relax_cover(best, units, need, first, last, right)
    while right_slope > 0.0:
        left, left_bound, left_slope = right, right_bound, right_slope
        right = 2.0 * right
        if right > 1e300:
            return left, left_bound
        right_bound, right_slope = relax_cover(best, units, need, first, last, right)
    for _ in range(24):
        if right_slope == 0.0 or right_bound >= enough:
            return right, right_bound
        if left_bound >= enough:
            return left, left_bound
        mu = (right_bound - left_bound + left_slope * left - right_slope * right) / (
            left_slope - right_slope
        )
        if not left < mu < right:
            break
        bound, slope = relax_cover(best, units, need, first, last, mu)
        if slope > 0.0:
            if bound <= left_bound:
                break
            left, left_bound, left_slope = mu, bound, slope
        else:
            if bound <= right_bound:
                break
            right, right_bound, right_slope = mu, bound, slope
    if right_bound >= left_bound:
        return right, right_bound
    return left, left_bound


@compiled
def cover_greedily(
    best: Floats,
    best_cell: Ints,
    units: Floats,
    need: int,
    first: int,
    last: int,
    mu: float,
    path: Ints,
) -> int:
    """Round the relaxed cover to a real one: a first schedule, often the best.

    Returns
    -------
    int
        Cells put into ``path``, in slot order; 0 when this way leads nowhere.
    """
    slots = last - first + 1
    reduced = np.empty(slots)
    choice = np.empty(slots, np.int64)
    taken = np.zeros(slots, np.bool_)
    covered = 0.0
    for i in range(slots):
        reduced[i] = INFINITY
        choice[i] = -1
        for c in range(units.shape[0]):
            value = best[first + i, c] - mu * units[c]
            if value < reduced[i] or (
                value == reduced[i] and choice[i] >= 0 and units[c] > units[choice[i]]
            ):
                reduced[i] = value
                choice[i] = c
        if reduced[i] < 0.0:
            taken[i] = True
            covered += units[choice[i]]
    while covered < need:
        at = -1
        for i in range(slots):
            if not taken[i] and choice[i] >= 0 and (at < 0 or reduced[i] < reduced[at]):
                at = i
        if at < 0:
            return 0
        taken[at] = True
        covered += units[choice[at]]
    while True:
        # Give back the least useful cell that is not needed; among equals the last.
        at = -1
        for i in range(slots):
            if (
                taken[i]
                and covered - units[choice[i]] >= need
                and (at < 0 or reduced[i] >= reduced[at])
            ):
                at = i
        if at < 0:
            break
        taken[at] = False
        covered -= units[choice[at]]
    n = 0
    for i in range(slots):
        if taken[i]:
            path[n] = best_cell[first + i, choice[i]]
            n += 1
    return n


@compiled
def find_least_cover(
    class_units: Ints,
    need: int,
) -> int:
    """Raise the need to the least sum of units that covers it.

    Exact for one and for two rates; with more, the need stays as it is, which
    only weakens bounds.
    """
    if class_units.shape[0] == 1:
        u = class_units[0]
        return (need + u - 1) // u * u
    if class_units.shape[0] != 2:
        return need
    fast = max(class_units[0], class_units[1])
    slow = min(class_units[0], class_units[1])
    least = (need + fast - 1) // fast * fast
    if least // fast > 4096:
        return need
    for n in range(least // fast):
        rest = need - n * fast
        least = min(least, n * fast + (rest + slow - 1) // slow * slow)
    return least
