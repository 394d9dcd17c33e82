"""Nodes that wait for plans on one web process: how soon a plan comes, and what waiting costs.

``python -m tests.benchmarks.bench_nodes [--nodes 1000]`` prints JSON lines. It starts its own
PostgreSQL (with fsync) and Redis and one real web process; the nodes are connections of this
process, which shares the cores with it, and one of them is a node's real Celery worker.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import os
import statistics
import sys
import threading
import time
from dataclasses import dataclass
from typing import Any
from urllib.parse import urlsplit

import psutil

from tests.benchmarks.bench_lane import cpu_s, servers

#: Single plans, one after the other.
SINGLE = 200
IDLE_S = 20.0
#: As long as the plan of a node with four jobs.
FILLER = "x" * 4000


@dataclass
class Fleet:
    """Waiting nodes, and when each last got a plan."""

    url: str
    nodes: list[Any]
    sessions: list[str]

    def __post_init__(self) -> None:
        self.arrived: dict[int, float] = {}
        self.waiting = 0
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._loop.run_forever, daemon=True)
        self._thread.start()
        for number in range(len(self.nodes)):
            asyncio.run_coroutine_threadsafe(self._wait_for_plans(number), self._loop)

    async def _wait_for_plans(self, number: int) -> None:
        parts = urlsplit(self.url)
        reader, writer = await asyncio.open_connection(parts.hostname, parts.port)
        held: tuple[int | None, int] = (None, 0)
        while True:
            body = json.dumps(
                {
                    "node_id": self.nodes[number].pk,
                    "session": self.sessions[number],
                    "held_slot": held[0],
                    "held_revision": held[1],
                    "wait_s": 25.0,
                }
            ).encode()
            writer.write(
                f"POST /internal/v1/plans/next HTTP/1.1\r\nHost: {parts.netloc}\r\n"
                f"Authorization: Bearer token-{number}\r\nContent-Type: application/json\r\n"
                f"Content-Length: {len(body)}\r\n\r\n".encode()
                + body
            )
            self.waiting += 1
            head = await reader.readuntil(b"\r\n\r\n")
            self.waiting -= 1
            assert head.startswith(b"HTTP/1.1 200"), head
            length = int(head.lower().split(b"content-length:")[1].split(b"\r\n")[0])
            reply = json.loads(await reader.readexactly(length))
            if reply["plan"] is not None:
                self.arrived[number] = time.perf_counter()
                held = (reply["slot"], reply["revision"])


def make_plans(nodes: list[Any], slot: int) -> float:
    """Store and announce a plan of 4 kB for each node, as dispatching does; when it began."""
    from django.db import transaction

    from marketplace.common import clock
    from marketplace.fleet.notify import notify_nodes
    from marketplace.jobs.models import NodePlan

    now = clock.now()
    ends_at = now.replace(year=now.year + 1)
    began = time.perf_counter()
    with transaction.atomic():
        NodePlan.objects.bulk_create(
            NodePlan(
                node=node,
                slot=slot,
                revision=1,
                plan={"node_id": node.pk, "slot": slot, "filler": FILLER},
                lease_tokens=[],
                ends_at=ends_at,
                made_at=now,
            )
            for node in nodes
        )
        notify_nodes(node.pk for node in nodes)
    return began


def wait_until(condition: Any) -> None:
    while not condition():
        time.sleep(0.0005)


def spread(values: list[float]) -> dict[str, float]:
    ordered = sorted(1000 * value for value in values)
    return {
        "median_ms": round(statistics.median(ordered), 1),
        "p99_ms": round(ordered[int(0.99 * (len(ordered) - 1))], 1),
        "last_ms": round(ordered[-1], 1),
    }


def measure_waiting(fleet: Fleet, stack: Any) -> None:
    web = psutil.Process(stack.pid("web"))
    wait_until(lambda: fleet.waiting == len(fleet.nodes))
    before = {name: cpu_s(stack, name) for name in ("web", "postgres")}
    time.sleep(IDLE_S)
    idle = {
        f"{name}_percent": round(100 * (cpu_s(stack, name) - before[name]) / IDLE_S, 1)
        for name in before
    }
    show("idle", nodes=len(fleet.nodes), rss_mb=web.memory_info().rss >> 20, **idle)

    single = []
    for number in range(SINGLE):
        chosen = number % len(fleet.nodes)
        fleet.arrived.clear()
        began = make_plans([fleet.nodes[chosen]], slot=number + 1)
        wait_until(lambda chosen=chosen: chosen in fleet.arrived)
        single.append(fleet.arrived[chosen] - began)
    show("one plan", **spread(single))

    fleet.arrived.clear()
    wait_until(lambda: fleet.waiting == len(fleet.nodes))
    began = make_plans(fleet.nodes, slot=SINGLE + 1)
    wait_until(lambda: len(fleet.arrived) == len(fleet.nodes))
    show("a plan for each at once", **spread([at - began for at in fleet.arrived.values()]))


def measure_worker(url: str, node: Any) -> None:
    """From the market's write to the task of a real Celery worker."""
    from workers.node.credentials import Credentials
    from workers.node.market_client import MarketClient
    from workers.node.plan_receiver import PlanReceiver
    from workers.protocol.messages import SlotPlan

    arrived: dict[int, float] = {}
    with MarketClient(url, token="worker-token") as client:
        receiver = PlanReceiver(
            Credentials(url, "bench", node.pk, "worker-token", 10.0, ()),
            client,
            offer=lambda plan: arrived.__setitem__(plan.slot, time.perf_counter()),
            refused=print,
            rotated=print,
        )
        receiver.start()
        assert receiver.ready.wait(60)
        from marketplace.common import clock
        from marketplace.fleet.notify import notify_nodes
        from marketplace.jobs.models import NodePlan
        from workers.protocol.wire import to_json

        now = clock.now()
        took = []
        for slot in range(1, SINGLE + 1):
            plan = to_json(SlotPlan(node.pk, slot, 0.0, now.timestamp() + 600))
            began = time.perf_counter()
            NodePlan.objects.create(
                node=node,
                slot=slot,
                revision=1,
                plan=plan,
                lease_tokens=[],
                ends_at=now.replace(year=now.year + 1),
                made_at=now,
            )
            notify_nodes([node.pk])
            wait_until(lambda slot=slot: slot in arrived)
            took.append(arrived[slot] - began)
        receiver.close()
    # The first ones hold imports and connections.
    show("one plan to a Celery worker's task", **spread(took[10:]))


