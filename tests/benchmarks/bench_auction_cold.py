"""``python -m tests.benchmarks.bench_auction_cold [--scale S] [--slots N] [--seeds N]``.

First days without any history, in the reproduction's settings: additive prices against
``residual``, with one ask a type and with an own ask on every node. One JSON line per
setting and spread of asks: means of the shares of the Lagrangian bound.
"""

from __future__ import annotations

import argparse
import json
from collections.abc import Iterator
from dataclasses import replace
from statistics import fmean

from scheduler.experiments.auction.bounds import lagrangian_bound, make_capacity
from scheduler.experiments.auction.quality import settings
from scheduler.experiments.auction.run import make_rules, run_policy
from scheduler.experiments.auction.scenario import Scenario

POLICIES = ("lagrangian", "residual")
BOUND_STEPS = 150


def main() -> None:
    """Run every setting cold."""
    parse = argparse.ArgumentParser()
    parse.add_argument("--scale", type=float, default=0.2, help="of nodes and bids")
    parse.add_argument("--slots", type=int, default=72)
    parse.add_argument("--seeds", type=int, default=3)
    parse.add_argument("--spreads", type=float, nargs="+", default=[0.0, 0.02, 0.4])
    options = parse.parse_args()
    found: dict[float, list[dict[str, float]]] = {spread: [] for spread in options.spreads}
    for scenario in list_days(scale=options.scale, slots=options.slots):
        for spread in options.spreads:
            row = measure(scenario.with_own_asks(spread), seeds=options.seeds)
            found[spread].append(row)
            print_row(scenario.name, spread, row)
    for spread, rows in found.items():
        print_row(
            f"mean of {len(rows)} settings",
            spread,
            {name: fmean(row[name] for row in rows) for name in POLICIES},
        )


def list_days(*, scale: float, slots: int) -> Iterator[Scenario]:
    """Give the settings' days, each once: without past days some are alike."""
    seen: set[Scenario] = set()
    for setting in settings(scale=scale):
        scenario = setting.with_slots(slots).scenario
        # Asks are this benchmark's own.
        day = replace(scenario, name="", ask_spread=0.0, different_asks=0)
        if day not in seen:
            seen.add(day)
            yield scenario


def measure(scenario: Scenario, *, seeds: int) -> dict[str, float]:
    """Give each policy's mean share of the bound over cold days."""
    shares: dict[str, list[float]] = {name: [] for name in POLICIES}
    supply = make_capacity(
        scenario.fleet(),
        base_memory=scenario.base_memory_gb,
        first_slot=0,
        slots=scenario.slots,
    )
    for seed in range(seeds):
        tasks = scenario.day(seed)
        bound = lagrangian_bound(tasks, supply, iterations=BOUND_STEPS).value
        for name in POLICIES:
            day = run_policy(scenario, tasks, rules=make_rules(scenario, name), seed=seed)
            shares[name].append(day.welfare / bound)
    return {name: fmean(found) for name, found in shares.items()}


def print_row(name: str, spread: float, row: dict[str, float]) -> None:
    """Print one line of the table."""
    rounded = {policy: round(share, 4) for policy, share in row.items()}
    points = round(100 * (row["lagrangian"] - row["residual"]), 2)
    print(
        json.dumps({"case": name, "asks_spread": spread, **rounded, "points": points}), flush=True
    )


if __name__ == "__main__":
    main()
