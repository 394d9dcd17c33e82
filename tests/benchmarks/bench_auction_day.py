"""``python -m tests.benchmarks.bench_auction_day [--quick]``: a paper day by policy.

144 slots, 80 bids a slot, 200 nodes, vendors and deadlines as
``scheduler.experiments.auction.scenario`` draws them; CPU seconds of one process,
one JSON line per policy.
"""

from __future__ import annotations

import argparse
import json
from collections.abc import Sequence

from scheduler.auction.prices import Settings
from scheduler.experiments.auction.run import decide_days, make_rules, run_policy
from scheduler.experiments.auction.scenario import Scenario
from tests.benchmarks.smallest import add_smallest

GOALS_S = {"residual": 5.0, "lagrangian": 60.0}


def main(arguments: Sequence[str] | None = None) -> None:
    """Time each policy once, after a small day that compiles everything."""
    parse = argparse.ArgumentParser()
    parse.add_argument("--quick", action="store_true", help="a tenth of nodes and bids")
    add_smallest(parse)
    asked = parse.parse_args(arguments)
    scale = 0.01 if asked.smallest else 0.1 if asked.quick else 1.0
    slots = 12 if asked.smallest else 144
    full = Scenario("day", slots=slots, nodes=round(200 * scale), bids_per_slot=80 * scale)
    small = Scenario("warm", slots=slots, nodes=2, bids_per_slot=1.0)
    for policy, goal in GOALS_S.items():
        rules = make_rules(small, policy)
        run_policy(small, small.day(0), rules=rules, settings=Settings(iterations=2))
        rules = make_rules(full, policy)
        past = [full.day(1), full.day(2)] if policy == "lagrangian" else []
        decided = decide_days(full, past, rules=rules)
        found = run_policy(full, full.day(0), rules=rules, past_days=decided)
        print(
            json.dumps(
                {
                    "case": f"paper day, {policy}, {full.nodes} nodes, {found.bids} bids",
                    "cpu_s": round(found.seconds, 2),
                    "goal": f"at most {goal:g} s",
                    "ok": found.seconds <= goal,
                }
            ),
            flush=True,
        )


if __name__ == "__main__":
    main()
