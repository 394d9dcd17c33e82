"""Run the world: ``python -m tests.world --seed N --seeds K --steps S --days D``."""

from __future__ import annotations

import argparse
import os
import sys
import time
from pathlib import Path

import pytest


def main(arguments: list[str]) -> int:
    parser = argparse.ArgumentParser(prog="python -m tests.world", description=__doc__)
    parser.add_argument("--seed", type=int, default=1, help="the first seed")
    parser.add_argument("--seeds", type=int, default=1, help="how many seeds, one after another")
    parser.add_argument("--steps", type=int, default=200, help="of each seed")
    parser.add_argument("--days", type=float, default=0.0, help="of each seed, with quiet hours")
    parser.add_argument(
        "--others", nargs="*", help="with everybody who is named, as Gateway; with all by default"
    )
    parser.add_argument("--faults", nargs="+", default=[], help="only these, as DISK_FULL")
    options = parser.parse_args(arguments)
    seeds = range(options.seed, options.seed + options.seeds)
    os.environ["WORLD_SEEDS"] = " ".join(map(str, seeds))
    os.environ["WORLD_STEPS"], os.environ["WORLD_DAYS"] = str(options.steps), str(options.days)
    os.environ["WORLD_FAULTS"] = " ".join(options.faults)
    if options.others is not None:
        os.environ["WORLD_OTHERS"] = " ".join(options.others) or "all"
    began = time.monotonic()
    path = Path(__file__).with_name("test_world.py")
    test = f"{path}::test_what_is_promised_holds_after_each_step"
    code = pytest.main([test, "-q", "-s", "--tb=short", "--show-capture=no", "--timeout=0"])
    length = f"{options.days:g} days" if options.days else f"{options.steps} steps"
    print(f"{len(seeds)} seeds of {length} in {time.monotonic() - began:.0f} s")
    return int(code)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
