"""Kinds of decoys: bids that their owner does not want, placed to change others' prices."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from statistics import median

import numpy as np

from scheduler.auction.prices import Settings
from scheduler.experiments.auction.run import make_rules, run_policy
from scheduler.experiments.auction.scenario import Scenario
from scheduler.types import Task

#: Scenarios of the solves by which an attacker guesses prices.
_FUTURES = 2

#: Bids to add to a day. The draw is the attack's own.
Attack = Callable[[Scenario, Sequence[Task], np.random.Generator], list[Task]]


def _copies(
    day: Sequence[Task], share: float, rng: np.random.Generator, *, owner: str = "attacker"
) -> list[Task]:
    """Give bids of the shape and hour of real ones, so many for each of them."""
    picks: list[int] = np.sort(rng.integers(len(day), size=round(share * len(day)))).tolist()
    return [
        replace(day[pick], id=f"decoy-{n}", vendors=(), owner=owner or f"sybil-{n}")
        for n, pick in enumerate(picks)
    ]


def _cost_per_sample(scenario: Scenario) -> float:
    return max(node.ask / node.compute_capacity for node in scenario.fleet())


def _worthless(scenario: Scenario, day: Sequence[Task], rng: np.random.Generator) -> list[Task]:
    return [replace(task, bid=1e-6) for task in _copies(day, 3.0, rng, owner="")]


def _giants(scenario: Scenario, day: Sequence[Task], rng: np.random.Generator) -> list[Task]:
    return [
        replace(task, bid=100.0 * task.bid, memory_demand=10.0 * scenario.a100_gb)
        for task in _copies(day, 0.05, rng, owner="")
    ]


def _too_late(scenario: Scenario, day: Sequence[Task], rng: np.random.Generator) -> list[Task]:
    return [
        replace(task, bid=10.0 * task.bid, deadline_slot=task.arrival_slot)
        for task in _copies(day, 1.0, rng, owner="")
        if task.compute_demand > max(task.rates.values())
    ]


def _no_work(scenario: Scenario, day: Sequence[Task], rng: np.random.Generator) -> list[Task]:
    return [replace(task, compute_demand=0.0, bid=0.0) for task in _copies(day, 1.0, rng, owner="")]


def _one_tiny(scenario: Scenario, day: Sequence[Task], rng: np.random.Generator) -> list[Task]:
    at = day[len(day) // 5]
    tiny = replace(at, id="decoy", compute_demand=1.0, vendors=(), owner="attacker")
    return [replace(tiny, bid=100.0 * _cost_of_a_slot(scenario, tiny))]


def _many_tiny(scenario: Scenario, day: Sequence[Task], rng: np.random.Generator) -> list[Task]:
    tiny = [replace(task, compute_demand=1.0) for task in _copies(day, 0.05, rng, owner="")]
    return [replace(task, bid=100.0 * _cost_of_a_slot(scenario, task)) for task in tiny]


def _anything(scenario: Scenario, day: Sequence[Task], rng: np.random.Generator) -> list[Task]:
    """Give 5 % of bids, of amounts over twelve orders of magnitude and of any shape."""
    made: list[Task] = []
    for task in _copies(day, 0.05, rng):
        window = int(rng.integers(0, scenario.slots))
        changes = {
            "bid": task.bid * float(10.0 ** rng.uniform(-6.0, 6.0)),
            "compute_demand": task.compute_demand * float(10.0 ** rng.uniform(-3.0, 0.5)),
            "memory_demand": task.memory_demand * float(10.0 ** rng.uniform(-1.0, 1.5)),
            "deadline_slot": min(task.arrival_slot + window, scenario.slots - 1),
        }
        made.append(replace(task, **changes))
    return made


def _cost_of_a_slot(scenario: Scenario, task: Task) -> float:
    return max(task.rates.values()) * _cost_per_sample(scenario)


def _near_cost(*, owner: str) -> Attack:
    def attack(scenario: Scenario, day: Sequence[Task], rng: np.random.Generator) -> list[Task]:
        each = 1.1 * _cost_per_sample(scenario)
        slot = {task.id: _cost_of_a_slot(scenario, task) for task in day}
        return [
            # Whole slots are paid for.
            replace(task, bid=each * task.compute_demand + max(slot.values()))
            for task in _copies(day, 3.0, rng, owner=owner)
        ]

    return attack


def _below_price(scenario: Scenario, day: Sequence[Task], rng: np.random.Generator) -> list[Task]:
    """Give bids a tenth below what winners of the day pay for a sample in the middle."""
    rules = make_rules(scenario, "lagrangian")
    found = run_policy(scenario, day, rules=rules, settings=Settings(futures=_FUTURES))
    paid = [
        (decision.payment - decision.parts.vendor) / task.compute_demand
        for task, decision in zip(day, found.decisions, strict=True)
        if decision.admitted and decision.parts is not None
    ]
    each = 0.9 * median(paid)
    return [replace(task, bid=each * task.compute_demand) for task in _copies(day, 3.0, rng)]


#: By what they do; ``make test`` runs a small version of those that cannot win.
ATTACKS: dict[str, Attack] = {
    "3 worthless bids for each real one": _worthless,
    "5 % giants that no node holds": _giants,
    "as many with windows too short, at 10 times the worth": _too_late,
    "as many without work": _no_work,
    "one tiny job worth 100 times its cost": _one_tiny,
    "5 % tiny jobs worth 100 times their cost": _many_tiny,
    "5 % bids of any amount and shape, one owner": _anything,
    "3 bids near cost for each real one, one owner": _near_cost(owner="attacker"),
    "3 bids just below the price for each real one, one owner": _below_price,
    "3 bids near cost for each real one, an owner each": _near_cost(owner=""),
}


def _like_real_ones(share: float, *, owner: str) -> Attack:
    def attack(scenario: Scenario, day: Sequence[Task], rng: np.random.Generator) -> list[Task]:
        return _copies(day, share, rng, owner=owner)

    return attack


#: Ids of bids by which a flood that loses buys something begin so.
BOUGHT = "bought-"


def _tiny_ones(scenario: Scenario, day: Sequence[Task], rng: np.random.Generator) -> list[Task]:
    """Give as many bids for one sample as there are real ones, from one owner."""
    return [replace(task, compute_demand=1.0) for task in _copies(day, 1.0, rng)]


def _ten_buyers(scenario: Scenario, day: Sequence[Task], rng: np.random.Generator) -> list[Task]:
    """Give as many bids as there are real ones from ten names, each of which buys a tiny job."""
    flood = [
        replace(task, owner=f"sybil-{n % 10}") for n, task in enumerate(_copies(day, 1.0, rng))
    ]
    tiny = [
        replace(
            day[0],
            id=f"{BOUGHT}{n}",
            compute_demand=1.0,
            bid=100.0 * _cost_of_a_slot(scenario, day[0]),
            vendors=(),
            owner=f"sybil-{n}",
        )
        for n in range(10)
    ]
    return [*tiny, *flood]


#: Bids that lose by nothing, whatever the price.
REFUSED: dict[str, Attack] = {
    "5 % bids at the very price, an owner each": _like_real_ones(0.05, owner=""),
    "a bid at the very price for each real one, one owner": _like_real_ones(1.0, owner="attacker"),
    "a bid at the very price for each real one, an owner each": _like_real_ones(1.0, owner=""),
    "a bid for one sample at the very price for each real one, one owner": _tiny_ones,
}
#: The same by names that first buy next to nothing.
BUYING: dict[str, Attack] = {
    "a bid at the very price for each real one, ten names that buy a tiny job each": _ten_buyers,
}

#: What the holding limit is for, and what is tried with jobs that are cancelled.
HOARDING = (
    "3 bids near cost for each real one, one owner",
    "3 bids just below the price for each real one, one owner",
)

#: More than one bid in twenty, each of which could win in an empty zone. To a rule they are
#: demand, so payments follow them (docs/adr/0014-a-flood-that-pays-is-a-purchase.md).
FLOODS = (
    *HOARDING,
    "3 bids near cost for each real one, an owner each",
    "a bid at the very price for each real one, one owner",
    "a bid at the very price for each real one, an owner each",
)
