"""What providers read, on pages and over the API, of nodes that take turns on a GPU."""

from __future__ import annotations

from datetime import time

import pytest
import time_machine
from django.test import Client

from marketplace.fleet.models import JoinToken, Node
from tests import builders
from tests import market_builders as market
from tests.builders import NOW
from tests.pages import read_page
from tests.shared_device_builders import pair, turn

pytestmark = pytest.mark.django_db


@pytest.fixture
def nodes():
    """One that serves and one that rests."""
    with time_machine.travel(NOW, tick=False):
        first, second = pair()
        turn(second, NOW)
        yield first, second


@pytest.fixture
def owner(nodes: tuple[Node, Node], client: Client) -> Client:
    client.force_login(builders.owner_of(nodes[0].provider.organisation))
    return client


def test_a_node_that_rests_says_until_when_and_what_its_gpu_serves(owner, nodes):
    text = " ".join(read_page(owner.get("/nodes")).split())
    assert "1 rests until its hours" in text
    assert "Resting" in text
    assert f"09:03</time>; its GPU serves {nodes[0].zone.name}" in text
    assert text.count("Rests until") == 1


def test_hours_that_leave_no_time_to_change_over_are_refused_with_what_is_needed(owner, nodes):
    first, second = nodes
    said = {"opens": "08:00", "closes": "10:00"}
    text = read_page(owner.post(f"/nodes/{first.pk}/hours", said, follow=True))
    assert (
        f"night serves {second.zone.name} on the same GPU from 09:03 to 07:59 UTC. "
        "Leave at least 1 minute between day and night, to load the other base model." in text
    )
    first.refresh_from_db()
    assert first.sale_closes == time(9, 2)


def test_the_command_for_a_gpu_that_serves_another_model_too(owner):
    zone = market.zone()
    form = {"zone": zone.name, "tier": "marketplace", "ask": "0.10", "is_shared": "on"}
    text = read_page(owner.post("/nodes/new", form))
    assert "Say in which hours this node is sold." in text
    before = JoinToken.objects.count()
    text = read_page(owner.post("/nodes/new", form | {"opens": "22:00", "closes": "06:00"}))
    assert "join --url http" in text
    assert "--also" in text
    assert "systemctl stop finetender-node" in text
    assert "--run" not in text
    assert JoinToken.objects.count() == before + 1
    token = JoinToken.objects.get(zone=zone)
    assert (token.sale_opens, token.sale_closes) == (time(22), time(6))


def test_the_api_shows_which_nodes_take_turns_and_what_one_that_rests_waits_for(nodes):
    first, second = nodes
    _, secret = builders.api_key(first.provider.organisation)
    api = Client(headers={"Authorization": f"Bearer {secret}"})
    shown = {row["id"]: row for row in api.get("/api/nodes").json()["data"]}
    keys = ("status", "shared_gpu", "rests_until", "gpu_serves")
    gpu = f"gpu_{first.shared_device_id}"
    assert [shown[first.pk][key] for key in keys] == ["online", gpu, None, None]
    assert [shown[second.pk][key] for key in keys] == [
        *("resting", gpu, "2026-03-02T09:03:00Z", first.zone.name)
    ]
    alone = market.node(market.zone())
    _, secret = builders.api_key(alone.provider.organisation)
    api = Client(headers={"Authorization": f"Bearer {secret}"})
    [row] = api.get("/api/nodes").json()["data"]
    assert [row[key] for key in keys] == ["online", None, None, None]
