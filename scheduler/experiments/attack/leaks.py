"""What the public log reveals of others' bids, by estimators that see all of it.

A competitor knows every amount of some days and reads the published logs of others: no bids,
no salts. It makes three estimates of the bids there: from the price alone, from price and needs,
and from all that is published (the parts of the price, solved prices before and after, outcomes of
the bids about it). What the log leaks is by how much the third is better than the second.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from math import log
from typing import Any

import numpy as np
from numpy.typing import NDArray

from scheduler.auction import ChainEntry
from scheduler.auction.log import events
from scheduler.auction.log.chain import entry_to_json
from scheduler.auction.prices import Settings
from scheduler.experiments.attack.findings import Finding, Measure
from scheduler.experiments.attack.market_logs import write_log
from scheduler.experiments.auction.scenario import Scenario
from scheduler.public_log.entries import hide_bid
from scheduler.types import Task

Floats = NDArray[np.float64]

#: Most by which the whole log may better the estimate made from price and needs.
MOST_GAIN = 0.05
#: Estimates are made of each part of the days from the others.
_PARTS = 6
_NEIGHBOURS = 25
#: Ridge penalty on standardised features, per bid.
_RIDGE = 0.01
#: Published outcomes before and after a bid that an estimate looks at.
_ABOUT = 10
_LEAST = 1e-9


@dataclass(frozen=True, slots=True)
class LeakSize:
    """How much is run."""

    days: int
    slots: int
    settings: Settings


QUICK = LeakSize(days=36, slots=24, settings=Settings(futures=2))
FULL = LeakSize(days=48, slots=48, settings=Settings(futures=4))


@dataclass(frozen=True, slots=True)
class Sight:
    """One decided bid as the public sees it, and its amount."""

    bid: float
    admitted: bool
    #: Payment, or the price that a refused bid was not above.
    price: float
    #: Bids decided before it that day.
    before: int
    #: What is known without the log: log price, hour and needs.
    needs: tuple[float, ...]
    #: What the log says besides.
    revealed: tuple[float, ...]


#: Which bids are estimated.
_GROUPS: dict[str, Callable[[Sight], bool]] = {
    "winners": lambda sight: sight.admitted,
    "bids refused for their price": lambda sight: not sight.admitted,
    "winners among a zone's first 20 bids": lambda sight: sight.admitted and sight.before < 20,
}


def run(size: LeakSize) -> Iterator[Finding]:
    """Estimate bids of a busy zone and of a small one."""
    for name, scenario in make_zones(size).items():
        days = [
            see_day(scenario, scenario.day(seed), settings=size.settings)
            for seed in range(size.days)
        ]
        for group, belongs in _GROUPS.items():
            chosen = [[sight for sight in day if belongs(sight)] for day in days]
            yield _compare(f"{group}, {name}", chosen)


def make_zones(size: LeakSize) -> dict[str, Scenario]:
    """Give the zones whose logs are read."""
    busy = Scenario(
        "zone",
        slots=size.slots,
        nodes=10,
        bids_per_slot=6.4,
        a100_capacity=8_000.0,
        a40_capacity=4_000.0,
        a100_ask=4_500.0,
        a40_ask=2_500.0,
        most_epochs=2,
        # What a vendor asks is a share of the worth in these days, which a market's is not.
        vendors=0,
    )
    return {"busy zone": busy, "zone of two nodes": replace(busy, nodes=2, bids_per_slot=1.3)}


def see_day(scenario: Scenario, day: Sequence[Task], *, settings: Settings) -> list[Sight]:
    """Run a day and give what its published log shows of the bids that had a price."""
    log_ = write_log(scenario, day, settings=settings, salt="secret")
    bids = {task.id: task.bid for task in day}
    published = [publish(entry) for entry in log_]
    solves = [n for n, data in enumerate(published) if data["event"]["type"] == "PricesSolved"]
    decided = [n for n, data in enumerate(published) if data["event"]["type"] == "BidArrived"]
    sights: list[Sight] = []
    for before, n in enumerate(decided):
        event, outcome = published[n]["event"], published[n]["outcome"]
        parts = outcome["parts"]
        earlier, later = [m for m in solves if m < n], [m for m in solves if m > n]
        price = outcome["payment"] if outcome["admitted"] else outcome["winning_price"]
        if parts is None or not price or not earlier or not later:
            continue
        task = event["task"]
        about = [*decided[max(before - _ABOUT, 0) : before], *decided[before + 1 :][:_ABOUT]]
        sights.append(
            Sight(
                bid=bids[task["id"]],
                admitted=outcome["admitted"],
                price=price,
                before=before,
                needs=(log(price), float(event["slot"]), *_list_needs(task)),
                revealed=(
                    float(before),
                    *(part / price for part in parts),
                    *_list_prices(published[earlier[-1]]["event"], task),
                    *_list_prices(published[later[0]]["event"], task),
                    *_list_prices(published[later[min(1, len(later) - 1)]]["event"], task),
                    *_describe_outcomes([published[m] for m in about]),
                ),
            )
        )
    return sights


def publish(entry: ChainEntry) -> Mapping[str, Any]:
    """Give an entry as a public transcript shows it."""
    data = entry_to_json(entry)
    return hide_bid(data) if not isinstance(entry.event, events.NodeJoined) else data


def _list_needs(task: Mapping[str, Any]) -> list[float]:
    window = task["deadline_slot"] - task["arrival_slot"] + 1
    fastest = max(task["rates"].values())
    return [
        log(task["compute_demand"]),
        log(task["memory_demand"]),
        log(fastest),
        log(window),
        log(window * fastest / task["compute_demand"]),
    ]


def _list_prices(solved: Mapping[str, Any], task: Mapping[str, Any]) -> list[float]:
    """Give the solved prices of a task's window: mean and most, and the mean after it."""
    rows = np.array(solved["compute_price"]["rows"], np.float64)
    begin = max(task["arrival_slot"] - solved["first_slot"], 0)
    end = task["deadline_slot"] - solved["first_slot"] + 1
    inside, after = rows[:, begin:end], rows[:, end:]
    return [
        float(part) for table in (inside, after) for part in (_mean(table), table.max(initial=0.0))
    ]


