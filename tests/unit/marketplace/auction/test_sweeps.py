"""What the lane does unasked, and that one bad bid does not stop it."""

from __future__ import annotations

import pytest

from marketplace.auction.models import Bid, BidStatus
from marketplace.auction.sweeps import zone_decide_all
from marketplace.auction.verify import zone_verify
from marketplace.payments.selectors import Wallet, ledger_check, wallet
from tests import builders
from tests import market_builders as market
from tests.builders import NOW

pytestmark = pytest.mark.django_db


def test_a_bid_that_cannot_be_decided_waits_and_the_others_are_decided() -> None:
    zone = market.zone()
    market.node(zone)
    owner = builders.organisation(usd="10")
    first, broken, last = (
        market.bid(owner, zone, price_micros=1_000_000, epochs=3) for _ in range(3)
    )
    rates = broken.rates
    Bid.objects.filter(pk=broken.pk).update(rates=dict.fromkeys(rates, "fast"))

    assert zone_decide_all(zone_id=zone.pk, clock=lambda: NOW) == 2

    statuses = dict(Bid.objects.values_list("pk", "status"))
    assert statuses == {
        first.pk: BidStatus.ADMITTED,
        broken.pk: BidStatus.PENDING,
        last.pk: BidStatus.ADMITTED,
    }
    assert wallet(organisation=owner).held_micros == 1_000_000
    assert zone_verify(zone).problems == []
    assert ledger_check().balanced

    Bid.objects.filter(pk=broken.pk).update(rates=rates)
    assert zone_decide_all(zone_id=zone.pk, clock=lambda: NOW) == 1
    broken.refresh_from_db()
    assert broken.status == BidStatus.ADMITTED
    paid = sum(Bid.objects.values_list("payment_micros", flat=True))
    assert wallet(organisation=owner) == Wallet(available_micros=10_000_000 - paid, held_micros=0)
    assert ledger_check().balanced
