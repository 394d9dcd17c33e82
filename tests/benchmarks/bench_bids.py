"""What a bid costs the web process: CPU from the ASGI call to the answer, of a crowd of callers.

``python -m tests.benchmarks.bench_bids [--callers 32] [--bids 1000]`` prints a JSON line for each
of three rounds. It starts its own PostgreSQL (with fsync), Redis and lane, serves the requests in
this process, and counts processor time, which says more than a rate on a machine that is busy.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import os
import sys
import time
from collections import Counter
from collections.abc import Callable
from datetime import timedelta
from typing import Any

from tests.benchmarks.bench_lane import cpu_s, servers, zone_with_nodes

PROGRAMS = ("lane", "postgres", "redis")
#: Bids before the first round: the lane compiles what it needs, and plans are prepared.
WARM_UP = 300


class Crowd:
    """Callers who each place one bid after the other."""

    def __init__(self, serve: Any, request: Callable[[int], tuple[str, bytes]]) -> None:
        self._serve = serve
        self._request = request
        self._sent = 0
        self.statuses: Counter[int] = Counter()

    async def place(self, bids: int, *, callers: int) -> None:
        self.statuses.clear()
        ends = self._sent + bids

        async def keep_placing() -> None:
            while self._sent < ends:
                self._sent += 1
                self.statuses[await self._place(self._sent)] += 1

        await asyncio.gather(*(keep_placing() for _ in range(callers)))

    async def _place(self, number: int) -> int:
        key, body = self._request(number)
        messages = [{"type": "http.request", "body": body, "more_body": False}]
        answered = asyncio.Event()
        statuses: list[int] = []

        async def receive() -> dict[str, Any]:
            if messages:
                return messages.pop()
            await answered.wait()
            return {"type": "http.disconnect"}

        async def send(message: dict[str, Any]) -> None:
            if message["type"] == "http.response.start":
                statuses.append(message["status"])

        await self._serve(_build_scope(key, body), receive, send)
        answered.set()
        return statuses[0]


def _build_scope(key: str, body: bytes) -> dict[str, Any]:
    headers = {
        "host": "127.0.0.1",
        "authorization": f"Bearer {key}",
        "content-type": "application/json",
        "content-length": str(len(body)),
    }
    return {
        "type": "http",
        "asgi": {"version": "3.0", "spec_version": "2.3"},
        "http_version": "1.1",
        "method": "POST",
        "scheme": "http",
        "path": "/api/bids",
        "raw_path": b"/api/bids",
        "query_string": b"",
        "root_path": "",
        "headers": [(name.encode(), value.encode()) for name, value in headers.items()],
        "client": ("127.0.0.1", 1),
        "server": ("127.0.0.1", 80),
    }


def build_requests() -> Callable[[int], tuple[str, bytes]]:
    """A market of twenty owners; gives the key and the body of each bid by its number."""
    from marketplace.common import clock
    from tests import builders
    from tests import market_builders as market

    zone = zone_with_nodes("bids")
    owners = [builders.organisation(usd="1000000") for _ in range(20)]
    keys = [builders.api_key(owner)[1] for owner in owners]
    data = [market.dataset(owner, zone, rows=20_000) for owner in owners]

    def request(number: int) -> tuple[str, bytes]:
        at = number % len(owners)
        body = {
            "zone": zone.name,
            "dataset_id": data[at].pk,
            "name": "bench",
            "price": f"{1 + 0.007919 * (number % 997):.6f}",
            "deadline": (clock.now() + timedelta(hours=4 + number % 16)).isoformat(),
            **market.job_terms(epochs=1 + number % 3),
        }
        return keys[at], json.dumps(body).encode()

    return request


async def bench(crowd: Crowd, stack: Any, *, bids: int, callers: int) -> None:
    await crowd.place(WARM_UP, callers=callers)
    while crowd.statuses[202]:
        await crowd.place(WARM_UP, callers=callers)
    for _ in range(3):
        before = {name: cpu_s(stack, name) for name in PROGRAMS}
        own, began = time.process_time(), time.perf_counter()
        await crowd.place(bids, callers=callers)
        wall, spent = time.perf_counter() - began, {"web": time.process_time() - own}
        spent |= {name: cpu_s(stack, name) - before[name] for name in PROGRAMS}
        figures = {
            "cpu_ms_per_bid": {name: round(1000 * s / bids, 2) for name, s in spent.items()},
            "per_s": round(bids / wall, 1),
            "answers": dict(crowd.statuses),
            "load": round(os.getloadavg()[0], 1),
        }
        print(json.dumps({"bench": "bids", "callers": callers, **figures}), flush=True)


def main(argv: list[str]) -> int:
    parser = argparse.ArgumentParser(prog="bench_bids")
    parser.add_argument("--callers", type=int, default=32)
    parser.add_argument("--bids", type=int, default=1000)
    arguments = parser.parse_args(argv)
    with servers() as stack:
        import django

        django.setup()
        from django.core.management import call_command
        from django.db import connection

        from marketplace.auction.bidding.wait import listener
        from marketplace.config.asgi import application

        call_command("migrate", verbosity=0, interactive=False)
        crowd = Crowd(application, build_requests())
        connection.close()
        stack.start("lane")
        asyncio.run(bench(crowd, stack, bids=arguments.bids, callers=arguments.callers))
        listener.close()
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
