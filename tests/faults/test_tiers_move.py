"""The tiers in the running house: a real move between real processes, and a real orphan."""

from __future__ import annotations

import json
import secrets
from datetime import UTC, datetime, timedelta
from typing import Any

import httpx
import pytest

from marketplace.embedded.demo.api_client import upload_dataset
from tests.conftest import Market
from tests.faults.steps import AVAILABLE_FROM, kill_processes, statuses, until

# A whole house: alone on the machine, like everything that kills processes.
pytestmark = pytest.mark.faults

#: The node's reserved cells begin this long after the bid.
RESERVED_IN_S = 20

REQUEST = """
from marketplace.common import clock
from marketplace.tiers.machines import request_machine
from marketplace.tiers.models import ZoneTiers
from marketplace.tiers.provisioning import get_backend
ZoneTiers.objects.update(checkpoint_s=1.0, restore_s=1.0, idle_s=600.0)
offers = [o for o in get_backend("local").offers() if o.tier == "serverless"]
request_machine(tiers=ZoneTiers.objects.get(), offer=offers[0], reason="warm", now=clock.now())
"""
#: Long enough that what is left at the move repays it, however fast this machine is; fewer where
#: it is so slow that they would not end in time.
EPOCHS = (22, 14, 9)
LEASES = """
import json
from marketplace.jobs.models import Slice
rows = Slice.objects.filter(job_id="{job}").order_by("opened_at")
values = list(rows.values("status", "opened_at", "closed_at"))
print(json.dumps(values, default=lambda at: at.isoformat(timespec="microseconds")))
"""
ORPHAN = """
from marketplace.tiers.provisioning import get_backend
get_backend("local").launch(
    machine_id="mach_orphan", offer="conventional-local", market_url="http://nowhere",
    join_secret="none",
)
"""


@pytest.mark.timeout(900)
def test_a_job_starts_on_serverless_and_moves_to_its_reserved_node_with_no_step_lost(
    tiers_on: Market,
) -> None:
    market = tiers_on
    market.shell.run(REQUEST)
    until(
        lambda: ["running", False] in statuses(market).values(),
        within_s=240,
        what="the serverless machine is in the market",
    )
    begins_at = datetime.now(UTC) + timedelta(seconds=RESERVED_IN_S)
    market.shell.run(AVAILABLE_FROM.format(at=f'datetime.fromisoformat("{begins_at.isoformat()}")'))
    with market.api() as client:
        job = _bought(client, market.zone)

        def told_so_far() -> list[dict[str, Any]]:
            return client.get(f"/api/jobs/{job}/events?limit=100").json()["data"]

        until(
            lambda: any(event["kind"] in ("moving", "paused") for event in told_so_far()),
            within_s=240,
            what="the job is about to leave",
        )
        # Halfway, what would finish the move dies.
        kill_processes(market, "worker", "beat")
        until(
            lambda: any(event["message"].startswith("Goes on from") for event in told_so_far()),
            within_s=240,
            what="the job goes on elsewhere",
        )
        until(
            lambda: any("It left serverless" in event["message"] for event in told_so_far()),
            within_s=240,
            what="its stay is closed",
        )
        events = told_so_far()
        paused_at = _paused_at(events)
        assert client.post(f"/api/jobs/{job}/cancel").status_code == 200
    told = [event["message"] for event in events]
    first = next(i for i, text in enumerate(told) if text.startswith("Started on node mach_"))
    assert any("Starts at once on serverless" in text for text in told[: first + 1])
    paused = next(event for event in events if event["kind"] == "paused")
    goes_on = next(event for event in events if event["message"].startswith("Goes on from step"))
    assert paused["seq"] < goes_on["seq"]
    # The step it was paused at is the step it goes on from: none is lost, none repeated.
    assert goes_on["message"].startswith(f"Goes on from step {paused_at} on node ")
    assert paused_at > 0
    [left] = [event for event in events if "It left serverless" in event["message"]]
    assert left["data"]["cost_micros"] > 0
    first_lease, second_lease = leases(market, job)
    assert first_lease["closed_at"] <= second_lease["opened_at"]
    assert first_lease["status"] == "paused"
    assert "balance" in market.shell.manage("ledger_check", "--whole").lower()


def leases(market: Market, job: str) -> list[dict[str, Any]]:
    """The job's leases in order; times are text that sorts as they do."""
    return json.loads(market.shell.run(LEASES.format(job=job)))


def _paused_at(events: list[dict[str, Any]]) -> int:
    paused = next(event for event in events if event["kind"] == "paused")
    return int(paused["message"].rsplit("step ", 1)[1].rstrip("."))


def _bought(client: httpx.Client, zone: str) -> str:
    dataset = upload_dataset(client, zone)
    deadline = (datetime.now(UTC) + timedelta(minutes=28)).isoformat()
    work: dict[str, Any] = {"zone": zone, "dataset_id": dataset["id"], "deadline": deadline}
    for epochs in EPOCHS:
        work |= {"training": {"epochs": epochs}}
        quote = client.post("/api/quotes", json=work).json()
        if quote["posted_price"] is not None:
            break
    bid = client.post(
        "/api/bids",
        json=work | {"name": "moves", "price": f"{2 * float(quote['posted_price']):.6f}"},
        headers={"Idempotency-Key": secrets.token_hex(8)},
    ).json()
    until(
        lambda: client.get(f"/api/bids/{bid['id']}").json()["status"] == "admitted",
        within_s=240,
        what="the bid is admitted",
    )
    return client.get(f"/api/bids/{bid['id']}").json()["job_id"]


@pytest.mark.timeout(600)
def test_an_orphan_started_behind_the_markets_back_is_found_shown_and_ended(
    tiers_on: Market,
) -> None:
    tiers_on.shell.run(ORPHAN)
    until(
        lambda: statuses(tiers_on).get("mach_orphan") == ["ended", True],
        within_s=60,
        what="the orphan is shown and ended within a minute",
    )
