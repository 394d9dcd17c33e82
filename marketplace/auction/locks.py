"""The only places of the auction that lock rows; always late and in this order.

A zone's lane lock comes first, then bids in order of arrival, then wallets in
order of organisation. No code takes them the other way round, so there is no deadlock in
a circle.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Sequence
from datetime import datetime
from typing import Any, NamedTuple

from marketplace.auction.models import Bid, BidStatus, MarketHead, Pricing
from marketplace.auction.queries import WAITING
from marketplace.common.db.bulk_writes import JsonText
from marketplace.common.db.pipeline import Statement, fetch
from marketplace.common.db.row_types import list_columns
from marketplace.common.locks import advisory_lock_statement
from marketplace.fleet.queries import build_fleet_digest
from workers.protocol.starts import Start
from workers.protocol.wire import loads


class PendingBid(NamedTuple):
    """What deciding a bid takes of its row, and what a job is opened with.

    No object of the ORM: a crowd's rows are read, decided and written many times a second.
    """

    pk: str
    organisation_id: str
    placed_by_id: str | None
    dataset_id: str | None
    #: Whose rows are held out; ``None``: a share of the data set's own.
    validation_dataset_id: str | None
    name: str
    price_micros: int
    deadline_at: datetime
    not_before_slot: int | None
    bundle_id: str | None
    #: As in ``Bid``.
    is_joint: bool
    compute_demand: float
    memory_demand_gb: float
    verified_only: bool
    #: s_ik, by GPU type.
    rates: dict[str, float]
    #: Vendors' offers, as ``Bid.offers``.
    offers: list[list[Any]]
    #: What the bid was received with; empty before it was.
    received_slot: int | None
    salt: str
    #: ``Bid.terms`` as text, which goes on to the job unread.
    terms: JsonText
    #: What of them says what the job begins with.
    start: JsonText

    @property
    def warm_start(self) -> Start | None:
        """The start that it was sold less work for."""
        if self.start == "null":
            return None
        start = loads(Start, self.start)
        return start if start.cold_units else None


def lock_lane(*, zone_id: str) -> tuple[MarketHead | None, object]:
    """Be the zone's one writer until the transaction ends; waits for another to finish.

    Returns
    -------
    tuple
        The log's head, locked, or ``None`` before the log has begun; and something that is equal
        as long as nothing is changed of the nodes that the engine goes by.
    """
    _, heads, [fleet] = fetch(
        advisory_lock_statement(LANE, zone_id),
        Statement(_HEAD, (zone_id,)),
        build_fleet_digest(zone_id=zone_id),
    )
    return (MarketHead.from_db("default", _HEAD_COLUMNS, heads[0]) if heads else None), fleet


def lock_lanes(zone_ids: Iterable[str]) -> None:
    """Keep these zones from being sold until the transaction ends, without looking at their logs.

    Raises
    ------
    django.db.OperationalError
        A lane was at work for longer than the database's lock timeout.
    """
    fetch(*(advisory_lock_statement(LANE, zone_id) for zone_id in sorted(set(zone_ids))))


#: Namespace of the zones' advisory locks.
LANE = "auction.lane"
_HEAD_COLUMNS = [field.attname for field in MarketHead._meta.concrete_fields]
_HEAD = (
    f"SELECT {', '.join(_HEAD_COLUMNS)} FROM auction_markethead"  # noqa: S608
    " WHERE zone_id = %s FOR UPDATE"
)


def lock_pending_bids(*, zone_id: str, limit: int, only: str | None = None) -> list[PendingBid]:
    """The oldest bids that wait for a decision; call while holding the zone's lane lock.

    The rows are locked against a cancellation at the same moment. A bid that
    arrived earlier but committed later simply is in a later batch. ``only`` takes
    that one bid; without it, bids set aside after a failure are passed over.
    """
    [rows] = fetch(
        Statement(_PENDING, (zone_id, str(limit)))
        if only is None
        else Statement(_PENDING_ONE, (zone_id, only, str(limit)))
    )
    return [_pending(*row) for row in rows]


def lock_bids_of_bundles(*, bundle_ids: Sequence[str]) -> list[PendingBid]:
    """The bids of bundles that wait for a decision; call while holding the zone's lane lock."""
    [rows] = fetch(Statement(_OF_BUNDLES, (list(bundle_ids),)))
    return [_pending(*row) for row in rows]


def lock_received_bids(*, bid_ids: Sequence[str]) -> list[PendingBid]:
    """Those of these bids that still wait; call while holding the zone's lane lock."""
    [rows] = fetch(Statement(_RECEIVED, (list(bid_ids),)))
    return [_pending(*row) for row in rows]


def _pending(*row: Any) -> PendingBid:
    *columns, rates, offers, slot, salt, terms, start = row
    texts = JsonText(terms or "null"), JsonText(start or "null")
    return PendingBid._make((*columns, json.loads(rates), json.loads(offers), slot, salt, *texts))


_COLUMNS = list_columns(Bid, PendingBid, start="terms -> 'start'")
#: The ORM would take longer to write it and to make objects of its rows than deciding does.
_PENDING_SQL = f"""
SELECT {_COLUMNS}
{WAITING} AND {{which}}
ORDER BY arrival LIMIT %s::bigint FOR UPDATE
"""
_PENDING = _PENDING_SQL.format(which="retry_at IS NULL")
_RECEIVED = f"""
SELECT {_COLUMNS}
FROM auction_bid WHERE id = ANY(%s) AND status = '{BidStatus.PENDING}'
ORDER BY arrival FOR UPDATE
"""  # noqa: S608
_OF_BUNDLES = f"""
SELECT {_COLUMNS}
FROM auction_bid WHERE bundle_id = ANY(%s) AND status = '{BidStatus.PENDING}'
ORDER BY arrival FOR UPDATE
"""  # noqa: S608
_PENDING_ONE = _PENDING_SQL.format(which="id = %s")


def lock_joint_bids(*, bundle_id: str) -> list[Bid]:
    """All bids of a bundle, in order of arrival."""
    bids = Bid.objects.select_for_update(of=("self",)).select_related("zone")
    return list(bids.filter(bundle_id=bundle_id).order_by("arrival"))


def lock_bid(*, bid_id: str) -> Bid:
    return Bid.objects.select_for_update(of=("self",)).select_related("zone").get(pk=bid_id)


def lock_pricing(*, zone_id: str) -> Pricing | None:
    """What the zone's solver left for its lane; call while holding the zone's lane lock."""
    return Pricing.objects.select_for_update().filter(zone_id=zone_id).first()
