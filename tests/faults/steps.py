"""What tests do to a running house: ask it from within, wait, kill its processes."""

from __future__ import annotations

import json
import os
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from functools import partial
from importlib.metadata import version
from typing import Any

import httpx
import psutil

from marketplace.embedded.demo.api_client import DemoFailed, place_bid
from marketplace.embedded.demo.first_sale import TRAINING
from marketplace.embedded.demo.moving_sale import DEADLINE_S, TIERS
from marketplace.embedded.demo.opening import NODE
from tests import waiting
from tests.conftest import Market
from workers.protocol.messages import PROTOCOL_VERSION
from workers.protocol.node_facts import NodeFacts, SpeedMeasurement

#: Seconds for room to be made where there is none for a job.
ROOM_WITHIN_S = 240
#: A house is asked a few times a second: more would take the time of what is waited for.
until = partial(waiting.until, every_s=0.25)
#: Both machines up and idle before the bid, as in a market that has run for a while.
WARM = """
from marketplace.common import clock
from marketplace.tiers.machines import request_machine
from marketplace.tiers.models import ZoneTiers
from marketplace.tiers.provisioning import get_backend
tiers = ZoneTiers.objects.get()
ZoneTiers.objects.update(idle_s=3600.0)
for offer in get_backend("local").offers():
    if offer.tier != "conventional":
        request_machine(tiers=tiers, offer=offer, reason="warm", now=clock.now())
"""

STATUSES = """
import json
from marketplace.tiers.models import Machine
print(json.dumps({m.pk: [m.status, m.is_orphan] for m in Machine.objects.all()}))
"""
NODE_STATUS = f"""
from marketplace.fleet.models import Node
print(Node.objects.get(name={NODE.name!r}).status)
"""
#: Of the cheaper worker: off sale, so that a bid wins cells elsewhere, or on sale to be moved to.
WORKER_AVAILABLE_FROM = """
from datetime import timedelta
from marketplace.common import clock
from marketplace.fleet.models import Node
from marketplace.tiers.models import Machine
worker = Machine.objects.filter(tier="marketplace", status="running").values("pk")
print(Node.objects.filter(name__in=worker).update(available_from_at={at}))
"""
AVAILABLE_FROM = """
from datetime import datetime
from marketplace.fleet.models import Node
Node.objects.filter(tier="marketplace").exclude(status="left").update(available_from_at={at})
"""

#: Samples a second by tokens of a sample: what half a core reaches. A node that turns out faster
#: ends its jobs early, and its speed is learnt from them.
SLOW_SPEEDS = {64: 12.0, 256: 3.0}


def build_slow_facts() -> NodeFacts:
    """A slow machine's: what is tried here is not the self-test, which takes half a minute."""
    return NodeFacts(
        hostname=socket.gethostname(),
        device="cpu",
        gpu_type="cpu",
        gpu_count=0,
        memory_gb=4.0,
        cores=os.cpu_count() or 1,
        torch_version=version("torch"),
        protocol_version=PROTOCOL_VERSION,
        speeds=tuple(
            SpeedMeasurement(
                base_model="finetender-tiny",
                batch_size=8,
                sequence_length=length,
                jobs=jobs,
                samples_per_s=speed,
                tokens_per_s=speed * length,
                base_memory_gb=0.015,
                job_memory_gb=0.1,
            )
            for length, speed in SLOW_SPEEDS.items()
            for jobs in (1, 4)
        ),
    )


def statuses(market: Market) -> dict[str, list[Any]]:
    return json.loads(market.shell.run(STATUSES))


def buy_longest(
    api: httpx.Client, zone: str, *, name: str, epochs: Sequence[int]
) -> dict[str, Any]:
    """The longest of these jobs that is promised; on a slow machine a few epochs take as long.

    Jobs that earlier tests cancelled hold their cells until the node has said that they ended.
    """
    ends_at = time.monotonic() + ROOM_WITHIN_S
    while True:
        for count in epochs:
            try:
                return place_bid(
                    *(api, zone),
                    name=name,
                    training=TRAINING | {"epochs": count},
                    within_s=DEADLINE_S,
                    say=lambda _: None,
                )
            except DemoFailed as failure:
                reason = str(failure)
        assert time.monotonic() < ends_at, f"not even the shortest job is promised: {reason}"
        time.sleep(1)


def wait_for_online_node(market: Market) -> None:
    """The house's own node, which could not reach the market for a while, is back on sale."""
    until(
        lambda: market.shell.run(NODE_STATUS).strip() == "online", what="the node is online again"
    )


def rent_warm_machines(market: Market) -> None:
    """The house rents a serverless machine and a cheaper worker; both are up when this returns."""
    market.shell.manage("tiers_set", market.zone, "--serverless", "1", "--serverful", "1", *TIERS)
    market.shell.run(WARM)
    until(
        lambda: [status for status, _ in statuses(market).values()].count("running") == 2,
        within_s=240,
        what="both machines are in the market",
    )


def kill_processes(market: Market, *names: str) -> None:
    """Kill processes of the house with all of their own; it is whole again when this returns."""
    stack = market.house.stack
    killed = {name: stack.pid(name) for name in names}
    for pid in killed.values():
        program = psutil.Process(pid)
        # Rented machines are children of the worker too, in sessions of their own.
        session, own = os.getsid(pid), program.children(recursive=True)
        for process in (program, *own):
            with suppress(psutil.NoSuchProcess, ProcessLookupError):
                if os.getsid(process.pid) == session:
                    process.send_signal(signal.SIGKILL)
    until(
        lambda: all(stack.pid(name) not in (0, pid) for name, pid in killed.items()),
        within_s=240,
        what="what was killed runs again",
    )


@contextmanager
def keep_busy(*, per_core: int) -> Iterator[None]:
    """Let so many processes for each core of this machine want it all."""
    # They end with the tests, however these end.
    busy = f"import os\nwhile os.getppid() == {os.getpid()}: pass"
    want = [sys.executable, "-c", busy]
    others = [subprocess.Popen(want) for _ in range(per_core * (os.cpu_count() or 1))]
    try:
        yield
    finally:
        for other in others:
            other.kill()
            other.wait()
