"""A market whose providers sell nothing rents a machine for its first job, once it is sold."""

from __future__ import annotations

import json

import pytest

from tests.faults.steps import buy_longest, until
from tests.faults.test_node_in_market import events_of, wait_for
from tests.faults.test_rented_machine import NEVER, OTHERS_AVAILABLE_FROM

pytestmark = [pytest.mark.faults, pytest.mark.nightly, pytest.mark.timeout(1500)]

LISTED = """
import json
from marketplace.tiers.models import ListedOffer, Machine
listed = ListedOffer.objects.filter(closed_at=None, machine=None).first()
print(json.dumps({
    "node": listed and listed.node.name,
    "machines": list(Machine.objects.exclude(status="ended").values_list("pk", flat=True)),
}))
"""


def test_without_a_provider_a_bid_wins_a_machine_that_is_not_rented_yet(tiers_on, api):
    market = tiers_on
    market.shell.manage(
        "tiers_set",
        market.zone,
        "--serverless",
        "0",
        "--serverful",
        "1",
        "--idle-s",
        "1",
        "--sell-offers",
    )
    try:
        market.shell.run(OTHERS_AVAILABLE_FROM.format(at=NEVER))

        def listed() -> dict:
            return json.loads(market.shell.run(LISTED))

        until(lambda: listed()["node"], within_s=300, what="the offer was measured and is on sale")
        before = listed()
        assert before["machines"] == []
        bid = buy_longest(api, market.zone, name="first of its market", epochs=(2,))
        job = wait_for(api, bid["job_id"], lambda job: job["status"] == "succeeded", within_s=400)
        began = next(e for e in events_of(api, job["id"]) if e["kind"] == "started")
        assert before["node"] in began["message"]
    finally:
        market.shell.run(OTHERS_AVAILABLE_FROM.format(at=None))
