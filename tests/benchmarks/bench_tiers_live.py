"""The live tick over many jobs: ``python -m tests.benchmarks.bench_tiers_live [--jobs N]``.

Starts a PostgreSQL (with fsync) and a Redis of its own. Prints one JSON line per case: the
statements asked, processor milliseconds of this process, and wall milliseconds, which count the
database's own work too. The arithmetic alone is in ``bench_tiers``.
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import sys
import time
from collections.abc import Callable
from datetime import datetime, timedelta
from typing import Any

from tests.benchmarks.bench_lane import servers
from workers.protocol.job_spec import AdapterSpec, TrainingSpec
from workers.protocol.job_terms import JobTerms

#: Cells of one job, as a job of some hours in slots of ten minutes has.
CELLS = 24
NODES = 100
#: Share of the jobs that run and say themselves what they have left.
RUNNING = 0.4
#: Rented machines of each tier in the second case, all of them at work.
RENTED = 20


def main(argv: list[str]) -> int:
    parser = argparse.ArgumentParser(prog="bench_tiers_live")
    parser.add_argument("--jobs", type=int, default=10_000)
    parser.add_argument("--past", type=int, default=50_000, help="jobs that ended before")
    parser.add_argument("--rounds", type=int, default=30)
    options = parser.parse_args(argv)
    with servers():
        import django

        django.setup()
        from django.core.management import call_command

        call_command("migrate", verbosity=0, interactive=False)
        bench_tick(jobs=options.jobs, past=options.past, rounds=options.rounds)
    return 0


def report(case: str, **figures: Any) -> None:
    shown = {
        name: round(value, 2) if isinstance(value, float) else value
        for name, value in figures.items()
    }
    print(json.dumps({"bench": "tiers-live", "case": case, **shown}), flush=True)


def bench_tick(*, jobs: int, past: int, rounds: int) -> None:
    from marketplace.common import clock
    from marketplace.tiers import scaling
    from marketplace.tiers.models import ZoneTiers
    from marketplace.tiers.services import run_tier_tick
    from marketplace.tiers.tier_state import TierState

    now = clock.now()
    market_fill(jobs, past, now)
    rented = TierState(tiers=ZoneTiers.objects.select_related("zone").get())
    seconds = iter(range(61, 10**9, 61))

    def tick() -> None:
        run_tier_tick(now=now + timedelta(seconds=next(seconds)))

    def measure() -> None:
        scaling.measure_pressure(rented=rented, nodes=NODES, now=now)

    tick()
    measured(f"pressure of {jobs} jobs", measure, rounds)
    measured("whole tick, nothing rented", tick, rounds)
    machines_fill(now)
    measured(f"whole tick, {2 * RENTED} machines rented", tick, rounds)


def measured(case: str, work: Callable[[], object], rounds: int) -> None:
    from django.db import connection
    from django.test.utils import CaptureQueriesContext

    with CaptureQueriesContext(connection) as asked:
        work()
    cpu, wall = [], []
    for _ in range(rounds):
        begun, at_work = time.perf_counter(), time.process_time()
        work()
        cpu.append(1000 * (time.process_time() - at_work))
        wall.append(1000 * (time.perf_counter() - begun))
    report(
        case,
        statements=len(asked),
        cpu_ms=statistics.median(cpu),
        cpu_ms_best=min(cpu),
        wall_ms=statistics.median(wall),
        wall_ms_best=min(wall),
        load=os.getloadavg()[0],
    )


def market_fill(jobs: int, past: int, now: datetime) -> None:
    """A zone, its nodes, and jobs as the market leaves them."""
    from django.db import connection

    from marketplace.common.ids import new_id
    from marketplace.fleet.selectors import slot_at
    from marketplace.jobs.models import Job, JobStatus
    from marketplace.tiers.models import ZoneTiers
    from marketplace.tiers.services import TierSettings, set_zone_tiers
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
    set_zone_tiers(zone=zone, provider=provider, settings=TierSettings(0, 0))
    # What ended is in the tables already.
    ZoneTiers.objects.update(learned_at=now)
    rows = []
    terms = JobTerms(AdapterSpec(), TrainingSpec(), data.pk)
    for number in range(jobs + past):
        ended = number >= jobs
        runs = number < RUNNING * jobs
        first = slot - 3 if runs else slot + 1 + number % 90
        first -= 200 if ended else 0
        node = nodes[number % NODES].pk
        rows.append(
            Job(
                bid_id=new_id("bid"),
                organisation=owner,
                zone=zone,
                dataset=data,
                name="a job",
                terms=terms,
                status=JobStatus.SUCCEEDED
                if ended
                else JobStatus.RUNNING
                if runs
                else JobStatus.QUEUED,
                cells=[[first + cell, node] for cell in range(CELLS)],
                deadline_at=now + timedelta(seconds=600 * (CELLS + number % 100)),
                finish_planned_at=now + timedelta(hours=20),
                price_micros=1,
                total_steps=1000,
                started_at=now - timedelta(minutes=30) if runs else None,
                eta_at=now + timedelta(seconds=60 + number) if runs else None,
                finished_at=now - timedelta(days=1, seconds=number) if ended else None,
                settled_at=now if ended else None,
                created_at=now,
                seq=1,
            )
        )
    Job.objects.bulk_create(rows, batch_size=1000)
    with connection.cursor() as cursor:
        cursor.execute("VACUUM ANALYZE")


def machines_fill(now: datetime) -> None:
    """Both tiers rented to their caps, a job on every machine."""
    from marketplace.fleet.models import Tier
    from marketplace.fleet.selectors import slot_at
    from marketplace.fleet.services import ListingTerms, create_join_token
    from marketplace.jobs.models import Job, JobStatus, Slice
    from marketplace.tiers.models import Machine, MachineStatus, Stay, ZoneTiers
    from tests import market_builders as market

    tiers = ZoneTiers.objects.select_related("zone", "provider").get()
    zone, slot = tiers.zone, slot_at(tiers.zone, now)
    ZoneTiers.objects.update(serverless_cap=RENTED, serverful_cap=RENTED)
    running = list(Job.objects.filter(status=JobStatus.RUNNING).order_by("pk")[: 2 * RENTED])
    for number, job in enumerate(running):
        tier = Tier.SERVERLESS if number < RENTED else Tier.MARKETPLACE
        token, _ = create_join_token(
            zone=zone,
            provider=tiers.provider,
            created_by=None,
            terms=ListingTerms(1, tier),
            now=now,
        )
        node = market.node(zone, of=tiers.provider, last_heartbeat_at=now, tier=tier)
        token.node = node
        token.save(update_fields=["node"])
        machine = Machine.objects.create(
            zone=zone,
            backend="local",
            tier=tier,
            offer=f"{tier}-local",
            price_micros_per_h=2_100_000 if tier == Tier.SERVERLESS else 740_000,
            status=MachineStatus.RUNNING,
            join_token=token,
            requested_at=now - timedelta(hours=1),
            ready_at=now - timedelta(hours=1),
        )
        ahead = [[at, where] for at, where in job.cells if at > slot + 3]
        job.cells = [[at, node.pk] for at in range(slot - 3, slot + 4)] + ahead
        job.eta_at = now + timedelta(hours=12)
        job.save(update_fields=["cells", "eta_at"])
        Slice.objects.create(
            job=job,
            node=node,
            first_slot=slot,
            last_slot=slot + 3,
            opened_at=now - timedelta(minutes=10),
            acknowledged_at=now - timedelta(minutes=10),
            lease_token=job.pk,
            lease_expires_at=now + timedelta(days=1),
        )
        if tier == Tier.SERVERLESS:
            Stay.objects.create(job=job, machine=machine, started_at=now - timedelta(minutes=10))


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
