"""``manage.py node_available``."""

from __future__ import annotations

from io import StringIO

import pytest
import time_machine
from django.core.management import CommandError, call_command

from marketplace.fleet.models import NodeStatus
from tests import market_builders
from tests.builders import NOW
from tests.job_builders import at

pytestmark = pytest.mark.django_db


def test_a_node_is_taken_off_sale_for_a_while_and_put_back() -> None:
    node = market_builders.node(market_builders.zone())
    out = StringIO()
    with time_machine.travel(NOW, tick=False):
        call_command("node_available", node.name, in_s=90, stdout=out)
        node.refresh_from_db()
        assert node.available_from_at == at(90)
        call_command("node_available", node.name, stdout=out)
    node.refresh_from_db()
    assert node.available_from_at is None
    assert out.getvalue().splitlines() == [
        f"Node {node.name} is on sale from {at(90):%H:%M:%S} UTC.",
        f"Node {node.name} is on sale now.",
    ]


def test_an_unknown_node_is_named() -> None:
    with pytest.raises(CommandError, match="There is no node named 'nowhere'"):
        call_command("node_available", "nowhere")


def test_a_silent_node_is_set_too_and_one_that_left_is_none() -> None:
    """Nodes of the demo on a full machine may be silent for a moment."""
    node = market_builders.node(market_builders.zone())
    node.status = NodeStatus.OFFLINE
    node.save()
    with time_machine.travel(NOW, tick=False):
        call_command("node_available", node.pk, in_s=90, stdout=StringIO())
    node.refresh_from_db()
    assert node.available_from_at == at(90)
    node.status = NodeStatus.LEFT
    node.save()
    with pytest.raises(CommandError, match="There is no node named"):
        call_command("node_available", node.name)
