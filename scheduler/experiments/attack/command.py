"""``python -m scheduler attack [--quick] [NAME ...]``: one JSON line per case."""

from __future__ import annotations

import argparse
import json
from collections.abc import Callable, Iterator, Sequence

from scheduler.experiments.attack import (
    blocking,
    decoys,
    floods,
    forgeries,
    providers,
    splits,
)
from scheduler.experiments.attack.findings import Finding

#: Experiments by name. Each takes whether to be quick and gives its findings one by one;
#: another attack is another module and a line here.
EXPERIMENTS: dict[str, Callable[[bool], Iterator[Finding]]] = {
    "blocking": lambda quick: blocking.run(blocking.QUICK if quick else blocking.FULL),
    "decoys": lambda quick: decoys.run(decoys.QUICK if quick else decoys.FULL),
    "floods": lambda quick: floods.run(floods.QUICK if quick else floods.FULL),
    "forgeries": lambda quick: forgeries.run(forgeries.QUICK if quick else forgeries.FULL),
    "providers": lambda quick: providers.run(providers.QUICK if quick else providers.FULL),
    "splits": lambda quick: splits.run(splits.QUICK if quick else splits.FULL),
}


def main(argv: Sequence[str]) -> int:
    """Run experiments and print what they find.

    Returns
    -------
    int
        0; 1 when a finding misses its goal. One that is open is no miss.
    """
    parse = argparse.ArgumentParser(
        prog="python -m scheduler attack",
        description="Attack the auction: one JSON line per case with gain or loss as shares, the "
        "half width of their 95 % confidence intervals, and whether the goal holds, is open or is "
        "missed.",
    )
    parse.add_argument("names", nargs="*", metavar="NAME", help=f"of {', '.join(EXPERIMENTS)}")
    parse.add_argument("--quick", action="store_true", help="small zones and few days")
    options = parse.parse_args(argv)
    unknown = [name for name in options.names if name not in EXPERIMENTS]
    if unknown:
        parse.error(f"no experiment {unknown[0]!r}: choose of {', '.join(EXPERIMENTS)}")
    missed = False
    for name in options.names or EXPERIMENTS:
        for finding in EXPERIMENTS[name](options.quick):
            print(json.dumps(finding.to_json()), flush=True)
            missed |= finding.verdict == "missed"
    return int(missed)
