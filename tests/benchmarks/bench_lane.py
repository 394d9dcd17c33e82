"""The lane and the road to it: durable decisions a second, restarts, and bids over HTTP.

``python -m tests.benchmarks.bench_lane [--quick]`` prints one JSON line per case. It starts its
own PostgreSQL (with fsync) and Redis, a lane and a web server, and stops them at the end. All of
these run on two cores; what measures them runs on the others, so that the load it makes is told
apart from the load it measures.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import os
import shutil
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager, suppress
from datetime import timedelta
from pathlib import Path
from typing import Any

import httpx
import psutil

from marketplace.embedded.servers import (
    Program,
    find_free_port,
    prepare_postgres,
    prepare_redis,
    wait_for_postgres,
    wait_for_redis,
)
from marketplace.embedded.stack import Stack
from tests.benchmarks.load import Answer, send_at_rate

ROOT = Path(__file__).parents[2]
DATA_DIR = ROOT / ".data" / f"bench-lane-{os.getpid()}"
NODES, HORIZON = 100, 144
SETTINGS = "marketplace.config.settings.dev"
#: Connections of the load generator; more than are ever busy.
CONNECTIONS = 512
#: The house has so many cores; the load is made on the others, if there are others.
CORES = 2
_ALL = sorted(os.sched_getaffinity(0))
HOUSE, LOAD = set(_ALL[:CORES]), set(_ALL[CORES:]) or set(_ALL)


def main(argv: list[str]) -> int:
    parser = argparse.ArgumentParser(prog="bench_lane")
    parser.add_argument("--quick", action="store_true", help="a tenth of the work")
    parser.add_argument("--only", choices=("decisions", "replay", "http"))
    parser.add_argument("--workers", type=int, default=CORES, help="processes of the web server")
    parser.add_argument("--rates", type=float, nargs="+", default=(50.0, 200.0, 400.0))
    arguments = parser.parse_args(argv)
    scale = 0.1 if arguments.quick else 1.0
    with servers(arguments.workers) as stack:
        import django

        django.setup()
        from django.core.management import call_command

        call_command("migrate", verbosity=0, interactive=False)
        if arguments.only in (None, "decisions", "replay"):
            bench_decisions(int(2000 * scale))
        if arguments.only in (None, "http"):
            bench_http(stack, arguments.rates, seconds=max(5.0, 20 * scale))
    return 0


def report(case: str, **figures: Any) -> None:
    rounded = {
        name: round(value, 2) if isinstance(value, float) else value
        for name, value in figures.items()
    }
    print(
        json.dumps({"bench": "lane", "case": case, "cores": os.cpu_count(), **rounded}), flush=True
    )


@contextmanager
def servers(workers: int = CORES) -> Iterator[Stack]:
    """PostgreSQL and Redis of our own, and what runs on them later, all on ``CORES`` cores."""
    DATA_DIR.mkdir(parents=True)
    with ExitStack() as stack:
        # What is started below keeps to these cores, with all its children.
        os.sched_setaffinity(0, HOUSE)
        stack.callback(os.sched_setaffinity, 0, _ALL)
        if not os.environ.get("KEEP_LOGS"):
            stack.callback(shutil.rmtree, DATA_DIR, ignore_errors=True)
        postgres = prepare_postgres(data_dir=DATA_DIR, durable=True)
        redis = prepare_redis(data_dir=DATA_DIR)
        port = find_free_port()
        environment = {
            "DJANGO_SETTINGS_MODULE": SETTINGS,
            "DEBUG": "0",
            "DATABASE_URL": postgres.url,
            "DATABASE_OWNER_URL": postgres.owner_url,
            "REDIS_URL": redis.url,
            "DATA_DIR": str(DATA_DIR),
            "PUBLIC_URL": f"http://127.0.0.1:{port}",
            "LOG_LEVEL": "WARNING",
            "API_BIDS_PER_MINUTE": "1000000",
            "DATABASE_POOL_MAX": "24",
            "PYTHONPATH": str(ROOT),
        }
        os.environ |= environment
        programs = [postgres.program, redis.program, *market_programs(port, workers)]
        running = stack.enter_context(
            Stack(data_dir=DATA_DIR, programs=programs, environment=environment)
        )
        running.start("postgres", "redis")
        wait_for_postgres(postgres)
        wait_for_redis(redis)
        yield running


def market_programs(port: int, workers: int) -> list[Program]:
    lane = ("-m", "celery", "--app", "marketplace.config.celery", "worker", "--queues", "lane")
    web = ("-m", "marketplace.config.web_server", "--port", str(port), "--log-level", "warning")
    return [
        Program(
            name="lane",
            command=(sys.executable, *lane, "--pool", "solo", "--loglevel", "WARNING")
            + ("--without-gossip", "--without-mingle"),
        ),
        Program(
            name="web",
            command=(sys.executable, *web),
            environment=(("WEB_WORKERS", str(workers)),),
        ),
    ]


# -- a market to sell in -----------------------------------------------------------------


def zone_with_nodes(name: str):
    from tests import market_builders as market

    zone = market.zone(name=name, horizon_slots=HORIZON)
    zone.slot_s = 600
    # A new zone would not let a few organisations bid for all of it.
    zone.created_at -= timedelta(days=30)
    zone.save()
    provider = market.provider()
    for number in range(NODES):
        market.node(
            zone,
            of=provider,
            compute_capacity=24_000.0,
            memory_gb=80.0,
            ask_micros=300_000 + 1000 * number,
        )
    return zone


def bids_waiting(zone, owners, count: int, *, now) -> None:
    """Bids as the web places them: rows, holds and all."""
    from tests import builders
    from tests import market_builders as market

    data = {owner.pk: market.dataset(owner, zone, rows=20_000) for owner in owners}
    people = {owner.pk: builders.owner_of(owner) for owner in owners}
    for number in range(count):
        owner = owners[number % len(owners)]
        market.bid(
            owner,
            zone,
            data=data[owner.pk],
            placed_by=people[owner.pk],
            price_micros=1_000_000 + 7_919 * (number % 997),
            slots=20 + number % 100,
            epochs=1 + number % 3,
            now=now,
        )


def timed(work: Callable[[], int]) -> tuple[int, float, float]:
    """What ``work`` counted, its seconds, and the processor seconds of this process."""
    wall, cpu = time.perf_counter(), time.process_time()
    count = work()
    return count, time.perf_counter() - wall, time.process_time() - cpu


# -- decisions ---------------------------------------------------------------------------


def bench_decisions(count: int, *, least: int = 50) -> None:
    from marketplace.auction.book.verify import verify_zone
    from marketplace.auction.lane.decide import decide_pending_bids
    from marketplace.common import clock
    from tests import builders

    owners = [builders.organisation(usd="1000000") for _ in range(20)]
    now = clock.now()
    zones = []

    def group(limit: int, bids: int) -> float:
        zone = zone_with_nodes(f"group-{limit}")
        zones.append(zone)
        bids_waiting(zone, owners, 8, now=now)
        decide_pending_bids(zone=zone, now=now)
        bids_waiting(zone, owners, bids, now=now)
        decided, wall, cpu = timed(lambda: _drain(zone, limit, now))
        assert decided == bids
        report(
            "group commit",
            batch=limit,
            decisions=decided,
            per_s=decided / wall,
            ms_per_batch=1000 * wall * limit / decided,
            python_cpu_share=cpu / wall,
        )
        return decided / wall

    def _drain(zone, limit: int, at) -> int:
        decided = 0
        while True:
            batch = decide_pending_bids(zone=zone, now=at, limit=limit)
            decided += batch.decided
            if not batch.full:
                return decided

    group(1, max(least, count // 4))
    group(8, max(2 * least, count // 2))
    best = max(group(32, count), group(128, count))
    for workers in (1, 4):
        zone = zone_with_nodes(f"row-lock-{workers}")
        bids_waiting(zone, owners, 8, now=now)
        decide_pending_bids(zone=zone, now=now)
        bids_waiting(zone, owners, max(2 * least, count // 4), now=now)
        decided, wall, _ = timed(lambda zone=zone, n=workers: row_lock_decide(zone, n, now))
        report(
            "one row lock per bid",
            workers=workers,
            decisions=decided,
            per_s=decided / wall,
            group_commit_ratio=best * wall / decided,
        )
    bench_replay(zones[-1])
    found, wall, _ = timed(lambda: verify_zone(zones[-1]).decisions)
    report("verify", decisions=found, per_s=found / wall)


def row_lock_decide(zone, workers: int, now) -> int:
    """The way we did not choose: a transaction and a locked price row for every bid."""
    from concurrent.futures import ThreadPoolExecutor

    from django.db import connections, transaction

    from marketplace.auction.book import engine_cache as books
    from marketplace.auction.lane.decisions import decide_received_bids
    from marketplace.auction.lane.enter import Lane, write_lane
    from marketplace.auction.lane.sequence_bids import receive_bids
    from marketplace.auction.models import Bid, MarketHead
    from marketplace.fleet.selectors import slot_at

    waiting = list(
        Bid.objects.filter(zone=zone, status="pending").order_by("arrival").values_list("pk")
    )

    def decide(bid_id: str) -> None:
        with transaction.atomic():
            head = MarketHead.objects.select_for_update().get(zone=zone)
            lane = Lane(
                zone=zone,
                now=now,
                head=head,
                book=books.load_lane_book(head=head),
                slot=max(slot_at(zone, now), head.slot),
            )
            receive_bids(lane, limit=1, only=bid_id)
            decide_received_bids(lane)
            write_lane(lane)

    def work(share: list[str]) -> None:
        for bid_id in share:
            decide(bid_id)
        connections.close_all()

    ids = [pk for (pk,) in waiting]
    with ThreadPoolExecutor(workers) as pool:
        list(pool.map(work, [ids[n::workers] for n in range(workers)]))
    return len(ids)


def bench_replay(zone) -> None:
    """A restart: the engine from its snapshot and the log."""
    from marketplace.auction.book import engine_cache as books
    from marketplace.auction.models import LogEntry, MarketHead, Snapshot

    Snapshot.objects.filter(zone=zone, position__gt=0).delete()
    head = MarketHead.objects.get(zone=zone)
    books.discard_lane_book(zone_id=zone.pk)

    def rebuild() -> int:
        books.load_lane_book(head=head)
        return LogEntry.objects.filter(zone=zone, kind="BidArrived").count()

    decided, wall, cpu = timed(rebuild)
    report("replay", decisions=decided, per_s=decided / wall, per_s_and_core=decided / cpu)


# -- over HTTP ---------------------------------------------------------------------------


def bench_http(stack: Stack, rates: Sequence[float], *, seconds: float) -> None:
    from marketplace.auction.models import Bid
    from marketplace.common import clock
    from marketplace.payments.ledger_checks import check_ledger
    from tests import builders
    from tests import market_builders as market

    zone = zone_with_nodes("http")
    owners = [builders.organisation(usd="1000000") for _ in range(20)]
    keys = [builders.api_key(owner)[1] for owner in owners]
    data = [market.dataset(owner, zone, rows=20_000) for owner in owners]
    stack.start("lane", "web")
    os.sched_setaffinity(0, LOAD)
    url = os.environ["PUBLIC_URL"]
    _web_wait(url)

    def request(number: int) -> bytes:
        at = number % len(owners)
        body = {
            "zone": zone.name,
            "dataset_id": data[at].pk,
            "name": "bench",
            "price": f"{1 + 0.007919 * (number % 997):.6f}",
            "deadline": (clock.now() + timedelta(hours=4 + number % 16)).isoformat(),
            **market.job_terms(epochs=1 + number % 3),
        }
        return _http_post(url, "/api/bids", keys[at], body)

    def run(rate: float, for_s: float) -> list[Answer]:
        sending = send_at_rate(url, request, rate=rate, seconds=for_s, connections=CONNECTIONS)
        return asyncio.run(sending)

    # Until the lane has compiled what it needs and answers in time.
    while any(answer.status == 202 for answer in run(20, 3)):
        pass
    for rate in rates:
        spent = {name: cpu_s(stack, name) for name in ("web", "lane", "postgres", "redis")}
        own = time.process_time()
        answers = run(rate, seconds)
        spent = {name: cpu_s(stack, name) - before for name, before in spent.items()}
        spent["generator"] = time.process_time() - own
        times = sorted(answer.seconds for answer in answers)
        codes: dict[str, int] = {}
        for answer in answers:
            codes[str(answer.status)] = codes.get(str(answer.status), 0) + 1
        report(
            "bid to decision over HTTP",
            rate=rate,
            sent=len(answers),
            achieved_per_s=len(answers) / max(answer.ended_s for answer in answers),
            p50_ms=1000 * times[len(times) // 2],
            p99_ms=1000 * times[int(len(times) * 0.99) - 1],
            max_ms=1000 * times[-1],
            answers=codes,
            load=round(os.getloadavg()[0], 1),
            cpu_ms_per_bid={
                name: round(1000 * value / len(answers), 2) for name, value in spent.items()
            },
        )
    ends_at = time.monotonic() + 30
    while Bid.objects.filter(status="pending").exists() and time.monotonic() < ends_at:
        time.sleep(0.1)
    check = check_ledger()
    pending = Bid.objects.filter(status="pending").count()
    if pending:
        print(stack.failure("lane"), file=sys.stderr)
    report(
        "after the crowd",
        pending=pending,
        books_balance=check.balanced,
    )
    stack.stop("web", "lane")


def cpu_s(stack: Stack, name: str) -> float:
    """Processor seconds of a program and its children: true however busy the machine is."""
    root = psutil.Process(stack.pid(name))
    total = 0.0
    for process in [root, *root.children(recursive=True)]:
        with suppress(psutil.NoSuchProcess):
            times = process.cpu_times()
            total += times.user + times.system
    return total


def _http_post(url: str, path: str, key: str, body: dict[str, Any]) -> bytes:
    content = json.dumps(body).encode()
    head = (
        f"POST {path} HTTP/1.1\r\nHost: {httpx.URL(url).netloc.decode()}\r\n"
        f"Authorization: Bearer {key}\r\nContent-Type: application/json\r\n"
        f"Content-Length: {len(content)}\r\n\r\n"
    )
    return head.encode() + content


def _web_wait(url: str) -> None:
    ends_at = time.monotonic() + 60
    while True:
        try:
            if httpx.get(f"{url}/api/zones", timeout=5).status_code == 200:
                return
        except httpx.TransportError:
            pass
        if time.monotonic() > ends_at:
            raise SystemExit("the web server did not come up")
        time.sleep(0.1)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
