"""The only places of the auction that lock rows; always late and in this order.

A zone's lane lock comes first, then bids in order of arrival, then wallets in
order of organisation. No code takes them the other way round, so there is no deadlock in
a circle.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from django.db.models import Q, QuerySet

from marketplace.auction.models import Alert, Bid, BidStatus, MarketHead, Pricing
from marketplace.common.locks import lock_until_commit
from marketplace.fleet.queries import read_fleet_digest


def lock_lane(*, zone_id: str) -> tuple[MarketHead | None, object]:
    """Be the zone's one writer until the transaction ends; waits for another to finish.

    Returns
    -------
    tuple
        The log's head, locked, or ``None`` before the log has begun; and something that is equal
        as long as nothing is changed of the nodes that the engine goes by.
    """
    _lock_lane(zone_id)
    head = MarketHead.objects.select_for_update().filter(zone_id=zone_id).first()
    return head, read_fleet_digest(zone_id=zone_id)


def lock_lanes(zone_ids: Iterable[str]) -> None:
    """Keep these zones from being sold until the transaction ends, without looking at their logs.

    Raises
    ------
    django.db.OperationalError
        A lane was at work for longer than the database's lock timeout.
    """
    for zone_id in sorted(set(zone_ids)):
        _lock_lane(zone_id)


#: Namespace of the zones' advisory locks.
LANE = "auction.lane"


def _lock_lane(zone_id: str) -> None:
    lock_until_commit(LANE, zone_id)


def lock_pending_bids(*, zone_id: str, limit: int, only: str | None = None) -> list[Bid]:
    """The oldest bids that wait for a decision; call while holding the zone's lane lock.

    The rows are locked against a cancellation at the same moment. A bid that
    arrived earlier but committed later simply is in a later batch. ``only`` takes
    that one bid; without it, bids set aside after a failure are passed over.
    """
    which = Q(retry_at=None) if only is None else Q(pk=only)
    return list(_lock_waiting_bids(which, zone_id=zone_id)[:limit])


def lock_bids_of_bundles(*, bundle_ids: Sequence[str]) -> list[Bid]:
    """The bids of bundles that wait for a decision; call while holding the zone's lane lock."""
    return list(_lock_waiting_bids(bundle_id__in=bundle_ids))


def lock_received_bids(*, bid_ids: Sequence[str]) -> list[Bid]:
    """Those of these bids that still wait; call while holding the zone's lane lock."""
    return list(_lock_waiting_bids(pk__in=bid_ids))


def _lock_waiting_bids(*which: Q, **wanted: object) -> QuerySet[Bid]:
    waiting = Bid.objects.filter(*which, status=BidStatus.PENDING, **wanted)
    locked = waiting.select_for_update(of=("self",)).order_by("arrival")
    # Read once the rows are locked: an answer may have come meanwhile.
    return locked.prefetch_related("price_offer")


def lock_joint_bids(*, bundle_id: str) -> list[Bid]:
    """All bids of a bundle, in order of arrival."""
    bids = Bid.objects.select_for_update(of=("self",)).select_related("zone")
    return list(bids.filter(bundle_id=bundle_id).order_by("arrival"))


def lock_bid(*, bid_id: str) -> Bid:
    return Bid.objects.select_for_update(of=("self",)).select_related("zone").get(pk=bid_id)


def lock_pricing(*, zone_id: str) -> Pricing | None:
    """What the zone's solver left for its lane; call while holding the zone's lane lock."""
    return Pricing.objects.select_for_update().filter(zone_id=zone_id).first()


def lock_open_alerts() -> list[Alert]:
    """Lock the alerts of what does not work, by primary key. Call in a transaction."""
    return list(Alert.objects.select_for_update().filter(ended_at=None).order_by("pk"))


def lock_due_alerts(due: QuerySet[Alert]) -> list[Alert]:
    """Lock those that nobody else is about to send, the oldest first. Call in a transaction."""
    return list(due.select_for_update(skip_locked=True).order_by("since_at", "pk"))
