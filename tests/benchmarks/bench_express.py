"""Admission to the express lane over HTTP beside bids, at a house of its own.

``python -m tests.benchmarks.bench_express [--requests 200]`` starts a house with one CPU node and
prints one JSON line: milliseconds from a request to the lane's answer while another connection
places bids, and of the same house's plain reads, side by side.
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

from marketplace.embedded.demo.express import open_express_lane
from tests.benchmarks.bench_api import ROWS, run_house

GOAL_MS = 100.0
#: Rows of a request's data, and how long the lane may take to buy its first seat.
ROWS_USED, SEAT_WITHIN_S = 48, 120.0


def main(arguments: Sequence[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--requests", type=int, default=200)
    chosen = parser.parse_args(arguments)
    with run_house() as (running, seeded):
        open_express_lane(running, seeded, say=lambda _: None)
        measure(running.url, seeded["api_key"], seeded["zone"], requests=chosen.requests)


def measure(url: str, key: str, zone: str, *, requests: int) -> None:
    """Ask the lane so often, and print how long it took to answer."""
    headers = {"Authorization": f"Bearer {key}"}
    over = threading.Event()
    bids: Counter[int] = Counter()
    with httpx.Client(base_url=url, headers=headers, timeout=60) as market:
        rows = b"".join(ROWS.read_bytes().splitlines(keepends=True)[:ROWS_USED])
        data = market.post(
            "/api/datasets", data={"zone": zone}, files={"file": (ROWS.name, rows)}
        ).raise_for_status()
        work = {"zone": zone, "dataset_id": data.json()["id"], "training": {"epochs": 1}}
        _wait_for_seat(market, work)
        beside = threading.Thread(
            target=_place_bids, args=(url, headers, work, bids, over), daemon=True
        )
        beside.start()
        asked: Counter[str] = Counter()
        reads, answers = [], []
        for _ in range(requests):
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


def _wait_for_seat(market: httpx.Client, work: dict[str, object]) -> None:
    """Until the lane has bought its first seat and posts a rate."""
    ends_at = time.monotonic() + SEAT_WITHIN_S
    while market.post("/api/express/quotes", json=work).status_code != 200:
        if time.monotonic() > ends_at:
            raise SystemExit("the lane bought no seat")
        time.sleep(1)


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
