"""Floods of bids that lose on purpose, by who the others are.

Days of 24 slots, flat and with two peaks, of markets in which 20 owners return and of markets of
strangers; past days count with the winners of their own sales. The floods in the table of
``docs/adr/0026-counting-by-work.md`` are of this form.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace

from numpy.random import default_rng

from scheduler.experiments.attack.decoy_kinds import ATTACKS, BUYING, REFUSED, Attack
from scheduler.experiments.attack.decoys import (
    MOST_PAYMENTS,
    OWNERS,
    AttackedZone,
    DecoySize,
    Totals,
    decide_history,
    make_zones,
    measure,
    measure_both,
)
from scheduler.experiments.attack.findings import Finding, Measure
from scheduler.experiments.auction.beats import DecidedDay
from scheduler.types import Task

QUICK = DecoySize(days=2, slots=24, futures=2)
FULL = DecoySize(days=12, slots=24, futures=2)

#: Floods that cost their owner nothing, or nearly.
_CASES: dict[str, Attack] = {
    name: attack for name, attack in REFUSED.items() if not name.startswith("5 %")
} | BUYING
_WORTHLESS = "3 worthless bids for each real one"


@dataclass(frozen=True, slots=True)
class _CalmDay:
    zone: AttackedZone
    seed: int
    day: list[Task]
    past: list[DecidedDay]
    totals: Totals


def run(size: DecoySize) -> Iterator[Finding]:
    """Flood markets of owners who return and of strangers."""
    for owners in (OWNERS, 0):
        calm = [
            _run_calm(replace(zone, owners=owners), seed, size)
            for zone in make_zones(size)
            if zone.past_days
            for seed in range(size.days)
        ]
        others = f"{owners} owners who return" if owners else "strangers"
        for name, attack in (*_CASES.items(), (_WORTHLESS, ATTACKS[_WORTHLESS])):
            yield _flood(f"{name}, {others}", attack, calm, size, loses=name != _WORTHLESS)


def _run_calm(zone: AttackedZone, seed: int, size: DecoySize) -> _CalmDay:
    day, past = zone.day(seed), decide_history(zone, seed=seed, size=size)
    totals = measure(zone, day, [], past, seed=seed, size=size)
    return _CalmDay(zone, seed, day, past, totals)


def _flood(
    case: str, attack: Attack, calm: list[_CalmDay], size: DecoySize, *, loses: bool
) -> Finding:
    welfare: list[float] = []
    payments: list[float] = []
    for one in calm:
        attacked, _ = measure_both(
            one.zone,
            one.day,
            attack(one.zone.scenario, one.day, default_rng([one.seed, 77])),
            one.past,
            seed=one.seed,
            size=size,
            conduct="loses" if loses else "keeps",
        )
        welfare.append(attacked.welfare / one.totals.welfare - 1.0)
        payments.append(attacked.payments / one.totals.payments - 1.0)
    paid = Measure.of(payments)
    return Finding(
        experiment="floods",
        case=case,
        measures={"welfare": Measure.of(welfare), "payments": paid},
        goal="the others' payments within 5 %",
        verdict=paid.judge(least=-MOST_PAYMENTS, most=MOST_PAYMENTS),
    )