def show(case: str, **figures: Any) -> None:
    load = round(os.getloadavg()[0], 1)
    print(json.dumps({"bench": "nodes", "case": case, **figures, "load": load}), flush=True)


def main(argv: list[str]) -> int:
    parser = argparse.ArgumentParser(prog="bench_nodes")
    parser.add_argument("--nodes", type=int, default=1000)
    arguments = parser.parse_args(argv)
    with servers(workers=1) as stack:
        import django

        django.setup()
        from django.core.management import call_command

        from marketplace.common import clock
        from marketplace.fleet.secrets import hash_secret
        from marketplace.fleet.services import open_plan_session
        from tests import market_builders as market
        from tests.job_builders import SPOKEN

        call_command("migrate", verbosity=0, interactive=False)
        zone = market.zone()
        provider = market.provider()
        nodes = [
            market.node(
                zone,
                of=provider,
                api_token_hash=hash_secret(f"token-{number}"),
                api_token_set_at=clock.now(),
            )
            for number in range(arguments.nodes)
        ]
        worker = market.node(
            zone,
            of=provider,
            api_token_hash=hash_secret("worker-token"),
            api_token_set_at=clock.now(),
        )
        sessions = [open_plan_session(node=node, request=SPOKEN) for node in nodes]
        stack.start("web")
        url = os.environ["PUBLIC_URL"]
        measure_worker(url, worker)
        measure_waiting(Fleet(url, nodes, sessions), stack)
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