def _mean(table: Floats) -> float:
    return float(table.mean()) if table.size else 0.0


def _describe_outcomes(entries: Sequence[Mapping[str, Any]]) -> list[float]:
    """Give the share admitted about a bid, and what a sample cost them."""
    if not entries:
        return [0.0, 0.0]
    paid = [
        data["outcome"]["payment"] / data["event"]["task"]["compute_demand"]
        for data in entries
        if data["outcome"]["admitted"]
    ]
    return [len(paid) / len(entries), sum(paid) / max(len(paid), 1)]


def _compare(case: str, days: Sequence[Sequence[Sight]]) -> Finding:
    """Estimate each part of the days from the others, with more and more to go by."""
    errors: dict[str, list[float]] = {"price": [], "price_and_needs": [], "whole_log": []}
    for part in range(_PARTS):
        known = [s for n, day in enumerate(days) if n % _PARTS != part for s in day]
        sought = [s for n, day in enumerate(days) if n % _PARTS == part for s in day]
        for name, error in estimate(known, sought).items():
            errors[name].append(error)
    measures = {f"error_{name}": Measure.of(found) for name, found in errors.items()}
    pairs = zip(errors["whole_log"], errors["price_and_needs"], strict=True)
    gain = Measure.of([1.0 - whole / plain for whole, plain in pairs])
    return Finding(
        experiment="leaks",
        case=case,
        measures={**measures, "gain_of_log": gain},
        goal="the whole log betters the estimate from price and needs by 5 % of its error at most",
        verdict=gain.judge(most=MOST_GAIN),
    )


def estimate(known: Sequence[Sight], sought: Sequence[Sight]) -> dict[str, float]:
    """Give the median error, as a share of the bid, of the best estimator by what it sees."""
    target = np.array([log(s.bid / s.price) for s in known])
    truth = np.array([log(s.bid / s.price) for s in sought])

    def best(select: Callable[[Sight], tuple[float, ...]]) -> float:
        left, right = (np.array([select(s) for s in group]) for group in (known, sought))
        left, right = _standardise(left, right)
        found = (_by_ridge(left, target, right), _by_neighbours(left, target, right))
        return min(float(np.median(np.abs(np.exp(guess - truth) - 1.0))) for guess in found)

    alone = float(np.median(np.abs(np.exp(np.median(target) - truth) - 1.0)))
    return {
        "price": alone,
        "price_and_needs": best(lambda sight: sight.needs),
        "whole_log": best(lambda sight: (*sight.needs, *sight.revealed)),
    }


def _standardise(left: Floats, right: Floats) -> tuple[Floats, Floats]:
    mean, spread = left.mean(axis=0), np.maximum(left.std(axis=0), _LEAST)
    return (left - mean) / spread, (right - mean) / spread


def _by_ridge(known: Floats, target: Floats, sought: Floats) -> Floats:
    """Least squares on features, their squares and products."""
    left, right = _expand(known), _expand(sought)
    penalty = _RIDGE * len(left) * np.eye(left.shape[1])
    penalty[0, 0] = 0.0
    return right @ np.linalg.solve(left.T @ left + penalty, left.T @ target)


def _expand(features: Floats) -> Floats:
    # Far-off values would carry a square away.
    bounded = np.clip(features, -3.0, 3.0)
    first, second = np.triu_indices(bounded.shape[1])
    products = bounded[:, first] * bounded[:, second]
    return np.concatenate([np.ones((len(bounded), 1)), bounded, products], axis=1)


def _by_neighbours(known: Floats, target: Floats, sought: Floats) -> Floats:
    """Medians of the bids that look most alike."""
    squares = (sought**2).sum(axis=1)[:, None] + (known**2).sum(axis=1)[None, :]
    distance = squares - 2.0 * sought @ known.T
    nearest = np.argsort(distance, axis=1, kind="stable")[:, :_NEIGHBOURS]
    return np.median(target[nearest], axis=1)
