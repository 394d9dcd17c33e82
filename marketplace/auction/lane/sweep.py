"""What the lane does unasked, so that nothing depends on a wake-up that got lost."""

from __future__ import annotations

import logging
import time
from collections.abc import Callable
from datetime import datetime, timedelta

from django.db import DatabaseError, OperationalError
from django.db.models import QuerySet

from marketplace.auction.book.engine_cache import LogBroken
from marketplace.auction.lane import wakeups
from marketplace.auction.lane.decide import BATCH_LIMIT, decide_pending_bids
from marketplace.auction.lane.enter import enter_lane, is_lock_timeout
from marketplace.auction.lane.offers import end_late_offers
from marketplace.auction.models import Bid, BidStatus
from marketplace.auction.probes import name_zone_task
from marketplace.common.backoff import compute_backoff
from marketplace.common.heartbeats import record_failure, record_success
from marketplace.fleet.models import Zone
from marketplace.jobs.models import Job

log = logging.getLogger(__name__)


#: A crowd keeps a run going for this time; then other zones and the beat have their turn.
RUN_FOR = timedelta(seconds=0.5)
#: A batch of this many bids is part of a crowd. Its next one begins this time after it began, if
#: others come by then: larger batches cost each bid less, and a machine that is not kept busy with
#: small ones answers sooner. It is a little longer than between two batches of the API
#: (``PACE_S``): the run then goes on with the next one, which costs less than a wake-up and a run
#: for each.
CROWD, CROWD_PACE = 2, timedelta(milliseconds=45)
#: What else the lane is asked to do for a zone before a run and between two batches of a crowd, by
#: rooms that the auction does not know: their customers wait for one batch, not for a run.
BETWEEN_BATCHES: list[Callable[[Zone, Callable[[], datetime]], object]] = []
#: Bids set aside that one run tries again.
RETRIES = 20
#: Before a bid that failed is tried again; doubled with each failure.
RETRY_AFTER = timedelta(seconds=30)
RETRY_MOST = timedelta(hours=1)


