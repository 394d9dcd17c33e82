"""A zone's log as rows: writing it, restarting from it, replaying it as ``auction_verify`` does.

``python -m tests.benchmarks.bench_log [--quick] [--entries N]`` prints one JSON line per case. It
starts its own PostgreSQL and Redis and stops them at the end. CPU seconds are this process's own;
the server's are on another core. Every case is also split: what the engine alone takes for the
same entries in memory, and what is left for rows, JSON and hashes.
"""

from __future__ import annotations

import argparse
import json
import os
import sys
import time
from dataclasses import replace
from typing import Any

from tests.benchmarks.bench_lane import servers

NODES = 50
#: Entries written in one transaction, as a busy lane does.
BATCH = 128


def main(argv: list[str]) -> int:
    parser = argparse.ArgumentParser(prog="bench_log")
    parser.add_argument("--quick", action="store_true", help="a tenth of the entries")
    parser.add_argument("--entries", type=int, default=100_000)
    parser.add_argument("--profile", action="store_true", help="say where a restart's time goes")
    arguments = parser.parse_args(argv)
    wanted = arguments.entries // 10 if arguments.quick else arguments.entries
    with servers():
        import django

        django.setup()
        from django.core.management import call_command

        call_command("migrate", verbosity=0, interactive=False)
        bench(wanted, profile=arguments.profile)
    return 0


def report(case: str, *, count: int, cpu_s: float, wall_s: float, **figures: Any) -> None:
    line = {
        "bench": "log",
        "case": case,
        "entries": count,
        "cpu_s": round(cpu_s, 2),
        "wall_s": round(wall_s, 2),
        "per_cpu_s": round(count / cpu_s),
        "load": round(os.getloadavg()[0], 1),
    }
    print(json.dumps(line | figures), flush=True)


class Timed:
    """CPU and wall seconds of a block."""

    def __enter__(self) -> Timed:
        self._wall, self._cpu = time.perf_counter(), time.process_time()
        return self

    def __exit__(self, *_: object) -> None:
        self.wall_s = time.perf_counter() - self._wall
        self.cpu_s = time.process_time() - self._cpu


def bench(wanted: int, *, profile: bool) -> None:
    from django.db import transaction

    from marketplace.auction.book import engine_cache as books
    from marketplace.auction.book import verify
    from marketplace.auction.models import LogEntry, MarketHead, Snapshot
    from marketplace.auction.pricing.solve import _solve
    from marketplace.fleet.selectors import slot_starts_at
    from scheduler.auction import Engine
    from scheduler.auction.audit.faults import Faults
    from scheduler.auction.audit.solve_again import SolveAudit
    from scheduler.auction.log.events import BidArrived
    from tests import market_builders as market
    from tests.builders import NOW

    zone = market.zone(horizon_slots=144)
    zone.slot_s = 600
    zone.save()
    with transaction.atomic():
        head = books.begin_log(zone=zone, now=NOW)
    first = Snapshot.objects.get(zone=zone)
    engine = books.restore_engine(first)
    entries = made(engine, wanted)
    wanted = len(entries)
    with Timed() as spent:
        for start in range(0, wanted, BATCH):
            batch = entries[start : start + BATCH]
            slots = [e.event.slot for e in batch if isinstance(e.event, BidArrived)]
            written_at = slot_starts_at(zone, max(slots, default=engine.rules.first_slot))
            with transaction.atomic():
                books.append_log(zone_id=zone.pk, new=batch, now=written_at)
    report("append, 128 a transaction", count=wanted, cpu_s=spent.cpu_s, wall_s=spent.wall_s)
    MarketHead.objects.filter(zone=zone).update(
        position=engine.position, head_hash=engine.head_hash
    )
    head.refresh_from_db()
    events = [entry.event for entry in entries]
    del entries

    with Timed() as alone:
        again = books.restore_engine(first)
        for event in events:
            again.apply(event)
    assert again.head_hash == engine.head_hash
    report("the engine alone, chained", count=wanted, cpu_s=alone.cpu_s, wall_s=alone.wall_s)
    del events

    def restart() -> None:
        books.discard_lane_book(zone_id=zone.pk)
        assert books.load_lane_book(head=head).engine.head_hash == engine.head_hash

    if profile:
        profiled(restart)
    with Timed() as spent:
        restart()
    report(
        "restart from a snapshot",
        count=wanted,
        cpu_s=spent.cpu_s,
        wall_s=spent.wall_s,
        goal_s=20.0 * wanted / 100_000,
        beside_the_engine_s=round(spent.cpu_s - alone.cpu_s, 2),
    )

    def replay() -> None:
        fresh = Engine(books.restore_engine(first).rules)
        audit, faults = SolveAudit(fresh.position), Faults()
        for row in books.read_log_rows(LogEntry.objects.filter(zone=zone)):
            assert verify._replay_row(fresh, row, audit, faults)[1] is None

    head.beat_position = engine.position
    for case in ("solve for prices, the replica from its snapshot", "solve for prices"):
        with Timed() as spent:
            solved = _solve(head)
        assert solved is not None
        report(
            case,
            count=wanted,
            cpu_s=spent.cpu_s,
            wall_s=spent.wall_s,
            **{name: solved.inputs[name] for name in ("bids_today", "past_days", "every")},
            forecast_tasks=solved.inputs["forecast_tasks"],
        )

    if profile:
        profiled(replay)
    with Timed() as spent:
        replay()
    report(
        "replay with every outcome and hash compared",
        count=wanted,
        cpu_s=spent.cpu_s,
        wall_s=spent.wall_s,
        goal_per_s=5000,
        beside_the_engine_s=round(spent.cpu_s - alone.cpu_s, 2),
    )
    archive(zone, wanted)


