"""Context switches through the market: ``python -m tests.benchmarks.bench_switch [--jobs 6]``.

A whole house with one node is started, and jobs are bid for, each once the one before has begun.
One JSON line: what the market found of the node's switches in the results of its slices, from the
last step of one job to the first step of the next, and the share of the next jobs' preparation that
the steps before hid; beside it, the seconds that a fresh process takes to its first step.
"""

from __future__ import annotations

import argparse
import json
import os
import shutil
import subprocess
import sys
import time

import httpx

from marketplace.embedded.demo.api_client import DATASET, place_bid
from marketplace.embedded.house import house
from tests.demo_market import open_market
from tests.market_shell import MarketShell
from tests.servers_plugin import RUNS_DIR
from tests.waiting import until
from workers.bench.warm import ONE_STEP

TRAINING = {"epochs": 1, "learning_rate": 1e-3}
ROWS = 120
WITHIN_S = 600.0
#: A process that loads the base model and makes one step.
FRESH = (sys.executable, "-m", "workers.bench", "warm", ONE_STEP)
_READ = """
import dataclasses, json
from marketplace.fleet.models import Node
from marketplace.jobs.context_switch_stats import measure_switches
nodes = list(Node.objects.values_list("pk", flat=True))
print(json.dumps([dataclasses.asdict(found) for found in measure_switches(nodes).values()]))
"""


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--jobs", type=int, default=6)
    jobs = parser.parse_args().jobs
    data_dir = RUNS_DIR / f"switch-{os.getpid()}"
    try:
        with house(data_dir=data_dir, durable=False, own_servers=True) as running:
            seeded = open_market(running, say=lambda _: None)
            authorization = {"Authorization": f"Bearer {seeded['api_key']}"}
            with httpx.Client(base_url=running.url, headers=authorization, timeout=60) as api:
                _train(api, seeded["zone"], jobs)
            found = json.loads(MarketShell(running).run(_READ))
        began = time.perf_counter()
        subprocess.run(FRESH, check=True, capture_output=True)
        fresh_s = round(time.perf_counter() - began, 3)
        print(json.dumps({"nodes": found, "fresh_process_s": fresh_s}))
    finally:
        shutil.rmtree(data_dir, ignore_errors=True)


def _train(api: httpx.Client, zone: str, jobs: int) -> None:
    """Bid for jobs, each once the one before has begun; return once all are done."""
    names: list[str] = []
    rows = b"".join(DATASET.read_bytes().splitlines(keepends=True)[:ROWS])
    for number in range(jobs):
        terms = {"name": f"switch {number}", "training": TRAINING, "within_s": WITHIN_S}
        bid = place_bid(api, zone, content=rows, say=lambda _: None, **terms)
        names.append(bid["job_id"])
        _wait(api, bid["job_id"], for_any=("running", "succeeded"))
    for name in names:
        _wait(api, name, for_any=("succeeded",))


def _wait(api: httpx.Client, job_id: str, *, for_any: tuple[str, ...]) -> None:
    def is_so() -> bool:
        return api.get(f"/api/jobs/{job_id}").json()["status"] in for_any

    until(is_so, what=f"the job is {for_any[0]}", within_s=300, every_s=0.2)


if __name__ == "__main__":
    main()
