"""A house that has far too little of its machine for a while writes nothing that is wrong."""

from __future__ import annotations

import os
import secrets
import time

import pytest

from marketplace.embedded.demo.api_client import upload_dataset
from tests.conftest import Market
from tests.faults.steps import keep_busy
from tests.faults.test_house import PRICE, TOO_LOW, body, decided, place_until_answered

#: Processes for each core beside the house's own, and for how long.
PER_CORE = 4
BUSY_S = float(os.environ.get("BUSY_HOUSE_S", "600"))
PAUSE_S = 1.0
_COUNTS = """
from marketplace.auction.models import LogEntry
print(LogEntry.objects.filter(kind="PricesSolved").count())
"""


@pytest.mark.faults
@pytest.mark.nightly
@pytest.mark.timeout(2400)
def test_a_house_under_four_times_its_load_for_ten_minutes_verifies(market: Market) -> None:
    """Solves and slots are late then: what misses its moment is dropped before it is logged."""
    with market.api() as api:
        dataset_id = upload_dataset(api, market.zone)["id"]
    before = int(market.shell.run(_COUNTS))
    bids: list[str] = []
    with keep_busy(per_core=PER_CORE):
        ends_at = time.monotonic() + BUSY_S
        while time.monotonic() < ends_at:
            asked = body(market, dataset_id, PRICE if len(bids) % 10 == 0 else TOO_LOW)
            bids.append(place_until_answered(market, asked, secrets.token_hex(16)))
            time.sleep(PAUSE_S)
    found = [decided(market, bid_id) for bid_id in bids]
    assert {bid["status"] for bid in found} <= {"admitted", "refused"}
    solved = int(market.shell.run(_COUNTS)) - before
    print(f"{len(bids)} bids decided and {solved} solves in {BUSY_S:.0f} s")
    assert solved > 0
    # Not even with an erratum: that would end with another status.
    market.shell.manage("auction_verify")
    market.shell.manage("ledger_check")
