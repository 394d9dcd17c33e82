"""Houses in the states that faults are tried in."""

from __future__ import annotations

from collections.abc import Iterator

import httpx
import pytest

from tests.conftest import Market
from tests.faults.steps import AVAILABLE_FROM, build_slow_facts, keep_busy, statuses, until
from workers.protocol.node_facts import NodeFacts

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


@pytest.fixture(scope="session")
def known_facts() -> NodeFacts:
    return build_slow_facts()


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
