"""What a sample is worth to bidders, by what they took and left.

A solve reads no amounts. Of each decided bid it knows the price and whether that was taken: the
job is worth more than a price that was taken, and no more than one that was left. From such
half-open intervals the distribution of the worth of a sample is estimated over bins a square root
of two apart, and worths are drawn from it for the tasks of a forecast. Each draw is cut at the
price that its own donor took or left.

References
----------
B. W. Turnbull, "The empirical distribution function with arbitrarily grouped, censored and
truncated data", Journal of the Royal Statistical Society B 38 (1976) 290-295: the estimate
is its fixed point, with a prior.
"""

from __future__ import annotations

import math
from collections.abc import Collection, Iterable, Sequence
from dataclasses import dataclass, replace

import numpy as np

from scheduler.auction.prices.counted_bids import find_lowest_quote, rank_bid
from scheduler.auction.search.grid import Floats
from scheduler.types import Decision, Task

#: Bins to a doubling; the lowest and the highest edge over the low ask, and the latter over the
#: highest price of a sample that was taken.
_BINS, _LOWEST, _HIGHEST, _OVER_TAKEN = 2, 0.25, 128.0, 4.0
#: Bids that the prior counts for; over the low ask, where it is even.
_PRIOR_BIDS, _EVEN_FROM, _EVEN_TO = 3.0, 1.0, 8.0
#: Weight of a bin below; each above has half the weight of the one before.
_BELOW = 0.25
_ROUNDS = 25


def show_outcome(task: Task, decision: Decision) -> Task:
    """Give a decided bid as solves read it: with its price in place of its amount."""
    return price_task(task, decision.winning_price)


def price_task(task: Task, price: float | None) -> Task:
    """Give a decided bid with its price in place of its amount.

    Infinite where no plan had a price: nothing is known of what the job is worth.
    """
    return replace(task, bid=math.inf if price is None else price)


@dataclass(frozen=True, slots=True)
class SampleWorths:
    """The estimated distribution of the worth of a sample."""

    #: Logarithms of the edges, rising; one more than weights.
    edges: Floats
    #: Of each bin; together one.
    weights: Floats
    #: Ids of those who took their price.
    won: Collection[str]

    def draw(self, tasks: Sequence[Task], rng: np.random.Generator) -> tuple[Task, ...]:
        """Give tasks with drawn amounts, as solves read bids (``show_outcome``)."""
        return self._place(tasks, rng.random(len(tasks)))

    def assign(self, tasks: Sequence[Task]) -> tuple[Task, ...]:
        """Spread tasks evenly over the quantiles, in an order that hashes of their ids give."""
        order = sorted(range(len(tasks)), key=lambda n: rank_bid(tasks[n]))
        at = np.empty(len(tasks))
        at[order] = (np.arange(len(tasks)) + 0.5) / max(len(tasks), 1)
        return self._place(tasks, at)

    def _place(self, tasks: Sequence[Task], at: Floats) -> tuple[Task, ...]:
        """Give tasks the worths that lie at these quantiles of what theirs may be."""
        if not tasks:
            return ()
        low, high = self._bound(tasks)
        left = np.maximum(self.edges[:-1], low[:, None])
        width = np.maximum(np.minimum(self.edges[1:], high[:, None]) - left, 0.0)
        mass = self.weights * width / np.diff(self.edges)
        upto = np.cumsum(mass, axis=1)
        wanted = np.minimum(at, 1 - 1e-9) * upto[:, -1]
        bins = np.minimum((upto <= wanted[:, None]).sum(axis=1), len(self.weights) - 1)
        rows = np.arange(len(tasks))
        share = (wanted - upto[rows, bins] + mass[rows, bins]) / mass[rows, bins]
        worths = np.exp(left[rows, bins] + share * width[rows, bins])
        return tuple(
            replace(task, bid=worth * task.compute_demand + find_lowest_quote(task))
            for task, worth in zip(tasks, worths.tolist(), strict=True)
        )

    def _bound(self, tasks: Sequence[Task]) -> tuple[Floats, Floats]:
        """Give the logarithms between which the tasks' worths lie, at least half a bin apart."""
        begin, end = float(self.edges[0]), float(self.edges[-1])
        half = 0.5 * (self.edges[1] - self.edges[0])
        prices = np.array([_find_price(task) for task in tasks])
        has_won = np.array([task.id in self.won for task in tasks])
        return (
            np.where(has_won, np.clip(prices, begin, end - half), begin),
            np.where(has_won, end, np.clip(prices, begin + half, end)),
        )


def estimate_worths(tasks: Iterable[Task], *, won: Collection[str], low_ask: float) -> SampleWorths:
    """Estimate what a sample is worth from decided bids.

    Parameters
    ----------
    tasks : iterable of Task
        As ``show_outcome`` gives them, charges taken off; one id counts once.
    won : collection of str
        Ids of those who took their price; the others left it.
    low_ask : float
        Of a sample (``EmptyZone``); sets the scale of the bins. Where samples cost nothing, the
        lowest price does.
    """
    known = {task.id: task for task in tasks}
    if not low_ask > 0:
        prices = [price for task in known.values() if abs(price := _find_price(task)) < math.inf]
        low_ask = math.exp(min(prices, default=0.0))
    taken = [_find_price(task) for task in known.values() if task.id in won]
    edges = _list_edges(low_ask, taken)
    prior = _make_prior(edges, low_ask)
    rows = [
        row
        for task in known.values()
        if (row := _cut(edges, _find_price(task), has_won=task.id in won)) is not None
    ]
    weights = prior
    for _ in range(_ROUNDS if rows else 0):
        shares = np.array(rows) * weights
        shares /= shares.sum(axis=1, keepdims=True)
        weights = shares.sum(axis=0) + _PRIOR_BIDS * prior
        weights /= weights.sum()
    return SampleWorths(edges=edges, weights=weights, won=won)


def _list_edges(low_ask: float, taken: Sequence[float]) -> Floats:
    """Give the logarithms of the bins' edges."""
    most = max(_HIGHEST * low_ask, _OVER_TAKEN * math.exp(max(taken, default=-math.inf)))
    count = math.ceil(_BINS * math.log2(most / (_LOWEST * low_ask)) - 1e-9)
    return math.log(_LOWEST * low_ask) + np.arange(count + 1) * math.log(2) / _BINS


def _make_prior(edges: Floats, low_ask: float) -> Floats:
    """Give the prior's weight of each bin; together one."""
    over = np.exp(edges[:-1]) / low_ask
    above = np.cumsum(over > _EVEN_TO * (1 - 1e-9))
    weights = np.where(over < _EVEN_FROM * (1 - 1e-9), _BELOW, 0.5**above)
    return weights / weights.sum()


def _cut(edges: Floats, price: float, *, has_won: bool) -> Floats | None:
    """Give the share of each bin that lies on a bid's side of its price; ``None``: all do."""
    width = np.diff(edges)
    if has_won:
        if price <= edges[0]:
            return None
        return np.clip((edges[1:] - np.maximum(edges[:-1], price)) / width, 0.0, 1.0)
    if price >= edges[-1]:
        return None
    share = np.clip((np.minimum(edges[1:], price) - edges[:-1]) / width, 0.0, 1.0)
    # Below all bins: then it is in the lowest.
    return share if share.any() else np.eye(1, len(width))[0]


def _find_price(task: Task) -> float:
    """Give the logarithm of the price of a sample, a vendor's work left out."""
    price = (task.bid - find_lowest_quote(task)) / task.compute_demand
    return math.log(price) if price > 0 else -math.inf
