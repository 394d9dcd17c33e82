"""The live tick over many jobs: ``python -m tests.benchmarks.bench_tiers_live [--jobs N]``.

Starts a PostgreSQL (with fsync) and a Redis of its own. Prints one JSON line per case: the
arithmetic (demand, pressure, Algorithms 1 and 2) apart from what the database and its client
take, in processor milliseconds of this process and in wall milliseconds.
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import sys
import time
from collections.abc import Callable
from datetime import timedelta
from typing import Any

from tests.benchmarks.bench_lane import servers

#: Cells of one job, as a job of some hours in slots of ten minutes has.
CELLS = 24
NODES = 100
#: Share of the jobs that run and say themselves what they have left.
RUNNING = 0.4


def main(argv: list[str]) -> int:
    parser = argparse.ArgumentParser(prog="bench_tiers_live")
    parser.add_argument("--jobs", type=int, default=10_000)
    parser.add_argument("--rounds", type=int, default=20)
    options = parser.parse_args(argv)
    with servers():
        import django

        django.setup()
        from django.core.management import call_command

        call_command("migrate", verbosity=0, interactive=False)
        bench_tick(jobs=options.jobs, rounds=options.rounds)
    return 0


def report(case: str, **figures: Any) -> None:
    shown = {
        name: round(value, 2) if isinstance(value, float) else value
        for name, value in figures.items()
    }
    print(json.dumps({"bench": "tiers-live", "case": case, **shown}), flush=True)


def bench_tick(*, jobs: int, rounds: int) -> None:
    from marketplace.common import clock
    from marketplace.tiers import scaling
    from marketplace.tiers.models import ZoneTiers
    from marketplace.tiers.services import tiers_tick
    from scheduler.tiers.rules import TierRules

    now = clock.now()
    market_fill(jobs, now)
    tiers, rules = ZoneTiers.objects.select_related("zone").get(), TierRules()
    tiers_tick(now=now)
    columns = scaling.live_jobs(tiers.zone, scaling.Q(), now)

    def arithmetic() -> None:
        measured = scaling.gauge_of(tiers=tiers, rules=rules, jobs=columns, nodes=float(NODES))
        scaling.threshold_next(tiers=tiers, rules=rules, measured=measured)

    cases: dict[str, Callable[[], object]] = {
        "arithmetic": arithmetic,
        "jobs read from the database": lambda: scaling.live_jobs(tiers.zone, scaling.Q(), now),
        "whole tick": lambda: tiers_tick(now=now + timedelta(seconds=next(seconds))),
    }
    seconds = iter(range(61, 10**9, 61))
    for case, work in cases.items():
        cpu, wall = [], []
        for _ in range(rounds):
            begun, at_work = time.perf_counter(), time.process_time()
            work()
            cpu.append(1000 * (time.process_time() - at_work))
            wall.append(1000 * (time.perf_counter() - begun))
        report(
            case,
            jobs=jobs,
            cpu_ms=statistics.median(cpu),
            cpu_ms_best=min(cpu),
            wall_ms=statistics.median(wall),
            load=os.getloadavg()[0],
        )


def market_fill(jobs: int, now: Any) -> None:
    """A zone whose house rents nothing, its nodes, and jobs as the market leaves them."""
    from marketplace.common.ids import new_id
    from marketplace.fleet.selectors import slot_at
    from marketplace.jobs.models import Job, JobStatus
    from marketplace.tiers.services import zone_tiers_set
    from tests import builders
    from tests import market_builders as market

    zone = market.zone(name="busy", horizon_slots=144)
    zone.slot_s = 600
    zone.save()
    provider = market.provider()
    nodes = [market.node(zone, of=provider, last_heartbeat_at=now) for _ in range(NODES)]
    owner = builders.organisation()
    data = market.dataset(owner, zone)
    slot = slot_at(zone, now)
    zone_tiers_set(zone=zone, provider=provider, serverless_cap=0, serverful_cap=0)
    rows = []
    for number in range(jobs):
        runs = number < RUNNING * jobs
        first = slot - 3 if runs else slot + 1 + number % 90
        node = nodes[number % NODES].pk
        rows.append(
            Job(
                bid_id=new_id("bid"),
                organisation=owner,
                zone=zone,
                dataset=data,
                name="a job",
                spec={},
                status=JobStatus.RUNNING if runs else JobStatus.QUEUED,
                cells=[[first + cell, node] for cell in range(CELLS)],
                deadline_at=now + timedelta(seconds=600 * (CELLS + number % 100)),
                finish_planned_at=now + timedelta(hours=20),
                price_micros=1,
                total_steps=1000,
                started_at=now - timedelta(minutes=30) if runs else None,
                eta_at=now + timedelta(seconds=60 + number) if runs else None,
                created_at=now,
                seq=1,
            )
        )
    Job.objects.bulk_create(rows, batch_size=1000)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
