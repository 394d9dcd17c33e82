"""What a house costs in which nobody does anything, over all its processes.

``python -m tests.benchmarks.bench_idle [--zones 1] [--seconds 120] [--web-workers N]`` starts a
whole house with open zones and no nodes, waits until its start is over, and prints one JSON line
for each process and one for all: tasks a minute, percent of a core, and megabytes. ``rss_mb``
counts pages that processes share in each of them (libraries' code, PostgreSQL's buffers);
``pss_mb`` gives each process its share of them, so that its sum is what the machine gives up. The
goals are 60 tasks, 2 % and 600 MB.
"""

from __future__ import annotations

import argparse
import json
import os
import shutil
import sys
import time
from pathlib import Path
from typing import Any

import psutil
import redis

from marketplace.embedded.house import House, house
from tests.migrated_cluster import copy_migrated_cluster

DATA_DIR = Path(__file__).parents[2] / ".data" / f"bench-idle-{os.getpid()}"
#: Seconds after the start in which first runs import and compile what they need.
SETTLING_S = 90
ZONES = """
from tests import market_builders as market
for number in range({zones}):
    market.zone(slot_s=600, horizon_slots=144)
"""


def list_processes(running: House) -> dict[str, list[psutil.Process]]:
    """Processes of each program, with those that it started; the supervisor is one too."""
    supervisor = psutil.Process(int((running.data_dir / "supervisord.pid").read_text()))
    found = {"supervisor": [supervisor]}
    for name in ("postgres", "redis", "gateway", "lane", "worker", "beat", "web"):
        first = psutil.Process(running.stack.pid(name))
        found[name] = [first, *first.children(recursive=True)]
    return found


def count_tasks(running: House) -> int:
    """Tasks sent since the start: Celery pushes each to a list of Redis."""
    with redis.Redis.from_url(running.environment["REDIS_URL"]) as messages:
        said: dict[str, Any] = messages.info("commandstats")  # type: ignore[assignment]  # not async
    return int(said["cmdstat_lpush"]["calls"])


def sum_cpu_s(processes: list[psutil.Process]) -> float:
    return sum(sum(each.cpu_times()[:2]) for each in processes)


def measure(running: House, seconds: float) -> None:
    processes = list_processes(running)
    tasks, began = count_tasks(running), time.monotonic()
    before = {name: sum_cpu_s(each) for name, each in processes.items()}
    time.sleep(seconds)
    took_s = time.monotonic() - began
    tasks = count_tasks(running) - tasks
    all_cpu, all_rss, all_pss = 0.0, 0, 0
    for name, each in processes.items():
        cpu = 100 * (sum_cpu_s(each) - before[name]) / took_s
        memory = [process.memory_full_info() for process in each]
        rss, pss = sum(one.rss for one in memory), sum(one.pss for one in memory)
        all_cpu, all_rss, all_pss = all_cpu + cpu, all_rss + rss, all_pss + pss
        show(
            name, processes=len(each), cpu_percent=round(cpu, 2), rss_mb=rss >> 20, pss_mb=pss >> 20
        )
    minute = round(60 * tasks / took_s, 1)
    figures = {"cpu_percent": round(all_cpu, 2), "rss_mb": all_rss >> 20, "pss_mb": all_pss >> 20}
    show("all", tasks_a_minute=minute, **figures)


def show(case: str, **figures: float) -> None:
    load = round(os.getloadavg()[0], 1)
    print(json.dumps({"bench": "idle", "case": case, **figures, "load": load}), flush=True)


def main(argv: list[str]) -> int:
    parser = argparse.ArgumentParser(prog="bench_idle")
    parser.add_argument("--zones", type=int, default=1)
    parser.add_argument("--seconds", type=float, default=120)
    parser.add_argument("--web-workers", default="1")
    arguments = parser.parse_args(argv)
    copy_migrated_cluster(DATA_DIR)
    environment = {"WEB_WORKERS": arguments.web_workers}
    try:
        with house(data_dir=DATA_DIR, own_servers=True, extra_environment=environment) as running:
            making = ZONES.format(zones=arguments.zones)
            running.manage("shell", "--no-imports", "--command", making)
            time.sleep(SETTLING_S)
            measure(running, arguments.seconds)
    finally:
        if not os.environ.get("KEEP_LOGS"):
            shutil.rmtree(DATA_DIR, ignore_errors=True)
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
