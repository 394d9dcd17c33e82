"""Nodes that take turns on a device, as they join, are heard and ask for their turns."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from datetime import UTC, datetime, time

import pytest

from marketplace.auction.node_hours import list_node
from marketplace.common.errors import UserError
from marketplace.fleet.models import Node, Provider, SharedDevice, Zone
from marketplace.fleet.services import ListingTerms, create_join_token, record_heartbeat
from marketplace.jobs.services import answer_turn
from tests import job_builders as build
from tests import market_builders as market
from tests.builders import NOW
from workers.protocol.messages import Heartbeat, JoinReply, JoinRequest
from workers.protocol.turns import DeviceTurn, DeviceTurnRequest

#: With leases that last 30 s longer than their slots, and bases that load in 20 s.
DAY, NIGHT = (time(8), time(9, 2)), (time(9, 3), time(7, 59))


def clock_at(hour: int, minute: int, second: int = 0) -> datetime:
    """On the day of ``NOW``, which is nine o'clock."""
    return datetime(2026, 3, 2, hour, minute, second, tzinfo=UTC)


def join(
    provider: Provider,
    zone: Zone,
    *,
    hours: tuple[time, time] | tuple[None, None],
    name: str,
    neighbour: str = "",
    now: datetime = NOW,
) -> tuple[Node, JoinReply]:
    terms = ListingTerms(ask_micros=400_000, opens=hours[0], closes=hours[1])
    _, secret = create_join_token(
        zone=zone, provider=provider, created_by=None, terms=terms, now=now
    )
    facts = replace(build.facts(), load_s=20.0)
    request = JoinRequest(secret, name, facts, neighbour_token=neighbour)
    reply = list_node(request=request, now=now)
    return Node.objects.get(pk=reply.node_id), reply


def pair(*, hours: tuple[time, time] = NIGHT) -> tuple[Node, Node]:
    """A node that serves by day and runs, and one on the same GPU for another zone."""
    provider = market.provider()
    first, reply = join(provider, market.zone(), hours=DAY, name="day")
    second, _ = join(provider, market.zone(), hours=hours, name="night", neighbour=reply.api_token)
    first.refresh_from_db()
    return beat(first, NOW), second


def beat(node: Node, now: datetime, *, draining: bool = False, load_s: float = 0.0) -> Node:
    said = Heartbeat(node.pk, now.timestamp(), draining=draining, load_s=load_s)
    return record_heartbeat(node=node, heartbeat=said, now=now)


def turn(node: Node, now: datetime, *, is_up: bool = False) -> DeviceTurn:
    return answer_turn(node=node, request=DeviceTurnRequest(node.pk, is_up), now=now)


def refused(call: Callable[[], object]) -> str:
    """The code of a refusal that leaves all nodes and devices as they were."""
    before = list(Node.objects.order_by("pk").values()), SharedDevice.objects.count()
    with pytest.raises(UserError) as refusal:
        call()
    assert (list(Node.objects.order_by("pk").values()), SharedDevice.objects.count()) == before
    return refusal.value.code
