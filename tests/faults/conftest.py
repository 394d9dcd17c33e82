"""Houses in the states that faults are tried in."""

from __future__ import annotations

import os
import socket
from collections.abc import Iterator
from importlib.metadata import version

import httpx
import pytest

from tests.conftest import Market
from tests.faults.steps import AVAILABLE_FROM, keep_busy, statuses, until
from workers.protocol.messages import PROTOCOL_VERSION
from workers.protocol.node_facts import NodeFacts, SpeedMeasurement

#: Moving repays only where the reserved node costs less than serverless; prints what it asked.
ASK = """
from marketplace.fleet.models import Node
node = Node.objects.get(name="local-cpu")
print(node.ask_micros)
Node.objects.filter(pk=node.pk).update(ask_micros={micros})
"""
CHEAP_ASK_MICROS = 1000
CHECKPOINTS = """
from marketplace.fleet.models import Zone
Zone.objects.update(checkpoint_every_s=3.0)
"""
END_ALL = """
from marketplace.common import clock
from marketplace.tiers.machines import end_machine
from marketplace.tiers.models import Machine, ZoneTiers
ZoneTiers.objects.update(is_on=False)
for machine in Machine.objects.exclude(status="ended"):
    end_machine(machine=machine, reason="The test is over.", now=clock.now())
"""


#: Samples a second by tokens of a sample: what half a core reaches. A node that turns out faster
#: ends its jobs early, and its speed is learnt from them.
SLOW_SPEEDS = {64: 12.0, 256: 3.0}


@pytest.fixture(scope="session")
def known_facts() -> NodeFacts:
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


@pytest.fixture(scope="session", autouse=True)
def checkpoints_come_soon(market: Market) -> None:
    """What is tried waits for a checkpoint; a market that trains for hours stores fewer."""
    market.shell.run(CHECKPOINTS)


@pytest.fixture(
    scope="module",
    params=[
        pytest.param(0, id="as it is"),
        pytest.param(4, id="four times loaded", marks=pytest.mark.nightly),
    ],
)
def load(request: pytest.FixtureRequest) -> Iterator[int]:
    """How many processes for each core of this machine want it all while the tests run."""
    with keep_busy(per_core=request.param):
        yield request.param


@pytest.fixture
def api(market: Market) -> Iterator[httpx.Client]:
    with market.api() as client:
        yield client


@pytest.fixture
def tiers_on(market: Market) -> Iterator[Market]:
    """The house rents one serverless machine of its own; none is left at the end."""
    name = market.shell.run(
        "from marketplace.fleet.models import Provider;"
        "print(Provider.objects.order_by('created_at').first().organisation.name)",
    )
    market.shell.manage("tiers_set", market.zone, "--provider", name)
    asked = market.shell.run(ASK.format(micros=CHEAP_ASK_MICROS))
    try:
        yield market
    finally:
        market.shell.run(ASK.format(micros=asked))
        market.shell.run(AVAILABLE_FROM.format(at=None))
        market.shell.run(END_ALL)
        until(
            lambda: {status for status, _ in statuses(market).values()} <= {"ended"},
            within_s=240,
            what="every machine is given back",
        )
