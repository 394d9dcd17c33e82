"""``python -m scheduler simulate replans``: promises kept after losses, and plans made again."""

from __future__ import annotations

import argparse
import json
import math
from collections.abc import Sequence

import numpy as np

from scheduler.experiments.auction.losses import bound_kept, compare_methods, make_losses
from scheduler.experiments.auction.run import decide_days, make_rules
from scheduler.experiments.auction.scenario import Scenario
from scheduler.experiments.auction.waiting_plans import run_day

#: Days on which waiting plans are made again: nodes, bids a node and slot, spread of asks.
_DAYS = ((8, 0.5, 0.0), (16, 0.5, 0.3), (12, 0.6, 0.2))
_SLOTS = 48


def main(argv: Sequence[str]) -> int:
    """Run both experiments; one JSON line for each row."""
    parser = argparse.ArgumentParser(prog="python -m scheduler simulate replans")
    parser.add_argument("--losses", type=int, default=64, help="nodes lost, each in its own zone")
    parser.add_argument("--days", type=int, default=8, help="days of each kind; 0 leaves them out")
    parser.add_argument("--bound-s", type=float, default=10.0, help="seconds a loss for the bound")
    parser.add_argument("--seed", type=int, default=0)
    arguments = parser.parse_args(argv)
    losses = make_losses(arguments.losses, seed=arguments.seed)
    live, hit = sum(loss.live for loss in losses), sum(len(loss.hit) for loss in losses)
    for name, tally in compare_methods(losses).items():
        row = {
            "method": name,
            "losses": len(losses),
            "live": live,
            "hit": hit,
            "kept_share": 1 - (hit - tally.kept) / live,
            "all_kept": tally.whole,
            "median_ms": 1000 * float(np.median(tally.seconds)),
            "most_ms": 1000 * max(tally.seconds),
        }
        print(json.dumps(row), flush=True)
    most = sum(bound_kept(loss, time_limit_s=arguments.bound_s) for loss in losses)
    print(json.dumps({"bound": "any plan", "kept_share": 1 - (hit - most) / live}), flush=True)
    for nodes, bids, spread in _DAYS if arguments.days else ():
        for ends_later in (False, True):
            _print_days(nodes, bids, spread, ends_later, range(arguments.days))
    return 0


def _print_days(
    nodes: int, bids: float, spread: float, ends_later: bool, seeds: Sequence[int]
) -> None:
    """Compare days with and without waiting plans made again."""
    scenario = Scenario(
        f"{nodes} nodes, {bids:g} bids a node and slot",
        slots=_SLOTS,
        nodes=nodes,
        bids_per_slot=nodes * bids,
        deadlines="loose",
        cleaning_share=0.0,
        ask_spread=spread,
    )
    gains: list[float] = []
    moved = 0
    for seed in seeds:
        days = [scenario.day(10_000 + 2 * seed + n) for n in range(2)]
        past = decide_days(scenario, days, rules=make_rules(scenario, "lagrangian"), seed=seed)
        plain, improved = (
            run_day(scenario, scenario.day(seed), past_days=past, seed=seed, improves=improves)
            for improves in (None, ends_later)
        )
        gains.append(improved.welfare / plain.welfare - 1)
        moved += improved.moved
    error = float(np.std(gains)) / math.sqrt(len(gains))
    row = {
        "waiting_plans": scenario.name,
        "ends_later": ends_later,
        "days": len(gains),
        "moved": moved,
        "welfare_gain": float(np.mean(gains)),
        "standard_error": error,
    }
    print(json.dumps(row), flush=True)
