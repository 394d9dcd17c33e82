"""``python -m workers.bench [check|checklist|cpu|gpu|memory|prompts|transfer|warm]``: cases of
checks and measurements, one JSON line each.

``gpu`` needs torch, transformers and peft, no network: weights are made at random. Each
case stands alone: one that fails prints its error in its line.
"""

from __future__ import annotations

import argparse
import gc
import importlib
import json
import logging
import sys
import time
from collections.abc import Callable
from typing import Any

import torch

from workers.bench.cases import CPU_CASES, GPU_CASES, REHEARSAL_CASES, BenchCase
from workers.bench.gpu import measure_gpu
from workers.bench.measure import measure

#: Further benchmarks and checks by their name, each with arguments of its own.
MODES = {
    **{name: f"workers.bench.{name}" for name in ("checklist", "memory", "models", "prompts")},
    **{name: f"workers.bench.{name}" for name in ("transfer", "warm")},
    "check": "workers.bench.checks",
}


def main(arguments: list[str] | None = None) -> int:
    arguments = sys.argv[1:] if arguments is None else arguments
    if arguments and arguments[0] in MODES:
        # imported when asked for: the other benchmarks do without the node's runtime
        return importlib.import_module(MODES[arguments[0]]).main(arguments[1:])
    parser = argparse.ArgumentParser(
        prog="python -m workers.bench",
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("device", nargs="?", choices=("cpu", "gpu"), default="cpu")
    parser.add_argument("--only", default="", help="a case, or those with this in their name")
    parser.add_argument("--repeats", type=int, default=5)
    parser.add_argument(
        "--minutes", type=float, default=60.0, help="minutes after which no case begins"
    )
    parser.add_argument(
        "--rehearse", action="store_true", help="gpu: the same on the CPU with a tiny base"
    )
    chosen = parser.parse_args(arguments)
    until = time.monotonic() + 60 * chosen.minutes
    if chosen.device == "cpu":
        return run(CPU_CASES, chosen.only, until, lambda c: measure(c, repeats=chosen.repeats))
    if not chosen.rehearse and not torch.cuda.is_available():
        print("There is no CUDA device. Run `python -m workers.bench cpu`.", file=sys.stderr)
        return 2
    logging.basicConfig(level=logging.INFO, stream=sys.stderr)
    device = torch.device("cpu" if chosen.rehearse else "cuda")

    def on_gpu(case: BenchCase) -> dict[str, Any]:
        return measure_gpu(case, device=device, repeats=chosen.repeats, until=until)

    cases = REHEARSAL_CASES if chosen.rehearse else GPU_CASES
    return run(cases, chosen.only, until, on_gpu)


def run(
    cases: tuple[BenchCase, ...],
    only: str,
    until: float,
    measured: Callable[[BenchCase], dict[str, Any]],
) -> int:
    """Print a line per case; 1 when any failed or was left out."""
    whole = True
    chosen = [case for case in cases if case.name == only]
    for case in chosen or [case for case in cases if only in case.name]:
        if time.monotonic() >= until:
            row: dict[str, Any] = {"case": case.name, "error": "no time was left for it"}
        else:
            try:
                row = measured(case)
            # a case too big for the device must not take the others' figures with it
            except Exception as error:
                row = {"case": case.name, "error": f"{type(error).__name__}: {error}"}
            gc.collect()
            if torch.cuda.is_available():
                torch.cuda.empty_cache()
        whole = whole and "error" not in row
        print(json.dumps(row), flush=True)
    return 0 if whole else 1


if __name__ == "__main__":
    sys.exit(main())
