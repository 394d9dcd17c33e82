"""A node says on its own disk when the market last answered it, for who watches its process."""

import os
from types import SimpleNamespace

import pytest

from workers.node.heartbeats import Heartbeats
from workers.node.market_client import MarketClient


@pytest.fixture
def node():
    """What a heartbeat tells of a node, and what its answer does to it."""
    heard = []
    return SimpleNamespace(
        node_id="node_1",
        draining=False,
        leases=tuple,
        kept=SimpleNamespace(list=tuple),
        heard=heard.append,
        refused=heard.append,
        replies=heard,
    )


@pytest.fixture
def client(market):
    with MarketClient(market.url, token="node-token") as made:
        yield made


def build_heartbeats(client, node, heard):
    return Heartbeats(
        node=node, client=client, every_s=0.2, memory_used_gb=lambda: None, heard=heard
    )


def test_only_an_answer_of_the_market_is_noted(market, client, node, tmp_path):
    heard = tmp_path / "heard"
    heartbeats = build_heartbeats(client, node, heard)
    for status in (503, 401):
        market.trouble = lambda _method, _path, status=status: status
        heartbeats.beat()
        assert not heard.exists()
    market.trouble = lambda _method, _path: None
    heartbeats.beat()
    os.utime(heard, (1000, 1000))
    heartbeats.beat()
    assert heard.stat().st_mtime > 1000


def test_a_disk_that_takes_no_file_stops_no_heartbeat(market, client, node, tmp_path):
    heartbeats = build_heartbeats(client, node, tmp_path / "gone" / "heard")
    heartbeats.beat()
    heartbeats.beat()
    assert len(market.heartbeats) == 2
    assert node.replies == [market.heartbeat_reply] * 2
