"""Admission to the express lane over HTTP beside bids, at a house that runs.

``python -m tests.benchmarks.bench_express --url URL --key KEY --zone ZONE --dataset ID`` prints one
JSON line: milliseconds from a request to the lane's answer while another connection places bids,
and of the same house's plain reads, side by side.
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import threading
import time
import uuid
from collections import Counter
from collections.abc import Sequence
from datetime import UTC, datetime, timedelta

import httpx

GOAL_MS = 100.0


def main(arguments: Sequence[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    for name in ("--url", "--key", "--zone", "--dataset"):
        parser.add_argument(name, required=True)
    parser.add_argument("--requests", type=int, default=100)
    chosen = parser.parse_args(arguments)
    work = {"zone": chosen.zone, "dataset_id": chosen.dataset, "training": {"epochs": 1}}
    headers = {"Authorization": f"Bearer {chosen.key}"}
    over = threading.Event()
    bids: Counter[int] = Counter()
    with httpx.Client(base_url=chosen.url, headers=headers, timeout=60) as market:
        beside = threading.Thread(
            target=_place_bids, args=(chosen.url, headers, work, bids, over), daemon=True
        )
        beside.start()
        asked: Counter[str] = Counter()
        reads, answers = [], []
        for _ in range(chosen.requests):
            began = time.perf_counter()
            market.get("/api/bids", params={"limit": 1}).raise_for_status()
            reads.append(1000 * (time.perf_counter() - began))
            began = time.perf_counter()
            reply = market.post(
                "/api/express",
                json=work | {"slo_s": 170.0},
                headers={"Idempotency-Key": uuid.uuid4().hex},
            )
            answers.append(1000 * (time.perf_counter() - began))
            asked[reply.json().get("status", str(reply.status_code))] += 1
        over.set()
        beside.join()
    print(
        json.dumps(
            {
                "case": "admission over HTTP beside bids",
                "answers": dict(asked),
                "bids_beside": sum(bids.values()),
                "median_ms": round(statistics.median(answers), 1),
                "p99_ms": round(_find_p99(answers), 1),
                "goal_p99_ms": GOAL_MS,
                "read_median_ms": round(statistics.median(reads), 1),
                "read_p99_ms": round(_find_p99(reads), 1),
                "load": round(os.getloadavg()[0], 1),
            }
        )
    )


def _place_bids(
    url: str,
    headers: dict[str, str],
    work: dict[str, object],
    found: Counter[int],
    over: threading.Event,
) -> None:
    with httpx.Client(base_url=url, headers=headers, timeout=60) as market:
        while not over.is_set():
            deadline = (datetime.now(UTC) + timedelta(minutes=5)).isoformat()
            reply = market.post(
                "/api/bids",
                json=work | {"name": "beside", "price": "0.01", "deadline": deadline},
                headers={"Idempotency-Key": uuid.uuid4().hex},
            )
            found[reply.status_code] += 1


def _find_p99(times: Sequence[float]) -> float:
    return sorted(times)[min(len(times) - 1, int(0.99 * len(times)))]


if __name__ == "__main__":
    main()
