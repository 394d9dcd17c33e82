"""Bids decided by the lane: exact answers and exact money."""

from __future__ import annotations

import pytest

from marketplace.auction.decisions import decide_pending_bids
from marketplace.auction.models import BidStatus, LogEntry, Reservation
from marketplace.jobs.models import Job
from marketplace.payments.selectors import Wallet, ledger_check, wallet
from tests import builders
from tests import market_builders as market
from tests.builders import NOW

pytestmark = pytest.mark.django_db


def test_first_bid_in_an_empty_market_pays_the_operational_cost_alone():
    zone = market.zone()
    node = market.node(zone)
    owner = builders.organisation(usd="10")
    bid = market.bid(owner, zone, price_micros=5_000_000, epochs=3)

    batch = decide_pending_bids(zone=zone, now=NOW)

    assert (batch.decided, batch.admitted, batch.full) == (1, 1, False)
    bid.refresh_from_db()
    assert bid.status == BidStatus.ADMITTED
    assert bid.payment_micros == 300_000
    assert [slot for slot, _ in bid.cells] == [101, 102, 103]
    assert {cell[1] for cell in bid.cells} == {node.pk}
    assert wallet(organisation=owner) == Wallet(available_micros=9_700_000, held_micros=0)
    job = Job.objects.get(bid_id=bid.pk)
    assert job.cells == bid.cells
    assert job.price_micros == 300_000
    assert ledger_check().balanced