def decide_all_pending(
    *,
    zone_id: str,
    clock: Callable[[], datetime],
    pause: Callable[[float], None] = time.sleep,
) -> int:
    """Decide a zone's bids batch by batch until none waits; how many were decided.

    A batch that fails is halved until it is one bid. That bid is set aside: it
    stays pending, its money held, and is tried again later, alone, while the others go on.
    Its owner can take it back, and the operator sees what is wrong with it.
    """
    # A bid placed from now on sends one wake-up, which is handled after this run.
    wakeups.clear_lane_wakeup(zone_id=zone_id)
    zone = Zone.objects.get(pk=zone_id)
    _do_between_batches(zone, clock)
    decided = _decide_set_aside(zone=zone, clock=clock)
    ends_at = clock() + RUN_FOR
    limit = BATCH_LIMIT
    while True:
        oldest = _oldest(zone) if limit == 1 else None
        began_at = clock()
        try:
            batch = decide_pending_bids(zone=zone, now=began_at, limit=limit, only=oldest)
        except (DatabaseError, LogBroken):
            # The database or the zone itself is the trouble; no bid is to blame.
            raise
        except Exception as error:
            if limit == BATCH_LIMIT:
                # Raises when the zone fails without any bid too.
                refresh_zone(zone=zone, now=clock())
            log.warning("zone %s: a batch of %d failed: %r", zone.name, limit, error)
            if limit > 1:
                limit = max(1, min(limit, _in_turn(zone).count()) // 2)
            elif oldest is not None:
                _set_aside(oldest, error, now=clock())
                limit = BATCH_LIMIT
            else:
                raise
            continue
        decided += batch.decided
        if batch.stepped_aside:
            return decided
        if batch.decided:
            _do_between_batches(zone, clock)
        if batch.decided >= CROWD and not batch.full:
            pause(max(0.0, (began_at + CROWD_PACE - clock()).total_seconds()))
        # Those who came while a batch was written are the next one, with no wake-up in between.
        goes_on = batch.decided and clock() < ends_at
        more = batch.full or (goes_on and _in_turn(zone).exists())
        if not more and (oldest is None or not batch.decided):
            return decided


def _do_between_batches(zone: Zone, clock: Callable[[], datetime]) -> None:
    """A failure here is logged and retried by the work's own task; no bid waits for it."""
    for do in BETWEEN_BATCHES:
        try:
            do(zone, clock)
        except Exception:
            log.exception("zone %s: %r failed between two batches", zone.name, do)


def _oldest(zone: Zone) -> str | None:
    return _in_turn(zone).order_by("arrival").values_list("pk", flat=True).first()


def _in_turn(zone: Zone) -> QuerySet[Bid]:
    return Bid.objects.filter(zone=zone, status=BidStatus.PENDING, retry_at=None)


def _decide_set_aside(*, zone: Zone, clock: Callable[[], datetime]) -> int:
    """Try bids again that are due, each by itself."""
    decided = 0
    due = Bid.objects.filter(zone=zone, status=BidStatus.PENDING, retry_at__lte=clock())
    for bid_id in list(due.order_by("retry_at").values_list("pk", flat=True)[:RETRIES]):
        try:
            decided += decide_pending_bids(zone=zone, now=clock(), only=bid_id).decided
        except (DatabaseError, LogBroken):
            raise
        except Exception as error:
            _set_aside(bid_id, error, now=clock())
    return decided


def _set_aside(bid_id: str, error: Exception, *, now: datetime) -> None:
    """Let the others go ahead of a bid."""
    log.error("bid %s cannot be decided and is set aside", bid_id, exc_info=error)
    bid = Bid.objects.get(pk=bid_id)
    failures = bid.failures + 1
    wait = compute_backoff(failures=failures, first=RETRY_AFTER, most=RETRY_MOST)
    Bid.objects.filter(pk=bid_id, status=BidStatus.PENDING).update(
        failure=f"{type(error).__name__}: {error}"[:500],
        failures=failures,
        retry_at=now + wait,
    )


def sweep_zones(*, clock: Callable[[], datetime]) -> None:
    """Advance every zone to the present slot and fleet, and decide bids whose wake-up was lost."""
    waiting = Bid.objects.filter(status=BidStatus.PENDING).values("zone_id")
    for zone in Zone.objects.order_by("pk"):
        task = name_zone_task(zone.pk)
        try:
            if Zone.objects.filter(pk=zone.pk, pk__in=waiting).exists():
                decided = decide_all_pending(zone_id=zone.pk, clock=clock)
                goes_on = decided > 0 or not _in_turn(zone).exists()
            else:
                goes_on = refresh_zone(zone=zone, now=clock())
        except Exception as error:
            # A zone that is broken must not stop the others.
            log.exception("zone %s could not be swept", zone.name)
            record_failure(task, f"{type(error).__name__}: {error}", now=clock())
        else:
            # Where another lane is at work, it writes down that it is.
            if goes_on:
                record_success(task, now=clock())
    end_late_offers(now=clock())


def replan_broken_jobs(*, now: datetime) -> None:
    """Find new cells for jobs that lost theirs, in every zone that has such jobs."""
    wanting = Job.objects.filter(needs_replan=True, status__in=Job.ACTIVE).values("zone_id")
    for zone in Zone.objects.filter(pk__in=wanting).order_by("pk"):
        refresh_zone(zone=zone, now=now)


def refresh_zone(*, zone: Zone, now: datetime) -> bool:
    """Enter the lane: slot, fleet and promises are brought up to date on the way in.

    False where another lane is at work in the zone.
    """
    try:
        with enter_lane(zone=zone, now=now):
            return True
    except OperationalError as error:
        if not is_lock_timeout(error):
            raise
        log.info("zone %s: another lane is at work; stepping aside", zone.name)
        return False
