"""A scheduling round and an admission of the lane: ``python -m tests.benchmarks.bench_prompts``."""

from __future__ import annotations

import json
import statistics
import time
from collections.abc import Callable

import numpy as np

from scheduler.prompts.admission import admit_job
from scheduler.prompts.jobs import TuningJob
from scheduler.prompts.planning import keep_promises, plan_round
from scheduler.prompts.pools import WarmPool
from scheduler.prompts.rules import LaneRules

GPUS, JOBS, MODELS = 200, 500, 3
LIMIT_MS = 1.0
RULES = LaneRules(max_gpus=8, predicted_gain=1.2, reclaim_s=10.0)


def main() -> None:
    report("deadlines that can be kept", (600.0, 1200.0))
    report("overload", (20.0, 90.0))


def report(name: str, slo_s: tuple[float, float]) -> None:
    """Measure a round of new jobs, a round of promises and an admission beside them."""
    jobs, pools = make_state(slo_s)
    measure(f"round of {JOBS} jobs, {name}", lambda: plan_round(jobs, pools, 20, 0.0, rules=RULES))
    plan = plan_round(jobs, pools, 20, 0.0, rules=RULES)
    measure(
        f"round that keeps {len(plan.promises)} promises",
        lambda: keep_promises(plan.promises, pools, 20, 0.0, rules=RULES),
    )
    held = {one.job.id: one for one in plan.promises}
    newcomer = TuningJob("new", "model-0", 0.0, 700.0, 60.0, 6.0)
    measure(
        f"admission beside {len(held)} promises",
        lambda: admit_job(newcomer, held, pools, 20, 0.0, rules=RULES),
    )


def make_state(slo_s: tuple[float, float]) -> tuple[list[TuningJob], dict[str, WarmPool]]:
    """Give 500 pending jobs over three base models with 180 busy GPUs and 20 cold ones."""
    rng = np.random.default_rng(0)
    jobs = [
        TuningJob(
            id=f"job-{k}",
            base_model=f"model-{k % MODELS}",
            submitted_s=0.0,
            slo_s=float(rng.uniform(*slo_s)),
            work_gpu_s=float(rng.uniform(10.0, 300.0)),
            lookup_gpu_s=6.0,
        )
        for k in range(JOBS)
    ]
    pools = {
        f"model-{m}": WarmPool(
            f"model-{m}", 20.0, tuple(sorted(float(x) for x in rng.uniform(-10.0, 60.0, 60)))
        )
        for m in range(MODELS)
    }
    return jobs, pools


def measure(case: str, act: Callable[[], object]) -> None:
    """Print the median CPU time of 50 calls."""
    times: list[float] = []
    for _ in range(50):
        started = time.process_time()
        act()
        times.append(1000.0 * (time.process_time() - started))
    found = {"case": case, "ms": round(statistics.median(times), 3), "limit_ms": LIMIT_MS}
    print(json.dumps(found))


if __name__ == "__main__":
    main()
