"""Many rows changed in one statement."""

from __future__ import annotations

import pytest

from marketplace.auction.models import Bid
from marketplace.common.db.bulk_writes import send_updates
from tests import builders
from tests import market_builders as market
from tests.builders import NOW

pytestmark = pytest.mark.django_db


def test_values_change_the_rows_of_their_keys_and_no_others():
    zone, owner = market.zone(), builders.organisation(usd="10")
    one, other, third = (market.bid(owner, zone, price_micros=5) for _ in range(3))
    names = ("decided_at", "position", "parts", "resolved", "compute_demand", "failure", "failures")
    text = "'quoted' \"twice\" \\ tab\t \u2603 %s {}"
    rows = [
        (one.pk, NOW, 3, {"a": [0.1, None, text]}, [[1, "node"]], 0.1 + 0.2, text, 1),
        (other.pk, None, None, None, [], 1e300, "", 0),
        ("bid_unknown", NOW, 4, {}, [], 1.0, "", 0),
    ]
    send_updates(Bid, names, rows)
    for row in rows[:2]:
        stored = Bid.objects.get(pk=row[0])
        assert tuple(getattr(stored, name) for name in names) == row[1:]
    assert Bid.objects.get(pk=third.pk).position is None