def archive(zone: Any, wanted: int) -> None:
    """Move the whole log into files, a head signed each thousand entries, and read it there."""
    from collections import deque
    from tempfile import TemporaryDirectory

    from django.db import connection
    from django.test import override_settings

    from marketplace.auction.book import log_archiving
    from marketplace.auction.book.log_segments import read_log
    from marketplace.auction.models import LogEntry, LogSegment
    from marketplace.auction.witnesses import heads
    from marketplace.auction.witnesses.keys import load_signing_key
    from tests.builders import NOW

    def measure() -> int:
        with connection.cursor() as cursor:
            cursor.execute("VACUUM FULL auction_logentry")
            cursor.execute("SELECT pg_total_relation_size('auction_logentry')")
            [(size,)] = cursor.fetchall()
        return size

    with (
        TemporaryDirectory() as folder,
        override_settings(MARKET_KEY_DIR=f"{folder}/keys", MEDIA_ROOT=f"{folder}/media"),
    ):
        key, before = load_signing_key(now=NOW), measure()
        signed = LogEntry.objects.filter(position__in=[*range(1000, wanted, 1000), wanted])
        for position, digest in list(signed.values_list("position", "hash")):
            heads._sign(zone, position, digest, now=NOW)
        with Timed() as spent:
            while log_archiving._archive_next(zone, until=wanted, key=key, now=NOW) is not None:
                pass
        size = sum(LogSegment.objects.values_list("bytes", flat=True))
        report(
            "archived, each file read back",
            count=wanted,
            cpu_s=spent.cpu_s,
            wall_s=spent.wall_s,
            bytes_of_row=round(before / wanted),
            bytes_in_table_after=measure(),
            bytes_in_file=round(size / wanted),
            files=LogSegment.objects.count(),
        )
        with Timed() as spent:
            deque(read_log(zone.pk, first=1), maxlen=0)
        report("read from the files", count=wanted, cpu_s=spent.cpu_s, wall_s=spent.wall_s)


def made(engine: Any, wanted: int) -> list[Any]:
    """Days of the benchmark's kind, one after the other."""
    from scheduler.auction.log import events
    from scheduler.auction.log.chain import seal
    from tests.benchmarks import auction_day

    began = engine.rules.first_slot
    entries = [engine.apply(events.SlotAdvanced(began))]
    entries += [engine.apply(events.NodeJoined(node)) for node in auction_day.nodes(NODES)]
    day = auction_day.tasks(80)
    number = 0
    while True:
        begin = began + (number // len(day)) * auction_day.SLOTS
        task = day[number % len(day)]
        slot = begin + task.arrival_slot
        if slot > engine.horizon.first_slot:
            entries.append(engine.apply(events.SlotAdvanced(slot)))
        task = replace(
            task,
            id=f"bid_{number:020d}",
            arrival_slot=slot,
            deadline_slot=begin + task.deadline_slot,
            vendors=(),
        )
        arrival = events.BidArrived(task, slot, salt=f"{number:032x}")
        received = events.BidsReceived(((task.id, seal(arrival)),))
        entries += [engine.apply(received), engine.apply(arrival)]
        number += 1
        if len(entries) >= wanted:
            return entries


def profiled(work: Any) -> None:
    import cProfile
    import pstats

    with cProfile.Profile() as profile:
        work()
    pstats.Stats(profile, stream=sys.stderr).sort_stats("tottime").print_stats(22)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
