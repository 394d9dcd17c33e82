"""How good the prompts of halving lookups are beside brute force, over many worlds.

``python -m tests.benchmarks.bench_lookups [--first 1000] [--worlds 17] [--tasks 20]`` prints a JSON
line: the geometric mean over tasks of iterations after halving over those after brute force, with a
95 % interval. With ``--lookups FILE``, tasks of a report's ``lookups.csv`` count as well.
"""

from __future__ import annotations

import argparse
import csv
import json
import math
from collections import defaultdict
from collections.abc import Iterable, Sequence
from pathlib import Path

from scheduler.experiments.prompts.lookup_quality import measure_lookups
from scheduler.experiments.tiers.measures import interval


def main(arguments: Sequence[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--first", type=int, default=1000, help="seed of the first world")
    parser.add_argument("--worlds", type=int, default=17)
    parser.add_argument("--tasks", type=int, default=20, help="of each world")
    parser.add_argument("--lookups", type=Path, default=None)
    chosen = parser.parse_args(arguments)
    fresh = [
        (one.found["halving"].iterations, one.found["brute force"].iterations)
        for seed in range(chosen.first, chosen.first + chosen.worlds)
        for one in measure_lookups(seed=seed, tasks=chosen.tasks)
    ]
    known = [] if chosen.lookups is None else read_report(chosen.lookups)
    print(
        json.dumps(
            {
                "case": "halving over brute force, iterations",
                "fresh": summarize(fresh),
                "pooled": summarize([*known, *fresh]),
            }
        )
    )


def read_report(path: Path) -> list[tuple[int, int]]:
    """Iterations after halving and after brute force of a report's tasks."""
    found: defaultdict[str, dict[str, int]] = defaultdict(dict)
    with path.open() as file:
        for row in csv.DictReader(file):
            found[row["task"]][row["way"]] = int(row["iterations"])
    return [(ways["halving"], ways["brute force"]) for ways in found.values()]


def summarize(pairs: Iterable[tuple[int, int]]) -> dict[str, float]:
    ratios = [halving / brute for halving, brute in pairs]
    logs = interval([math.log(one) for one in ratios])
    return {
        "tasks": len(ratios),
        "ratio": round(math.exp(logs.mean), 3),
        "low": round(math.exp(logs.mean - logs.half), 3),
        "high": round(math.exp(logs.mean + logs.half), 3),
        "at_most_a_ninth_more": round(sum(one <= 10 / 9 for one in ratios) / len(ratios), 3),
        "more": round(sum(one > 1 for one in ratios) / len(ratios), 3),
        "fewer": round(sum(one < 1 for one in ratios) / len(ratios), 3),
    }


if __name__ == "__main__":
    main()
