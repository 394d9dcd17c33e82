"""``python -m tests.benchmarks.bench_auction_welfare [--only WORD ...] [--trace FILE ...]``.

Full days under the policy that sells, as shares of the Lagrangian bound: small zones, the
settings of the reproduction, and days of traces. One JSON line per day, and the mean of each
setting. ``--only small`` runs the zones of 8 to 24 nodes; other words pick settings by name.
"""

from __future__ import annotations

import argparse
import json
from collections.abc import Iterator, Sequence
from dataclasses import replace
from pathlib import Path
from statistics import fmean

from scheduler.experiments.auction.bounds import lagrangian_bound, make_capacity
from scheduler.experiments.auction.experiments import trace_setting
from scheduler.experiments.auction.quality import Setting, like, settings
from scheduler.experiments.auction.run import decide_days, make_rules, run_policy
from scheduler.experiments.auction.scenario import Scenario
from scheduler.experiments.tiers.traces import read_trace

BOUND_STEPS = 150
#: Nodes of small zones; half as many bids a slot.
SMALL = (8, 16, 24)


def main() -> None:
    """Run the chosen days."""
    parse = argparse.ArgumentParser()
    parse.add_argument("--only", nargs="+", default=[], metavar="WORD")
    parse.add_argument("--trace", type=Path, nargs="+", default=[])
    parse.add_argument("--seeds", type=int, default=5)
    parse.add_argument("--first-seed", type=int, default=0)
    options = parse.parse_args()
    seeds = range(options.first_seed, options.first_seed + options.seeds)
    for name, days in list_days(options.trace, seeds):
        if options.only and not any(word in name for word in options.only):
            continue
        shares: list[float] = []
        for seed, setting in days:
            shares.append(measure(setting, seed=seed))
            print(json.dumps({"case": name, "seed": seed, "share": round(shares[-1], 4)}))
        row = {"case": name, "days": len(shares), "mean": round(fmean(shares), 4)}
        print(json.dumps({**row, "least": round(min(shares), 4)}), flush=True)


def list_days(
    traces: Sequence[Path], seeds: range
) -> Iterator[tuple[str, list[tuple[int, Setting]]]]:
    """Give each setting's name, and its days by seed; of traces the days alone."""
    if traces:
        for path in traces:
            trace, base = read_trace(path), Scenario("trace")
            yield trace.name, [(seed, trace_setting(trace, base, seed)) for seed in seeds]
        return
    for setting in [*list_small_zones(), *settings()]:
        yield setting.name, [(seed, setting) for seed in seeds]


def list_small_zones() -> Iterator[Setting]:
    """Give zones in which single jobs are large beside the zone."""
    for nodes in SMALL:
        for name, sigma in (("uniform", 0.0), ("lognormal", 0.8)):
            zone = Scenario(f"small: {nodes} nodes, {name} worths", nodes=nodes)
            yield like(replace(zone, bids_per_slot=nodes / 2, worth_sigma=sigma))


def measure(setting: Setting, *, seed: int) -> float:
    """Give the welfare of one day as a share of its bound."""
    scenario = setting.scenario
    tasks = scenario.day(seed)
    supply = make_capacity(
        scenario.fleet(),
        base_memory=scenario.base_memory_gb,
        first_slot=0,
        slots=scenario.slots,
    )
    bound = lagrangian_bound(tasks, supply, iterations=BOUND_STEPS).value
    rules = make_rules(scenario, "lagrangian")
    past = decide_days(scenario, setting.history(seed), rules=rules, seed=seed)
    day = run_policy(scenario, tasks, rules=rules, past_days=past, seed=seed)
    return day.welfare / bound


if __name__ == "__main__":
    main()
