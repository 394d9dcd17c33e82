"""A backend whose machines exist in memory, and nodes that join with what it was given."""

from __future__ import annotations

from dataclasses import dataclass, field
from datetime import datetime

from marketplace.fleet.models import Node, NodeStatus, Provider, Tier, Zone
from marketplace.fleet.services import join_node
from marketplace.tiers.models import ZoneTiers
from marketplace.tiers.provisioning import BackendFault, ListedMachine, MachineOffer
from marketplace.tiers.services import TierSettings, set_zone_tiers
from tests import market_builders
from tests.job_builders import facts
from workers.protocol.messages import JoinRequest

SERVERLESS = MachineOffer("fast", Tier.SERVERLESS, 2_100_000, 0.0)
CHEAP = MachineOffer("cheap", Tier.MARKETPLACE, 740_000, 0.0)
DEAR = MachineOffer("dear", Tier.CONVENTIONAL, 1_290_000, 0.0)


@dataclass
class MemoryBackend:
    """Every machine runs until it is terminated; ``broken`` offers refuse."""

    name: str = "memory"
    secrets: dict[str, str] = field(default_factory=dict)
    running: set[str] = field(default_factory=set)
    terminated: list[str] = field(default_factory=list)
    broken: bool = False
    offered: tuple[MachineOffer, ...] = (SERVERLESS, CHEAP, DEAR)

    def offers(self) -> tuple[MachineOffer, ...]:
        return self.offered

    def only(self) -> str:
        """The one machine that runs."""
        [machine_id] = self.running
        return machine_id

    def launch(self, *, machine_id: str, offer: str, market_url: str, join_secret: str) -> None:
        if self.broken:
            raise BackendFault(f"The offer {offer!r} is gone.")
        assert market_url.startswith("http")
        self.secrets[machine_id] = join_secret
        self.running.add(machine_id)

    def machines(self) -> tuple[ListedMachine, ...]:
        return tuple(
            ListedMachine(machine_id, is_ready=True) for machine_id in sorted(self.running)
        )

    def terminate(self, machine_id: str) -> None:
        self.terminated.append(machine_id)
        self.running.discard(machine_id)

    def join(self, machine_id: str, *, now: datetime) -> Node:
        """What the machine's node process does once it has booted."""
        request = JoinRequest(
            token=self.secrets[machine_id], name=machine_id, facts=facts(hostname=machine_id)
        )
        reply = join_node(request=request, now=now)
        Node.objects.filter(pk=reply.node_id).update(status=NodeStatus.ONLINE)
        return Node.objects.get(pk=reply.node_id)


def tiers(zone: Zone, *, provider: Provider | None = None, **caps: int) -> ZoneTiers:
    settings = TierSettings(**{"serverless_cap": 2, "serverful_cap": 2, **caps}, backend="memory")
    provider = provider or market_builders.provider()
    return set_zone_tiers(zone=zone, provider=provider, settings=settings)
