"""What ticks of the clock, pages and memory cost in a house of many zones and nodes.

``python -m tests.benchmarks.bench_large_house [--zones 100] [--nodes 10000]`` makes them in its own
PostgreSQL: registered nodes that were heard a moment ago, spread over the zones, all of one
provider. One JSON line for each act: milliseconds of processor
time of this process and of its PostgreSQL backend (the better of two), and kilobytes of a page's
answer. Nodes that wait for plans are ``bench_nodes``' to measure.
"""

from __future__ import annotations

import argparse
import json
import os
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any
from unittest.mock import patch

import psutil

from marketplace.embedded.servers import prepare_postgres, wait_for_postgres
from marketplace.embedded.stack import Stack

ROUNDS = 2


def main(argv: list[str]) -> int:
    parser = argparse.ArgumentParser(prog="bench_large_house")
    parser.add_argument("--zones", type=int, default=100)
    parser.add_argument("--nodes", type=int, default=10_000)
    arguments = parser.parse_args(argv)
    with tempfile.TemporaryDirectory() as name:
        postgres = prepare_postgres(data_dir=Path(name), durable=False)
        with Stack(data_dir=Path(name), programs=[postgres.program]) as stack:
            stack.start("postgres")
            wait_for_postgres(postgres)
            os.environ["DATABASE_URL"] = postgres.owner_url
            os.environ.setdefault("REDIS_URL", "redis://127.0.0.1:1/0")
            os.environ["DJANGO_SETTINGS_MODULE"] = "marketplace.config.settings.test"
            _measure(arguments.zones, arguments.nodes)
    return 0


def _measure(zones: int, nodes: int) -> None:
    import django

    django.setup()
    from django.conf import settings
    from django.core.management import call_command
    from django.db import connection, transaction

    settings.CACHES = {"default": {"BACKEND": "django.core.cache.backends.locmem.LocMemCache"}}
    call_command("migrate", verbosity=0, interactive=False)
    from django.test import Client

    from marketplace.auction.lane.sweep import sweep_zones
    from marketplace.auction.lateness import explain_lateness
    from marketplace.auction.probes import run_probes
    from marketplace.common import clock
    from marketplace.config.beat import has_work
    from marketplace.fleet.services import sweep_offline_nodes
    from marketplace.jobs.services import dispatch_slots
    from tests import builders

    # Nobody listens to what is told after a commit.
    with patch.object(transaction, "on_commit"):
        owner = _fill(zones, nodes)
        with connection.cursor() as cursor:
            cursor.execute("VACUUM ANALYZE")
            cursor.execute("SELECT pg_backend_pid()")
            [[backend]] = cursor.fetchall()
        ticks: dict[str, Callable[[], object]] = {
            "dispatch": lambda: dispatch_slots(now=clock.now()),
            "offline sweep": lambda: sweep_offline_nodes(now=clock.now()),
            "lane sweep": lambda: sweep_zones(clock=clock.now),
            "has_work": lambda: has_work(now=clock.now()),
            "probes": lambda: run_probes(now=clock.now()),
            "why jobs are late": lambda: explain_lateness(now=clock.now()),
        }
        for name, tick in ticks.items():
            _report(name, zones, nodes, *_take(tick, backend))
        provider, operator = Client(), Client()
        provider.force_login(owner)
        operator.force_login(builders.operator())
        pages = {
            "/nodes": provider,
            "/provide": provider,
            "/nodes/rates": provider,
            "/operator": operator,
            "/operator/health": operator,
            "/operator/providers": operator,
            "/operator/money": operator,
            "/status": Client(),
            "/": Client(),
        }
        for path, client in pages.items():
            answer = client.get(path)
            assert answer.status_code == 200, (path, answer)
            took = _take(lambda path=path, client=client: client.get(path), backend)
            _report(path, zones, nodes, *took, kb=round(len(answer.content) / 1000))
    rss = psutil.Process().memory_info().rss >> 20
    print(json.dumps({"bench": "large house", "case": "this process", "rss_mb": rss}), flush=True)


def _fill(zones: int, nodes: int) -> Any:
    """Make zones and their nodes; their provider's owner."""
    from marketplace.common import clock
    from marketplace.fleet.models import Node, Zone
    from tests import builders
    from tests import market_builders as market

    now = clock.now()
    provider = market.provider()
    made = [market.zone() for _ in range(zones)]
    Zone.objects.update(epoch_at=now, slot_s=600)
    market.node(made[0], of=provider)
    of_first = {
        field.attname: getattr(Node.objects.get(), field.attname)
        for field in Node._meta.concrete_fields
        if field.attname not in ("id", "name", "api_token_hash", "zone_id")
    }
    of_first |= {"last_heartbeat_at": now, "joined_at": now}
    Node.objects.bulk_create(
        (
            Node(
                name=f"large-{number}",
                api_token_hash=f"large-{number}",
                zone_id=made[number % zones].pk,
                **of_first,
            )
            for number in range(1, nodes)
        ),
        batch_size=1000,
    )
    Node.objects.update(last_heartbeat_at=now)
    builders.beat_everything(now=now)
    return builders.owner_of(provider.organisation)


def _take(act: Callable[[], object], backend: int) -> tuple[float, float, float]:
    """Milliseconds of processor time here and in PostgreSQL, and by the clock: the better run."""
    server = psutil.Process(backend)
    found = []
    for _ in range(ROUNDS):
        before, here, wall = sum(server.cpu_times()[:2]), time.process_time(), time.monotonic()
        act()
        here, wall = time.process_time() - here, time.monotonic() - wall
        found.append((1000 * here, 1000 * (sum(server.cpu_times()[:2]) - before), 1000 * wall))
    return min(found)


def _report(
    case: str, zones: int, nodes: int, here_ms: float, server_ms: float, wall_ms: float, **more: Any
) -> None:
    line = {"bench": "large house", "case": case, "zones": zones, "nodes": nodes}
    figures = {"python_ms": here_ms, "postgres_ms": server_ms, "wall_ms": wall_ms}
    rounded = {name: round(value, 1) for name, value in figures.items()}
    print(json.dumps(line | rounded | more), flush=True)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
