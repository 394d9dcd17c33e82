"""Compiled answer of many tasks to given additive prices."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from scheduler.auction.search.kernels.compiled import INFINITY, Floats, Ints, compiled

#: Steps at most in looking for the price of work; the cover's bound is valid at
#: every one of them.
_STEPS = 24
#: Relative width at which the price of work is known well enough.
_NARROW = 1e-3


class PoolPrices(NamedTuple):
    """What each pool offers, slot by slot."""

    #: Prices per sample and per GB, float64[slot, pool].
    lam: Floats
    phi: Floats
    #: float64[pool].
    ask: Floats
    #: Free samples, float64[slot, pool]; a cell with less than a task's rate is not used by it.
    room: Floats


class TaskColumns(NamedTuple):
    """The tasks, a column for each of their numbers."""

    #: Rows of the window, inclusive, int64[task].
    begin: Ints
    end: Ints
    #: float64[task].
    work: Floats
    memory: Floats
    bid: Floats
    #: How many tasks each one stands for, float64[task].
    weight: Floats
    #: float64[task, pool].
    rate: Floats


class VendorColumns(NamedTuple):
    """The tasks' vendors, one task after the other."""

    #: Where each task's vendors begin in the columns below, int64[task + 1].
    start: Ints
    #: float64[vendor].
    price: Floats
    #: First row after cleaning, int64[vendor].
    ready: Ints
    #: The price of work found last time, 0 at first, float64[vendor]; the search begins there,
    #: and it is overwritten.
    work_price: Floats


class CellUse(NamedTuple):
    """The weighted use of each cell, float64[slot, pool]."""

    compute: Floats
    memory: Floats


class _Picks(NamedTuple):
    """Room for the choices of one task: by slot what its cell gains and which pool it is of."""

    gain: Floats
    pool: Ints


@compiled
def respond(
    prices: PoolPrices, tasks: TaskColumns, vendors: VendorColumns, use: CellUse
) -> tuple[float, float]:
    """Let each task take its cheapest schedule where that is below its bid.

    A schedule's cost is bounded from below by pricing the work itself
    (Lagrangian relaxation of (12a)) and then rounded to a cover. ``use`` is overwritten.

    Returns
    -------
    upper, surplus : float
        Weighted sums of what the tasks gain at these prices: an upper bound, and
        the value at the rounded covers.
    """
    slots = prices.lam.shape[0]
    use.compute[:] = 0.0
    use.memory[:] = 0.0
    cost = np.empty(prices.lam.shape)
    picks = _Picks(np.empty(slots), np.empty(slots, np.int64))
    best_slots = np.empty(slots, np.int64)
    best_pools = np.empty(slots, np.int64)
    upper = 0.0
    surplus = 0.0
    for i in range(tasks.begin.shape[0]):
        last = tasks.end[i]
        _price_cells(prices, tasks, i, cost)
        best = tasks.bid[i]
        bound = tasks.bid[i]
        count = 0
        for o in range(vendors.start[i], vendors.start[i + 1]):
            ready = max(tasks.begin[i], vendors.ready[o])
            if ready > last or not _has_room(cost, tasks, i, ready):
                continue
            guess = vendors.work_price[o]
            if guess <= 0.0:
                guess = _middling(cost, tasks.rate, i, ready, last)
            high, floor = _find_work_price(cost, tasks, i, ready, guess, vendors.price[o], picks)
            vendors.work_price[o] = high
            bound = min(bound, vendors.price[o] + floor)
            if vendors.price[o] + floor >= best:
                continue
            _taken(cost, tasks.rate, i, ready, last, high, picks)
            order = np.argsort(-picks.gain[ready : last + 1], kind="mergesort")
            n, total = _round_to_cover(cost, tasks, i, ready, order, vendors.price[o], picks)
            if n > 0 and total < best:
                best = total
                count = n
                for j in range(n):
                    best_slots[j] = ready + order[j]
                    best_pools[j] = picks.pool[ready + order[j]]
        upper += tasks.weight[i] * (tasks.bid[i] - bound)
        if count > 0:
            surplus += tasks.weight[i] * (tasks.bid[i] - best)
            for j in range(count):
                t = best_slots[j]
                g = best_pools[j]
                use.compute[t, g] += tasks.weight[i] * tasks.rate[i, g]
                use.memory[t, g] += tasks.weight[i] * tasks.memory[i]
    return upper, surplus


