"""``python -m scheduler ablate [--days N] [NAME ...]``: what each rule of the prices is worth.

Each rule that ``lagrangian`` has beyond the paper's algorithm is put out of force alone, on the
same days, and honest welfare, payments and the worst of some attacks are held against those of all
rules. One JSON line for each; rules that move nothing are named last, as those that may go.
"""

from __future__ import annotations

import argparse
import json
from collections.abc import Generator, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from importlib import import_module
from math import inf
from typing import Any

import numpy as np
from numpy.random import default_rng

from scheduler.auction.prices import EmptyZone
from scheduler.auction.prices.scenarios import ArrivalScenario
from scheduler.auction.search.grid import Floats
from scheduler.experiments.attack.decoy_kinds import ATTACKS, BUYING, REFUSED, Attack
from scheduler.experiments.attack.decoys import (
    AttackedZone,
    DecoySize,
    Totals,
    decide_history,
    make_zones,
    measure_both,
)
from scheduler.experiments.attack.findings import Finding, Measure, Verdict, find_worst
from scheduler.experiments.auction.beats import DecidedDay
from scheduler.types import Task

_PRICES = "scheduler.auction.prices"
_WITHOUT = "without: "
#: A rule moves nothing if the whole interval of each effect is nearer to 0 than this.
LEAST = 0.005


def _count_served(
    days: Sequence[Sequence[Task]], zone: EmptyZone, **_: object
) -> list[tuple[Task, ...]]:
    return [tuple(task for task in day if zone.could_serve(task)) for day in days]


def _has_work(_: EmptyZone, task: Task) -> bool:
    return task.compute_demand > 0


def _zero(*_: object) -> float:
    return 0.0


def _no_deviation(_: Floats, scenario: ArrivalScenario, *__: float) -> Floats:
    return np.ones(len(scenario.rest))


def _no_noise(chance: Floats, *_: float) -> Floats:
    return np.ones(len(chance))


def _none(_: Sequence[Task]) -> dict[str, Any]:
    return {}


#: By rule what takes its place where it is out of force: by module and name, another value.
RULES: Mapping[str, Mapping[tuple[str, str], Any]] = {
    "only bids that an empty zone could serve count": {
        (f"{_PRICES}.counted_bids", "EmptyZone.could_serve"): _has_work
    },
    "refused work counts up to bought work": {
        (f"{_PRICES}.solve", "select_counted"): _count_served
    },
    "an owner's refused work is backed three times": {
        (f"{_PRICES}.counted_bids", "BACKED_TIMES"): 1
    },
    "a ninth of refused work counts unbacked": {(f"{_PRICES}.counted_bids", "UNBACKED_SHARE"): 0.0},
    "a slot under way may bring more of its burst": {
        (f"{_PRICES}.forecast", "_expect_of_burst"): _zero
    },
    "today's deviation goes on": {(f"{_PRICES}.forecast", "_compute_deviation"): _no_deviation},
    "a growing deviation goes on growing": {(f"{_PRICES}.forecast", "_TREND"): 0.0},
    "futures deviate by chance": {(f"{_PRICES}.forecast", "_draw_noise"): _no_noise},
    "futures lie as far apart as forecasts were wrong": {
        (f"{_PRICES}.scenarios", "_MOST_SPREAD"): 0.0
    },
    "a day may end at a past day's total": {(f"{_PRICES}.scenarios", "_FIXED_TOTAL"): 0.0},
    "supply comes on sale along a ramp": {(f"{_PRICES}.type_pools", "_RAMP"): 1e-9},
    "remnants of cells that serve nobody are left out": {
        (f"{_PRICES}.solve", "_middling_rate"): _none
    },
    "nodes are packed by usual rates": {(f"{_PRICES}.solve", "_usual_rates"): _none},
}
#: Attacks by name, and whether their bids lose on purpose.
_ATTACKS: Mapping[str, tuple[Attack, bool]] = {
    **{
        name: (attack, True)
        for name, attack in (REFUSED | BUYING).items()
        if not name.startswith("5 %")
    },
    "3 worthless bids for each real one": (ATTACKS["3 worthless bids for each real one"], False),
}


@dataclass(frozen=True, slots=True)
class _Day:
    zone: AttackedZone
    seed: int
    bids: list[Task]
    past: list[DecidedDay]


