"""A job moved between two local processes: ``python -m tests.benchmarks.bench_move [--rounds N]``.

Runs a whole house and sells jobs that start on serverless-local and move to marketplace-local.
Prints one JSON line per move. It says how long the job paused, from the last step reported by one
node to the first by the other (both run already), and how much of that passed before the second had
the lease. It also says how long after the bid the job started, its machine's boot included.
"""

from __future__ import annotations

import argparse
import json
import os
import shutil
import sys
from datetime import datetime
from pathlib import Path
from typing import Any

from marketplace.embedded.demo.api_client import api_client, parse_answer
from marketplace.embedded.demo.first_sale import run_first_sale
from marketplace.embedded.demo.moving_sale import run_moving_sale
from marketplace.embedded.demo.opening import NODE
from marketplace.embedded.house import House, house
from tests.demo_market import open_market

ROOT = Path(__file__).parents[2]
DATA_DIR = ROOT / ".data" / f"bench-move-{os.getpid()}"
#: Seconds: of any model, and of the bundled small one.
LIMIT_S, SMALL_LIMIT_S = 10.0, 2.0


def main(argv: list[str]) -> int:
    parser = argparse.ArgumentParser(prog="bench_move")
    parser.add_argument("--rounds", type=int, default=3)
    options = parser.parse_args(argv)
    try:
        with house(data_dir=DATA_DIR, durable=True, own_servers=True) as running:
            seeded = open_market(running, say=lambda _: None)
            first = run_first_sale(running, seeded, say=lambda _: None)
            for number in range(options.rounds):
                move = run_moving_sale(running, seeded, first, nodes=[NODE], say=lambda _: None)
                running.manage("machines_end")
                figures = {
                    "pause_s": move.pause_s,
                    "until_lease_s": until_lease_s(running, seeded, move.job_id),
                    "limit_s": SMALL_LIMIT_S,
                    "limit_any_model_s": LIMIT_S,
                    "bid_to_first_lease_s": move.started_s,
                    "steps_lost": move.steps_lost,
                    "load": round(os.getloadavg()[0], 2),
                }
                line = {"bench": "tiers-move", "round": number, "cores": os.cpu_count()}
                print(json.dumps(line | figures), flush=True)
    finally:
        shutil.rmtree(DATA_DIR, ignore_errors=True)
    return 0


def until_lease_s(running: House, seeded: dict[str, Any], job_id: str) -> float:
    """From the end of the one lease to the beginning of the other."""
    with api_client(running, seeded["api_key"]) as market:
        path = f"/api/jobs/{job_id}/events"
        events = parse_answer(market.get(path, params={"limit": 100}))["data"]
    at = {event["kind"]: datetime.fromisoformat(event["at"]) for event in events}
    # The last of each kind: it was paused once, and started for the second time then.
    return round((at["started"] - at["paused"]).total_seconds(), 2)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
