"""Snapshots of zones' engines, taken by a worker from its replica: bids do not wait for them."""

from __future__ import annotations

import json
import logging
from collections.abc import Callable
from datetime import datetime

from marketplace.auction.book import engine_cache as books
from marketplace.auction.models import MarketHead, Snapshot
from marketplace.fleet.models import Zone

log = logging.getLogger(__name__)

#: Latest snapshots of a zone that are kept, beside the first.
KEPT = 3


def snapshot_zones(*, clock: Callable[[], datetime]) -> int:
    """Take the snapshots that are due; how many were taken."""
    taken = 0
    for zone in Zone.objects.order_by("pk"):
        try:
            taken += store_snapshot_if_due(zone=zone, now=clock())
        except Exception:
            # A zone that is broken must not stop the others.
            log.exception("zone %s: no snapshot could be taken", zone.name)
    return taken


def store_snapshot_if_due(*, zone: Zone, now: datetime) -> bool:
    """Store the engine's state if enough happened since the last time, and let old ones go.

    A restart needs the latest; a few more are kept in case it cannot be read. All of the log
    stays, so nothing is lost that ``auction_verify`` looks at.
    """
    head = MarketHead.objects.filter(zone=zone).first()
    if (
        head is None
        or head.position - books.find_latest_snapshot_position(zone.pk) < books.SNAPSHOT_EVERY
    ):
        return False
    with books.read_book(zone=zone, now=now) as book:
        position, head_hash = book.engine.position, book.engine.head_hash
        state = book.engine.snapshot()
    row = Snapshot(
        zone=zone,
        position=position,
        head_hash=head_hash,
        state=json.dumps(state),
        taken_at=now,
    )
    Snapshot.objects.bulk_create([row], ignore_conflicts=True)
    later = Snapshot.objects.filter(zone=zone, position__gt=0).order_by("-position")
    kept = list(later.values_list("pk", flat=True)[:KEPT])
    later.exclude(pk__in=kept).delete()
    return True
