"""Bids placed to move prices: what they cost the others.

Three zones of ten nodes that about twice as much is asked of as they can do; an attack
adds bids to a day, and the others' welfare and payments are compared with the same day's
without them. Where there are past days their owners return, and what they won then counts as won.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from functools import partial
from math import inf
from typing import Literal, NamedTuple

import numpy as np

from scheduler.auction.holding_limit import find_most_held
from scheduler.auction.prices import Settings
from scheduler.experiments.attack.decoy_kinds import (
    ATTACKS,
    BOUGHT,
    FLOODS,
    HOARDING,
    REFUSED,
    Attack,
)
from scheduler.experiments.attack.findings import Finding, Measure, find_worst
from scheduler.experiments.auction.beats import DecidedDay
from scheduler.experiments.auction.run import decide_days, make_rules, run_policy
from scheduler.experiments.auction.scenario import Scenario
from scheduler.types import Task

#: Most that the others may lose, and that their payments may move, by decoys.
MOST_WELFARE, MOST_PAYMENTS = 0.03, 0.05
#: Seeds of past days lie this far from those of the day itself.
_PAST = 10_000
#: Owners that bids come from where they come from few.
OWNERS = 20


@dataclass(frozen=True, slots=True)
class DecoySize:
    """How much is run."""

    days: int
    slots: int
    futures: int


QUICK = DecoySize(days=6, slots=24, futures=2)
FULL = DecoySize(days=6, slots=72, futures=6)


class Totals(NamedTuple):
    """What some bids came to."""

    welfare: float
    payments: float
    #: Payments less vendors and asks: what was paid for room that others wanted.
    rent: float


@dataclass(frozen=True, slots=True)
class AttackedZone:
    """A market that is attacked."""

    name: str
    scenario: Scenario
    past_days: int
    #: Owners that the bids of all days come from, the n-th with a share like 1/n; 0: one each.
    owners: int = 0

    def day(self, seed: int) -> list[Task]:
        """Give the bids of a day."""
        return self._give_owners(self.scenario.day(seed), np.random.default_rng([seed, 78]))

    def history(self, seed: int) -> list[list[Task]]:
        """Give the past days that belong to a seed; no bid has the id of another day's."""
        return [
            self._give_owners(
                [
                    replace(task, id=f"past-{n}-{task.id}")
                    for task in self.scenario.day(_PAST + 100 * seed + n)
                ],
                np.random.default_rng([seed, 78, n]),
            )
            for n in range(self.past_days)
        ]

    def _give_owners(self, day: list[Task], rng: np.random.Generator) -> list[Task]:
        if not self.owners:
            return day
        shares = 1.0 / np.arange(1, self.owners + 1)
        picks: list[int] = rng.choice(self.owners, size=len(day), p=shares / shares.sum()).tolist()
        return [replace(task, owner=f"owner-{n}") for task, n in zip(day, picks, strict=True)]


#: What an attacker does. *Gives back*: its cells are on sale again at once, and it has paid.
#: *Cancels*: besides, its price goes back. *Loses*: it offers exactly what it would pay, so
#: it never wins and its bids are as high as bids that cost nothing can be; what it buys besides
#: is named ``BOUGHT``.
Conduct = Literal["keeps", "gives back", "cancels", "loses"]


@dataclass(frozen=True, slots=True)
class _Case:
    attack: Attack
    most_held: float
    conduct: Conduct = "keeps"


def run(size: DecoySize) -> Iterator[Finding]:
    """Run every attack on every zone."""
    for zone in make_zones(size):
        days = [
            (seed, zone.day(seed), decide_history(zone, seed=seed, size=size))
            for seed in range(size.days)
        ]
        yield _compare_owners(zone, size)
        calm = [measure(zone, day, [], past, seed=seed, size=size) for seed, day, past in days]
        for name, case in _list_cases(zone).items():
            changes: list[WelfareChange] = []
            for (seed, day, past), before in zip(days, calm, strict=True):
                decoys = case.attack(zone.scenario, day, np.random.default_rng([seed, 77]))
                changes.append(
                    compare(
                        zone,
                        day,
                        decoys,
                        past,
                        before,
                        seed=seed,
                        size=size,
                        most_held=case.most_held,
                        conduct=case.conduct,
                    )
                )
            found = {
                measure_name: Measure.of(column)
                for measure_name, column in zip(
                    WelfareChange._fields, zip(*changes, strict=True), strict=True
                )
            }
            is_flood = name.startswith(FLOODS)
            payments = "payments shown beside: a flood is demand" if is_flood else "payments 5 %"
            limit = inf if is_flood else MOST_PAYMENTS
            yield Finding(
                experiment="decoys",
                case=f"{name}, {zone.name}",
                measures=found,
                goal=f"by prices alone: welfare falls by 3 % at most, {payments}",
                verdict=find_worst(
                    found["price_welfare"].judge(least=-MOST_WELFARE),
                    found["price_payments"].judge(least=-limit, most=limit),
                ),
            )


def _list_cases(zone: AttackedZone) -> dict[str, _Case]:
    limit = _find_most_held(zone)
    cases = {name: _Case(attack, limit) for name, attack in ATTACKS.items()}
    for name, attack in REFUSED.items():
        cases[name] = _Case(attack, limit, "loses")
    for name in HOARDING:
        cases[f"{name}, cancelled once won"] = _Case(ATTACKS[name], limit, "cancels")
        if not zone.past_days:
            # What the holding limit of a new zone is worth.
            cases[f"{name}, without the holding limit"] = _Case(ATTACKS[name], inf)
    return cases