@dataclass(frozen=True, slots=True)
class _Effects:
    """What days came to under some rules."""

    calm: list[Totals] = field(default_factory=list[Totals])
    #: By attack the change of the others' payments, day by day.
    attacked: dict[str, list[float]] = field(default_factory=dict[str, list[float]])


@contextmanager
def out_of_force(rule: str) -> Generator[None]:
    """Put a rule out of force for a while.

    Raises
    ------
    KeyError
        If there is no such rule.
    """
    with ExitStack() as stack:
        for (module, name), value in RULES[rule].items():
            *owners, last = name.split(".")
            target: object = import_module(module)
            for owner in owners:
                target = getattr(target, owner)
            stack.callback(setattr, target, last, getattr(target, last))
            setattr(target, last, value)
        yield


def run(rules: Sequence[str], size: DecoySize) -> Iterator[Finding]:
    """Put each rule out of force in turn; what all rules come to is the first finding."""
    days = [
        _Day(zone, seed, zone.day(seed), decide_history(zone, seed=seed, size=size))
        for zone in make_zones(size)
        if zone.past_days
        for seed in range(size.days)
    ]
    whole = _measure(days, size)
    yield _describe("all rules", whole, whole)
    for rule in rules:
        with out_of_force(rule):
            yield _describe(f"{_WITHOUT}{rule}", _measure(days, size), whole)


def _measure(days: Sequence[_Day], size: DecoySize) -> _Effects:
    found = _Effects()
    for day in days:
        calm, _ = _sell(day, [], size, loses=False)
        found.calm.append(calm)
        for name, (attack, loses) in _ATTACKS.items():
            decoys = attack(day.zone.scenario, day.bids, default_rng([day.seed, 77]))
            attacked, _ = _sell(day, decoys, size, loses=loses)
            change = attacked.payments / calm.payments - 1.0
            found.attacked.setdefault(name, []).append(change)
    return found


def _sell(
    day: _Day, decoys: Sequence[Task], size: DecoySize, *, loses: bool
) -> tuple[Totals, Totals]:
    return measure_both(
        day.zone,
        day.bids,
        decoys,
        day.past,
        seed=day.seed,
        size=size,
        most_held=inf,
        conduct="loses" if loses else "keeps",
    )


def _describe(case: str, found: _Effects, whole: _Effects) -> Finding:
    worst = max(found.attacked, key=lambda name: abs(Measure.of(found.attacked[name]).mean))
    pairs = list(zip(found.calm, whole.calm, strict=True))
    # The same attack under all rules, day by day.
    attacks = zip(found.attacked[worst], whole.attacked[worst], strict=True)
    moved = {
        "welfare": Measure.of([now.welfare / before.welfare - 1.0 for now, before in pairs]),
        "payments": Measure.of([now.payments / before.payments - 1.0 for now, before in pairs]),
        "attack_change": Measure.of([now - before for now, before in attacks]),
    }
    verdicts: list[Verdict] = [each.judge(least=-LEAST, most=LEAST) for each in moved.values()]
    return Finding(
        experiment="ablate",
        case=f"{case}; worst attack: {worst}",
        measures={**moved, "attacked_payments": Measure.of(found.attacked[worst])},
        goal="moves nothing: welfare, payments and what the attack does to them within 0.5 %",
        verdict=find_worst(*verdicts),
    )


def main(argv: Sequence[str]) -> int:
    """Print what each rule is worth, and name those that move nothing.

    Returns
    -------
    int
        0.
    """
    parse = argparse.ArgumentParser(
        prog="python -m scheduler ablate",
        description="Put each rule of the prices out of force, one at a time.",
    )
    parse.add_argument("names", nargs="*", metavar="NAME", help="parts of rules' names; else all")
    parse.add_argument("--days", type=int, default=12, help="of each zone; 2 at least")
    options = parse.parse_args(argv)
    rules = [
        rule for rule in RULES if not options.names or any(part in rule for part in options.names)
    ]
    if not rules:
        parse.error("no rule has such a name")
    nothing = list[str]()
    size = DecoySize(days=options.days, slots=24, futures=2)
    for finding in run(rules, size):
        print(json.dumps(finding.to_json()), flush=True)
        if finding.case.startswith(_WITHOUT) and finding.verdict == "holds":
            nothing.append(finding.case.split(";")[0].removeprefix(_WITHOUT))
    print(json.dumps({"moves_nothing": nothing}))
    return 0
