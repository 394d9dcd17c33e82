"""An owner's cancellation of a job that was sold: the job ends and its cells go back on sale."""

from __future__ import annotations

from datetime import datetime

from django.db import OperationalError, transaction

from marketplace.accounts.models import User
from marketplace.auction.book.engine_cache import warm_lane_book
from marketplace.auction.endings import quote_cancelled
from marketplace.auction.give_backs import list_held
from marketplace.auction.lane.enter import enter_lane, is_lock_timeout
from marketplace.auction.models import Bid
from marketplace.auction.settlement import release_rest
from marketplace.common.errors import Conflict
from marketplace.common.money import format_usd_exact
from marketplace.fleet.selectors import slot_at
from marketplace.jobs.models import Job
from marketplace.jobs.services import cancel_job


def cancel_sold_job(
    *, job: Job, cancelled_by: User | None, now: datetime, at_least_micros: int | None = None
) -> Job:
    """End a job at its owner's wish, and find what goes back at this moment's prices.

    The money moves when the job is settled. ``at_least_micros`` is what the owner was shown.

    Raises
    ------
    Conflict
        ``job_ended``: as ``cancel_job``; ``refund_changed``: less would go back than was shown;
        ``zone_busy``: the zone had no turn for it in time. Nothing has changed then.
    """
    bid = Bid.objects.select_related("zone").get(pk=job.bid_id)
    if not list_held(bid=bid, first_slot=slot_at(bid.zone, now) + 1):
        with transaction.atomic():
            job = cancel_job(job=job, cancelled_by=cancelled_by, now=now)
            _check_refund(bid, job, at_least_micros, now=now)
        return job
    warm_lane_book(zone=bid.zone, now=now)
    try:
        with enter_lane(zone=bid.zone, now=now) as lane:
            job = cancel_job(job=job, cancelled_by=cancelled_by, now=now)
            bid.refresh_from_db()
            release_rest(lane, bid=bid, job=job)
            _check_refund(bid, job, at_least_micros, now=now)
    except OperationalError as error:
        if not is_lock_timeout(error):
            raise
        raise Conflict("zone_busy", "The zone is busy. Try again in a moment.") from error
    return job


def _check_refund(bid: Bid, job: Job, at_least_micros: int | None, *, now: datetime) -> None:
    if at_least_micros is None or job.settled_at is not None:
        return
    refund = quote_cancelled(bid=bid, job=job, now=now).refund_micros
    if refund < at_least_micros:
        raise Conflict(
            "refund_changed",
            f"{format_usd_exact(refund)} would go back now, not "
            f"{format_usd_exact(at_least_micros)}. The job goes on.",
            extra={"refund_micros": refund},
        )
