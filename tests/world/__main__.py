"""Run the world: ``python -m tests.world --seed N --seeds K --steps S``."""

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
    parser.add_argument("--exports", action="store_true", help="with exports, as at night")
    options = parser.parse_args(arguments)
    seeds = range(options.seed, options.seed + options.seeds)
    os.environ["WORLD_SEEDS"] = " ".join(map(str, seeds))
    os.environ["WORLD_EXPORTS"] = "1" if options.exports else ""
    os.environ["WORLD_STEPS"] = str(options.steps)
    began = time.monotonic()
    path = str(Path(__file__).with_name("test_world.py"))
    code = pytest.main([path, "-q", "-s", "--tb=short", "--show-capture=no", "--timeout=0"])
    print(f"{len(seeds)} seeds of {options.steps} steps in {time.monotonic() - began:.0f} s")
    return int(code)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
