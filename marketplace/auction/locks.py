"""The only places of the auction that lock rows; always late and in this order.

A zone's lane lock comes first, then bids in order of arrival, then wallets in
order of organisation. Nobody takes them the other way round, so nobody waits in
a circle.
"""

from __future__ import annotations

import json
from datetime import datetime
from typing import Any, NamedTuple

from django.db import connection

from marketplace.auction.models import Bid, BidStatus, Pricing
from marketplace.common.bulk import JsonText


class PendingBid(NamedTuple):
    """What deciding a bid takes of its row, and what a job is opened with.

    No object of the ORM: a crowd's rows are read, decided and written many times a second.
    """

    pk: str
    organisation_id: str
    placed_by_id: str | None
    dataset_id: str
    name: str
    price_micros: int
    deadline_at: datetime
    compute_demand: float
    memory_demand_gb: float
    #: s_ik, by GPU type.
    rates: dict[str, float]
    #: JSON texts, which go on to the job unread.
    adapter_text: JsonText
    training_text: JsonText


def pending_bids_lock(*, zone_id: str, limit: int, only: str | None = None) -> list[PendingBid]:
    """The oldest bids that wait for a decision; call while holding the zone's lane lock.

    The rows are locked against a cancellation at the same moment. A bid that
    arrived earlier but committed later simply is in a later batch. ``only`` takes
    that one bid; without it, bids set aside after a failure are passed over.
    """
    with connection.cursor() as cursor:
        which, value = ("retry_at IS NULL", []) if only is None else ("id = %s", [only])
        cursor.execute(
            _PENDING_SQL.format(which=which), [zone_id, BidStatus.PENDING.value, *value, limit]
        )
        return [_pending(*row) for row in cursor.fetchall()]


def _pending(*row: Any) -> PendingBid:
    *columns, rates, adapter, training = row
    return PendingBid._make((*columns, json.loads(rates), JsonText(adapter), JsonText(training)))


#: The ORM would take longer to write it and to make objects of its rows than deciding does.
_PENDING_SQL = """
SELECT id, organisation_id, placed_by_id, dataset_id, name, price_micros, deadline_at,
    compute_demand, memory_demand_gb, rates, adapter, training
FROM auction_bid WHERE zone_id = %s AND status = %s AND {which}
ORDER BY arrival LIMIT %s FOR UPDATE
"""


def bid_lock(*, bid_id: str) -> Bid:
    return Bid.objects.select_for_update(of=("self",)).select_related("zone").get(pk=bid_id)


def pricing_lock(*, zone_id: str) -> Pricing | None:
    """What the zone's solver left for its lane; call while holding the zone's lane lock."""
    return Pricing.objects.select_for_update().filter(zone_id=zone_id).first()
