"""Compiled answer of many tasks to given additive prices."""

from __future__ import annotations

import numpy as np

from scheduler.auction.search.kernels.compiled import INFINITY, Floats, Ints, compiled

#: Steps at most in looking for the price of work; the cover's bound is valid at
#: every one of them.
_STEPS = 24
#: Relative width at which the price of work is known well enough.
_NARROW = 1e-3


@compiled
def respond(
    lam: Floats,
    phi: Floats,
    ask: Floats,
    room: Floats,
    begin: Ints,
    end: Ints,
    work: Floats,
    memory: Floats,
    bid: Floats,
    weight: Floats,
    rate: Floats,
    offers: Ints,
    offer_price: Floats,
    offer_ready: Ints,
    work_price: Floats,
    used_compute: Floats,
    used_memory: Floats,
) -> tuple[float, float]:
    """Let each task take its cheapest schedule where that is below its bid.

    A schedule's cost is bounded from below by pricing the work itself
    (Lagrangian relaxation of (12a)) and then rounded to a cover.

    Parameters
    ----------
    lam, phi : float64[slot, pool]
        Prices per sample and per GB.
    ask : float64[pool]
    room : float64[slot, pool]
        Free samples; a cell with less than a task's rate is not used by it.
    begin, end : int64[task]
        Rows of the window, inclusive.
    work, memory, bid, weight : float64[task]
    rate : float64[task, pool]
    offers : int64[task + 1]
        Where each task's vendors begin in the next two.
    offer_price : float64[offer]
    offer_ready : int64[offer]
        First row after cleaning.
    work_price : float64[offer]
        The price of work found last time, 0 at first; the search begins there, and
        it is overwritten.
    used_compute, used_memory : float64[slot, pool]
        Filled with the weighted use of each cell.

    Returns
    -------
    upper, surplus : float
        Weighted sums of what the tasks gain at these prices: an upper bound, and
        the value at the rounded covers.
    """
    slots = lam.shape[0]
    pools = lam.shape[1]
    used_compute[:] = 0.0
    used_memory[:] = 0.0
    cost = np.empty((slots, pools))
    gain = np.empty(slots)
    picked = np.empty(slots, np.int64)
    best_slots = np.empty(slots, np.int64)
    best_pools = np.empty(slots, np.int64)
    upper = 0.0
    surplus = 0.0
    for i in range(begin.shape[0]):
        first = begin[i]
        last = end[i]
        for t in range(first, last + 1):
            for g in range(pools):
                s = rate[i, g]
                if s > 0 and room[t, g] >= s * (1 - 1e-9):
                    cost[t, g] = s * (lam[t, g] + ask[g]) + memory[i] * phi[t, g]
                else:
                    cost[t, g] = INFINITY
        best = bid[i]
        bound = bid[i]
        count = 0
        for o in range(offers[i], offers[i + 1]):
            ready = max(first, offer_ready[o])
            if ready > last:
                continue
            most = 0.0
            for t in range(ready, last + 1):
                fastest = 0.0
                for g in range(pools):
                    if cost[t, g] < INFINITY:
                        fastest = max(fastest, rate[i, g])
                most += fastest
            if most < work[i] * (1 - 1e-9):
                continue
            # Close in on the price of work at which just enough slots pay, from
            # where it was last time; a task whose bid is passed needs no more.
            low = 0.0
            high = INFINITY
            floor = 0.0
            price = work_price[o]
            if price <= 0.0:
                price = _middling(cost, rate, i, ready, last)
            reach = 1.05
            for step in range(_STEPS + 60):
                if high < INFINITY and (
                    high - low <= _NARROW * high
                    or step >= _STEPS
                    or offer_price[o] + floor >= bid[i]
                ):
                    break
                done, profit = _taken(cost, rate, i, ready, last, price, gain, picked)
                floor = max(floor, price * work[i] - profit)
                if done >= work[i] * (1 - 1e-12):
                    high = price
                else:
                    low = price
                if high == INFINITY:
                    price *= reach
                elif low == 0.0:
                    price /= reach
                else:
                    price = 0.5 * (low + high)
                reach *= reach
            work_price[o] = high
            bound = min(bound, offer_price[o] + floor)
            if offer_price[o] + floor >= best:
                continue
            _taken(cost, rate, i, ready, last, high, gain, picked)
            order = np.argsort(-gain[ready : last + 1], kind="mergesort")
            total = offer_price[o]
            done = 0.0
            n = 0
            while n < order.shape[0] and done < work[i] * (1 - 1e-12):
                t = ready + order[n]
                g = picked[t]
                if g < 0:
                    break
                # The last cell need only be as fast as what is left.
                left = work[i] - done
                for other in range(pools):
                    if rate[i, other] >= left and cost[t, other] < cost[t, g]:
                        g = other
                picked[t] = g
                done += rate[i, g]
                total += cost[t, g]
                n += 1
            if done >= work[i] * (1 - 1e-12) and total < best:
                best = total
                count = n
                for j in range(n):
                    best_slots[j] = ready + order[j]
                    best_pools[j] = picked[ready + order[j]]
        upper += weight[i] * (bid[i] - bound)
        if count > 0:
            surplus += weight[i] * (bid[i] - best)
            for j in range(count):
                t = best_slots[j]
                g = best_pools[j]
                used_compute[t, g] += weight[i] * rate[i, g]
                used_memory[t, g] += weight[i] * memory[i]
    return upper, surplus


@compiled
def _taken(
    cost: Floats,
    rate: Floats,
    i: int,
    ready: int,
    last: int,
    price: float,
    gain: Floats,
    picked: Ints,
) -> tuple[float, float]:
    """Use every slot that pays when each sample of work is worth ``price``.

    Returns
    -------
    done : float
        Samples of the slots that pay.
    profit : float
        What they earn.
    """
    done = 0.0
    profit = 0.0
    for t in range(ready, last + 1):
        best = -INFINITY
        where = -1
        for g in range(rate.shape[1]):
            if cost[t, g] < INFINITY:
                earned = price * rate[i, g] - cost[t, g]
                if earned > best:
                    best = earned
                    where = g
        gain[t] = best
        picked[t] = where
        if where >= 0 and best > 0:
            done += rate[i, where]
            profit += best
    return done, profit


@compiled
def _middling(cost: Floats, rate: Floats, i: int, ready: int, last: int) -> float:
    """Give the mean cost per sample of the cells in a window, above zero."""
    total = 0.0
    samples = 1e-12
    for t in range(ready, last + 1):
        for g in range(rate.shape[1]):
            if cost[t, g] < INFINITY:
                total += cost[t, g]
                samples += rate[i, g]
    return total / samples + 1e-12
