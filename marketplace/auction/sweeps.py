"""What the lane does unasked, so that nothing depends on a wake-up that got lost."""

from __future__ import annotations

import logging
from collections.abc import Callable
from datetime import datetime

from django.db import DatabaseError, OperationalError

from marketplace.auction.book import LogBroken
from marketplace.auction.decisions import decide_pending_bids
from marketplace.auction.lane import is_lock_timeout, zone_lane
from marketplace.auction.models import Bid, BidStatus
from marketplace.fleet.models import Zone
from marketplace.jobs.models import Job

log = logging.getLogger(__name__)


def zone_decide_all(*, zone_id: str, clock: Callable[[], datetime]) -> int:
    """Decide a zone's bids batch by batch until none waits; how many were decided."""
    zone = Zone.objects.get(pk=zone_id)
    decided = 0
    while True:
        try:
            batch = decide_pending_bids(zone=zone, now=clock())
        except (DatabaseError, LogBroken):
            # The database or the zone itself is the trouble; no bid is to blame.
            raise
        except Exception:
            log.exception("zone %s: a batch failed; deciding its bids one by one", zone.name)
            return decided + _decide_singly(zone=zone, clock=clock)
        decided += batch.decided
        if not batch.full:
            return decided


def _decide_singly(*, zone: Zone, clock: Callable[[], datetime]) -> int:
    """Decide bids apart, so that one that cannot be decided does not hold up the others.

    It stays pending, its money held, and is tried again with each sweep; its
    owner can take it back, and the log says what is wrong with it.
    """
    waiting = Bid.objects.filter(zone=zone, status=BidStatus.PENDING).order_by("arrival")
    decided = 0
    for bid_id in list(waiting.values_list("pk", flat=True)):
        try:
            decided += decide_pending_bids(zone=zone, now=clock(), only=bid_id).decided
        except (DatabaseError, LogBroken):
            raise
        except Exception:
            log.exception("bid %s cannot be decided; it is tried again", bid_id)
    return decided


def zones_sweep(*, clock: Callable[[], datetime]) -> None:
    """Advance every zone to the present slot and fleet, and decide bids nobody woke us for."""
    waiting = Bid.objects.filter(status=BidStatus.PENDING).values("zone_id")
    for zone in Zone.objects.order_by("pk"):
        try:
            if Zone.objects.filter(pk=zone.pk, pk__in=waiting).exists():
                zone_decide_all(zone_id=zone.pk, clock=clock)
            else:
                zone_refresh(zone=zone, now=clock())
        except Exception:
            # A zone that is broken must not stop the others.
            log.exception("zone %s could not be swept", zone.name)


def jobs_replan(*, now: datetime) -> None:
    """Find new cells for jobs that lost theirs, in every zone that has such jobs."""
    wanting = Job.objects.filter(needs_replan=True, status__in=Job.ACTIVE).values("zone_id")
    for zone in Zone.objects.filter(pk__in=wanting).order_by("pk"):
        zone_refresh(zone=zone, now=now)


def zone_refresh(*, zone: Zone, now: datetime) -> None:
    """Enter the lane: slot, fleet and promises are brought up to date on the way in."""
    try:
        with zone_lane(zone=zone, now=now):
            pass
    except OperationalError as error:
        if not is_lock_timeout(error):
            raise
        log.info("zone %s: another lane is at work; stepping aside", zone.name)
