"""Predicted against measured time of training steps over ten length distributions.

``make bench-work`` or ``python -m tests.benchmarks.bench_work``: what a node's self-test measures
is fitted as the market fits it (``fleet.get_work_costs``), and what the units of ten other
distributions then say is compared with their measured times. All are timed in turns, and the best
of each counts. On a CPU it is one thread's processor time, which other work on the machine disturbs
least.
"""

from __future__ import annotations

import argparse
import json
import sys
import time
from dataclasses import replace
from statistics import median

import numpy as np
import torch

from marketplace.fleet.work_costs import fit_work_costs
from tests.benchmarks.smallest import add_smallest
from tests.measured_units import count_units
from workers.models import BUNDLED_PREFIX, TINY
from workers.node.self_test import WORK_CASES
from workers.protocol.job_spec import BaseModelRef
from workers.protocol.work_costs import build_work_costs
from workers.runtime.memory_plan import find_device_limit_gb
from workers.runtime.resident import load_resident
from workers.runtime.work_timing import TimedRows, spread_evenly, time_work

#: Largest error that counts as met.
GOAL = 0.15
STEPS = 4


def draw_cases() -> tuple[TimedRows, ...]:
    """Ten distributions of lengths, as shares of the model's context."""
    random = np.random.default_rng(3)

    def rows(batch: int) -> int:
        return batch * STEPS

    def spread_log(median: float, spread: float, count: int) -> tuple[float, ...]:
        drawn = median * np.exp(spread * random.standard_normal(count))
        return tuple(np.clip(drawn, 0.01, 1.0).tolist())

    def mix(short: float, long: float, share: float, count: int) -> tuple[float, ...]:
        return tuple(np.where(random.random(count) < share, long, short).tolist())

    return (
        TimedRows("short", (0.1,) * rows(8), 8),
        TimedRows("middle", (0.3,) * rows(8), 8),
        TimedRows("full context", (1.0,) * rows(4), 4),
        TimedRows("any length", spread_evenly(0.02, 1.0, rows(8)), 8),
        TimedRows("any short length", spread_evenly(0.02, 0.2, rows(8)), 8),
        TimedRows("a long tail", spread_log(0.12, 0.8, rows(8)), 8),
        TimedRows("a few long rows", mix(0.06, 0.95, 0.1, rows(16)), 16),
        TimedRows("half long rows", mix(0.1, 0.9, 0.5, rows(8)), 8),
        TimedRows("long prompts", spread_evenly(0.2, 0.8, rows(8)), 8, trained=0.15),
        TimedRows("large batches", spread_log(0.2, 0.5, rows(32)), 32),
    )


def _take_a_row_of_each(cases: tuple[TimedRows, ...]) -> tuple[TimedRows, ...]:
    """One step of one row that is short of the context, of each."""
    return tuple(replace(case, shares=(min(0.3, case.shares[0]),), batch=1) for case in cases)


def main(arguments: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(
        prog="python -m tests.benchmarks.bench_work",
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("--base", default=f"{BUNDLED_PREFIX}{TINY}", help="a base model's source")
    parser.add_argument("--device", default="cuda" if torch.cuda.is_available() else "cpu")
    parser.add_argument("--repeats", type=int, default=7)
    add_smallest(parser)
    chosen = parser.parse_args(arguments)
    device = torch.device(chosen.device)
    on_cpu = device.type == "cpu"
    if on_cpu:
        torch.set_num_threads(1)
    resident = load_resident(
        BaseModelRef(name=chosen.base, source=chosen.base),
        device=device,
        limit_gb=find_device_limit_gb(device),
    )
    known_cases, cases = WORK_CASES, draw_cases()
    if chosen.smallest:
        known_cases, cases = _take_a_row_of_each(known_cases), _take_a_row_of_each(cases)
    measured = time_work(
        resident,
        (*known_cases, *cases),
        repeats=chosen.repeats,
        clock=time.process_time if on_cpu else time.perf_counter,
    )
    known, asked = measured[: len(known_cases)], measured[len(known_cases) :]
    costs = fit_work_costs(build_work_costs(resident.model.shape), known)
    seconds_per_unit = median(row.seconds / count_units(costs, row) for row in known)
    print(json.dumps({"case": "fitted costs", "seconds_per_unit": seconds_per_unit}))
    errors = []
    for case, row in zip(cases, asked, strict=True):
        predicted = seconds_per_unit * count_units(costs, row)
        errors.append(predicted / row.seconds - 1)
        print(
            json.dumps(
                {
                    "case": case.name,
                    "units_per_step": round(count_units(costs, row) / row.steps, 1),
                    "predicted_step_s": round(predicted / row.steps, 5),
                    "measured_step_s": round(row.seconds / row.steps, 5),
                    "error": round(errors[-1], 4),
                }
            ),
            flush=True,
        )
    met = sum(abs(error) <= GOAL for error in errors)
    worst = max(errors, key=abs)
    line = {"case": f"within {GOAL:.0%}", "met": met, "of": len(errors), "worst": round(worst, 4)}
    print(json.dumps(line))
    return 0 if met == len(errors) else 1


if __name__ == "__main__":
    sys.exit(main())
