"""A node dies under a job of the real market: every process of the house, nothing doubled."""

from __future__ import annotations

import io
import os
import signal
import time
import zipfile
from collections.abc import Callable
from typing import Any

import httpx
import psutil
import pytest

from marketplace.embedded.house import wait_for_web
from tests.conftest import Market
from tests.faults.steps import buy_longest, wait_for_online_node

pytestmark = [pytest.mark.faults, pytest.mark.timeout(1500)]

ENDED = ("succeeded", "failed", "cancelled")
#: Seconds within which a job that is planned anew is done: it gets the cheapest cells, which are
#: not the next ones where others have bought those.
REPLANNED_WITHIN_S = 700
#: Long enough to be killed in after the first checkpoint, short enough to wait for.
EPOCHS = (2, 1)


def wait_for(
    api: httpx.Client, job_id: str, condition: Callable[[dict[str, Any]], bool], *, within_s: float
) -> dict[str, Any]:
    """The job as soon as the condition holds of it."""
    ends_at = time.monotonic() + within_s
    while True:
        job = api.get(f"/api/jobs/{job_id}").raise_for_status().json()
        if condition(job):
            return job
        assert job["status"] not in ENDED, job
        assert time.monotonic() < ends_at, job
        time.sleep(0.2)


def events_of(api: httpx.Client, job_id: str) -> list[dict[str, Any]]:
    return api.get(f"/api/jobs/{job_id}/events?limit=100").raise_for_status().json()["data"]


def checkpoints(events: list[dict[str, Any]]) -> list[int]:
    return [event["data"]["step"] for event in events if event["kind"] == "checkpointed"]


class Sockets:
    """What the node's process is seen to be connected to."""

    def __init__(self, market: Market) -> None:
        self._market = market
        self.peers: set[tuple[str, int]] = set()

    def look(self) -> None:
        process = psutil.Process(self._market.house.stack.pid("node"))
        found = process.net_connections(kind="inet")
        self.peers |= {(one.raddr.ip, one.raddr.port) for one in found if one.raddr}


def test_a_job_whose_node_is_killed_goes_on_from_its_checkpoint_at_no_cost(market, api):
    """Before that the web server is restarted in which the node waits for the job's plan."""
    began = time.monotonic()
    market.house.stack.stop("web")
    # It answers the node, which waits for up to 25 seconds, before it ends.
    assert time.monotonic() - began < 20
    market.house.stack.start("web")
    wait_for_web(market.house)
    wait_for_online_node(market)

    bid = buy_longest(api, market.zone, name="outlives-its-node", epochs=EPOCHS)
    job_id = bid["job_id"]
    sockets = Sockets(market)

    def is_running(job: dict[str, Any]) -> bool:
        sockets.look()
        return job["status"] == "running"

    wait_for(api, job_id, is_running, within_s=240)
    ends_at = time.monotonic() + 120
    while not checkpoints(events_of(api, job_id)):
        sockets.look()
        assert time.monotonic() < ends_at
        time.sleep(0.2)
    # It trains, and has spoken with the market's one address and with nothing else.
    address = httpx.URL(market.house.url)
    assert sockets.peers == {(address.host, address.port)}

    os.kill(market.house.stack.pid("node"), signal.SIGKILL)
    # Kept down until its lease has run out: one that is back sooner simply goes on.
    market.house.stack.stop("node")
    before = events_of(api, job_id)
    try:
        ends_at = time.monotonic() + 120
        while "node_lost" not in [event["kind"] for event in events_of(api, job_id)[len(before) :]]:
            assert time.monotonic() < ends_at
            time.sleep(0.2)
    finally:
        market.house.stack.start("node")
    job = wait_for(
        api, job_id, lambda job: job["status"] == "succeeded", within_s=REPLANNED_WITHIN_S
    )

    after = events_of(api, job_id)[len(before) :]
    kinds = [event["kind"] for event in after]
    assert "started" in kinds
    resumed = next(event for event in after if event["kind"] == "started")
    # Nothing lost but what was trained since the last checkpoint.
    assert resumed["data"]["step"] == max(checkpoints(before))
    assert kinds.count("succeeded") == 1
    progress = job["progress"]
    assert progress["step"] == progress["total_steps"]
    assert progress["valid_loss"] < progress["valid_loss_before"]
    assert (
        api.get(f"/api/bids/{bid['id']}").json()["decision"]["payment"]
        == (bid["decision"]["payment"])
    )
    adapter = api.get(f"/api/jobs/{job_id}/adapter").raise_for_status().content
    assert "adapter_model.safetensors" in zipfile.ZipFile(io.BytesIO(adapter)).namelist()
