"""``python -m workers.bench [cpu|gpu]``: one JSON line per case."""

from __future__ import annotations

import argparse
import json
import sys

import torch

from workers.bench.cases import CPU_CASES, GPU_CASES
from workers.bench.measure import measure


def main(arguments: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(prog="python -m workers.bench", description=__doc__)
    parser.add_argument("device", nargs="?", choices=("cpu", "gpu"), default="cpu")
    parser.add_argument("--only", default="", help="cases whose name has this in it")
    parser.add_argument("--repeats", type=int, default=5)
    chosen = parser.parse_args(arguments)
    if chosen.device == "gpu" and not torch.cuda.is_available():
        print("There is no CUDA device. Run `python -m workers.bench cpu`.", file=sys.stderr)
        return 2
    device = torch.device("cuda" if chosen.device == "gpu" else "cpu")
    for case in GPU_CASES if chosen.device == "gpu" else CPU_CASES:
        if chosen.only in case.name:
            row = measure(case, device=device, repeats=chosen.repeats)
            print(json.dumps(row), flush=True)
    return 0


if __name__ == "__main__":
    sys.exit(main())
