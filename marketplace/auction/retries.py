"""Jobs whose money, or whose cells, could not be settled, and when that is tried again."""

from __future__ import annotations

import logging
from datetime import datetime, timedelta

from marketplace.auction.models import Bid
from marketplace.common.backoff import compute_backoff
from marketplace.jobs.models import Job

log = logging.getLogger(__name__)

#: A job that could not be settled is tried again after this, and then after longer.
RETRY_AFTER = timedelta(seconds=30)
RETRY_MOST = timedelta(hours=1)


def put_off(job: Job, error: Exception, *, now: datetime) -> None:
    """Note why a job could not be settled, and when that is tried again."""
    log.error("job %s cannot be settled and is tried again", job.pk, exc_info=error)
    bid = Bid.objects.filter(pk=job.bid_id)
    failures = (bid.values_list("failures", flat=True).first() or 0) + 1
    bid.update(
        failure=f"{type(error).__name__}: {error}"[:500],
        failures=failures,
        retry_at=now + compute_backoff(failures=failures, first=RETRY_AFTER, most=RETRY_MOST),
    )