@compiled
def _price_cells(prices: PoolPrices, tasks: TaskColumns, i: int, cost: Floats) -> None:
    """Fill in what each cell of a task's window costs it; infinity where it cannot use one."""
    for t in range(tasks.begin[i], tasks.end[i] + 1):
        for g in range(cost.shape[1]):
            s = tasks.rate[i, g]
            if s > 0 and prices.room[t, g] >= s * (1 - 1e-9):
                by_sample = s * (prices.lam[t, g] + prices.ask[g])
                cost[t, g] = by_sample + tasks.memory[i] * prices.phi[t, g]
            else:
                cost[t, g] = INFINITY


@compiled
def _has_room(cost: Floats, tasks: TaskColumns, i: int, ready: int) -> bool:
    """Whether a task's fastest cells from ``ready`` on do its work."""
    most = 0.0
    for t in range(ready, tasks.end[i] + 1):
        fastest = 0.0
        for g in range(cost.shape[1]):
            if cost[t, g] < INFINITY:
                fastest = max(fastest, tasks.rate[i, g])
        most += fastest
    return bool(most >= tasks.work[i] * (1 - 1e-9))


@compiled
def _find_work_price(
    cost: Floats,
    tasks: TaskColumns,
    i: int,
    ready: int,
    price: float,
    vendor_price: float,
    picks: _Picks,
) -> tuple[float, float]:
    """Close in on the price of work at which just enough slots pay, from a guess.

    A task whose bid is passed needs no more.

    Returns
    -------
    high : float
        The price of work.
    floor : float
        Lower bound on the cost of the cells.
    """
    work = tasks.work[i]
    low = 0.0
    high = INFINITY
    floor = 0.0
    reach = 1.05
    for step in range(_STEPS + 60):
        if high < INFINITY and (
            high - low <= _NARROW * high or step >= _STEPS or vendor_price + floor >= tasks.bid[i]
        ):
            break
        done, profit = _taken(cost, tasks.rate, i, ready, tasks.end[i], price, picks)
        floor = max(floor, price * work - profit)
        if done >= work * (1 - 1e-12):
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
    return high, floor


@compiled
def _round_to_cover(
    cost: Floats,
    tasks: TaskColumns,
    i: int,
    ready: int,
    order: Ints,
    vendor_price: float,
    picks: _Picks,
) -> tuple[int, float]:
    """Use the slots that gain most until a task's work is done.

    Returns
    -------
    count : int
        Slots used, the first of ``order``; 0 where they do not suffice.
    total : float
        What they cost with the vendor.
    """
    work = tasks.work[i]
    total = vendor_price
    done = 0.0
    n = 0
    while n < order.shape[0] and done < work * (1 - 1e-12):
        t = ready + order[n]
        g = picks.pool[t]
        if g < 0:
            break
        # The last cell need only be as fast as what is left.
        left = work - done
        for other in range(cost.shape[1]):
            if tasks.rate[i, other] >= left and cost[t, other] < cost[t, g]:
                g = other
        picks.pool[t] = g
        done += tasks.rate[i, g]
        total += cost[t, g]
        n += 1
    return (n if done >= work * (1 - 1e-12) else 0), total


@compiled
def _taken(
    cost: Floats,
    rate: Floats,
    i: int,
    ready: int,
    last: int,
    price: float,
    picks: _Picks,
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
        picks.gain[t] = best
        picks.pool[t] = where
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