class WelfareChange(NamedTuple):
    """What an attack did to a day, as shares of what the others had and paid without it."""

    others_welfare: float
    others_payments: float
    #: The same with every cell the attacker won back on sale at once: what its bids do to
    #: prices, apart from the room it bought.
    price_welfare: float
    price_payments: float
    #: The others' loss less what the attacker paid for the room, beyond asks and vendors.
    net_welfare: float
    attackers_pay: float


def compare(
    zone: AttackedZone,
    day: Sequence[Task],
    decoys: Sequence[Task],
    past: Sequence[DecidedDay],
    before: Totals,
    *,
    seed: int,
    size: DecoySize,
    most_held: float | None = None,
    conduct: Conduct = "keeps",
) -> WelfareChange:
    """Run a day with an attack, and again with what the attacker won given back."""
    attack = partial(
        measure_both,
        *(zone, day, decoys, past),
        seed=seed,
        size=size,
        most_held=most_held,
    )
    others, theirs = attack(conduct=conduct)
    alone = others
    if theirs.payments > 0.0:
        alone, _ = attack(conduct="gives back")
    return WelfareChange(
        others_welfare=others.welfare / before.welfare - 1.0,
        others_payments=others.payments / before.payments - 1.0,
        price_welfare=alone.welfare / before.welfare - 1.0,
        price_payments=alone.payments / before.payments - 1.0,
        net_welfare=(others.welfare + theirs.rent) / before.welfare - 1.0,
        attackers_pay=theirs.payments / before.payments,
    )


def _compare_owners(zone: AttackedZone, size: DecoySize) -> Finding:
    """Let the same bids come from few owners of unequal size, without any attack."""
    changes: list[tuple[float, float]] = []
    for seed in range(size.days):
        kinds = [replace(zone, owners=count) for count in (0, OWNERS)]
        before, after = (
            measure(
                kind,
                kind.day(seed),
                [],
                decide_history(kind, seed=seed, size=size),
                seed=seed,
                size=size,
                most_held=inf,
            )
            for kind in kinds
        )
        changes.append((after[0] / before[0] - 1.0, after[1] / before[1] - 1.0))
    welfare, payments = (Measure.of(column) for column in zip(*changes, strict=True))
    return Finding(
        experiment="decoys",
        case=f"no attack, {OWNERS} owners of unequal size, {zone.name}",
        measures={"welfare": welfare, "payments": payments},
        goal="welfare falls by 1 % at most",
        verdict=welfare.judge(least=-0.01),
    )


def decide_history(zone: AttackedZone, *, seed: int, size: DecoySize) -> list[DecidedDay]:
    """Give the past days that belong to a seed, each sold as a first day."""
    return decide_days(
        zone.scenario,
        zone.history(seed),
        rules=make_rules(zone.scenario, "lagrangian"),
        seed=seed,
        settings=Settings(futures=size.futures),
    )


def make_zones(size: DecoySize) -> list[AttackedZone]:
    """Give the markets that are attacked."""
    base = Scenario(
        "zone",
        slots=size.slots,
        nodes=10,
        bids_per_slot=6.4,
        a100_capacity=8_000.0,
        a40_capacity=4_000.0,
        a100_ask=4_500.0,
        a40_ask=2_500.0,
        most_epochs=2,
    ).with_own_asks(0.02)
    return [
        AttackedZone("flat day with history", base, 2, OWNERS),
        AttackedZone("first day, lognormal worths", replace(base, worth_sigma=0.8), 0),
        AttackedZone("two peaks with history", replace(base, shape="two peaks"), 2, OWNERS),
    ]


def measure(
    zone: AttackedZone,
    day: Sequence[Task],
    decoys: Sequence[Task],
    past: Sequence[DecidedDay],
    *,
    seed: int,
    size: DecoySize,
    most_held: float | None = None,
) -> Totals:
    """Give the welfare and the payments of a day's own bids."""
    own, _ = measure_both(zone, day, decoys, past, seed=seed, size=size, most_held=most_held)
    return own


def measure_both(
    zone: AttackedZone,
    day: Sequence[Task],
    decoys: Sequence[Task],
    past: Sequence[DecidedDay],
    *,
    seed: int,
    size: DecoySize,
    most_held: float | None = None,
    conduct: Conduct = "keeps",
) -> tuple[Totals, Totals]:
    """Give what a day's own bids came to, and the decoys."""
    # Decoys come before the bids of their slot.
    tasks = sorted([*decoys, *day], key=lambda task: task.arrival_slot)
    own, added = {task.id for task in day}, frozenset(task.id for task in decoys)
    found = run_policy(
        zone.scenario,
        tasks,
        rules=make_rules(zone.scenario, "lagrangian"),
        past_days=past,
        seed=seed,
        settings=Settings(futures=size.futures),
        most_held=_find_most_held(zone) if most_held is None else most_held,
        returned=added if conduct == "gives back" else frozenset(),
        cancelled=added if conduct == "cancels" else frozenset(),
        at_price={name for name in added if not name.startswith(BOUGHT)}
        if conduct == "loses"
        else frozenset(),
    )
    sums = np.zeros((2, 3))
    for task, decision in zip(tasks, found.decisions, strict=True):
        if decision.admitted and decision.parts is not None:
            cost = decision.parts.vendor + decision.parts.operational
            came_to = (task.bid - cost, decision.payment, decision.payment - cost)
            if task.id in own or conduct != "cancels":
                sums[0 if task.id in own else 1] += came_to
    mine, theirs = (Totals(*row) for row in sums.tolist())
    return mine, theirs


def _find_most_held(zone: AttackedZone) -> float:
    """Give what one owner may hold: a new zone has a limit."""
    capacities = [node.compute_capacity for node in zone.scenario.fleet()]
    return inf if zone.past_days else find_most_held(capacities, slots=zone.scenario.slots)
