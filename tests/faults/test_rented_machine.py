"""A machine the house rents dies under a job: planned anew elsewhere, finished, nothing doubled."""

from __future__ import annotations

import json
import os
import signal
import time
from typing import Any

import pytest

from tests.conftest import Market
from tests.faults.steps import buy_longest, until
from tests.faults.test_node_in_market import (
    EPOCHS,
    REPLANNED_WITHIN_S,
    checkpoints,
    events_of,
    wait_for,
)

pytestmark = [pytest.mark.faults, pytest.mark.timeout(1500)]

#: A serverful machine; moves so dear that no job begins on serverless meanwhile.
RENT = """
from marketplace.common import clock
from marketplace.tiers.machines import request_machine
from marketplace.tiers.models import ZoneTiers
from marketplace.tiers.provisioning import get_backend
ZoneTiers.objects.update(checkpoint_s=600.0, restore_s=600.0, idle_s=600.0, serverful_cap=1)
[offer] = [one for one in get_backend("local").offers() if one.name == "marketplace-local"]
print(request_machine(
    tiers=ZoneTiers.objects.get(), offer=offer, reason="tried out", now=clock.now()
).pk)
"""
OTHERS_AVAILABLE_FROM = """
from datetime import timedelta
from marketplace.common import clock
from marketplace.fleet.models import Node
others = Node.objects.exclude(name__startswith="mach_").exclude(status="left")
others.update(available_from_at={at})
"""
NEVER = "clock.now() + timedelta(days=365)"
FACTS = """
import json
from marketplace.tiers.models import Machine
one = Machine.objects.get(pk="{machine}")
node = one.join_token and one.join_token.node
print(json.dumps({{
    "status": one.status, "reason": one.reason, "cost_micros": one.cost_micros,
    "node": node and node.pk, "node_status": node and node.status,
}}))
"""


def facts(market: Market, machine: str) -> dict[str, Any]:
    return json.loads(market.shell.run(FACTS.format(machine=machine)))


def test_a_job_outlives_the_rented_machine_it_runs_on(tiers_on, api):
    market = tiers_on
    machine = market.shell.run(RENT)
    until(
        lambda: facts(market, machine)["status"] == "running",
        within_s=240,
        what="the rented machine is in the market",
    )
    try:
        market.shell.run(OTHERS_AVAILABLE_FROM.format(at=NEVER))
        bid = buy_longest(api, market.zone, name="outlives-its-machine", epochs=EPOCHS)
    finally:
        market.shell.run(OTHERS_AVAILABLE_FROM.format(at=None))
    job_id = bid["job_id"]
    wait_for(api, job_id, lambda job: job["status"] == "running", within_s=240)
    ends_at = time.monotonic() + 120
    while not checkpoints(events_of(api, job_id)):
        assert time.monotonic() < ends_at
        time.sleep(0.2)
    before = events_of(api, job_id)
    began = next(event for event in before if event["kind"] == "started")
    assert machine in began["message"]

    process = market.house.data_dir / "machines" / machine / "process.json"
    os.killpg(json.loads(process.read_text())["pid"], signal.SIGKILL)
    job = wait_for(
        api, job_id, lambda job: job["status"] == "succeeded", within_s=REPLANNED_WITHIN_S
    )

    after = events_of(api, job_id)[len(before) :]
    resumed = next(event for event in after if event["kind"] == "started")
    assert machine not in resumed["message"]
    # Nothing lost but what was trained since the last checkpoint.
    steps = checkpoints(
        [event for event in events_of(api, job_id) if event["seq"] < resumed["seq"]]
    )
    assert resumed["data"]["step"] == max(steps)
    assert [event["kind"] for event in after].count("succeeded") == 1
    assert job["progress"]["step"] == job["progress"]["total_steps"]
    paid = api.get(f"/api/bids/{bid['id']}").json()["decision"]["payment"]
    assert paid == bid["decision"]["payment"]

    until(
        lambda: facts(market, machine)["status"] == "ended",
        within_s=240,
        what="the house notices that its machine is gone",
    )
    gone = facts(market, machine)
    assert gone["reason"] == "It is gone: its backend no longer runs it."
    assert gone["node_status"] == "left"
    assert gone["cost_micros"] > 0
