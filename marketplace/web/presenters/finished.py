"""The last finished jobs of a zone, for anybody: how large, at what price, promised and done.

Nothing names a job, its owner or its data: sizes are rounded, and times count from the bid.
"""

from __future__ import annotations

from dataclasses import dataclass
from math import floor, log10

from marketplace.auction.models import Bid
from marketplace.fleet.models import Zone
from marketplace.jobs.models import Job, JobStatus

SHOWN_MAX = 8


@dataclass(frozen=True, slots=True)
class FinishedJob:
    """A finished job as strangers see it."""

    #: Trained, rounded to two digits.
    tokens: int
    #: What was paid in the end.
    paid_micros: int
    #: From the bid on.
    promised_s: float
    took_s: float
    #: False: the market or its input failed it.
    is_done: bool

    @property
    def is_late(self) -> bool:
        return self.took_s > self.promised_s


def list_finished_jobs(zone: Zone) -> list[FinishedJob]:
    """The jobs that succeeded or failed last, the newest first; those that owners ended are not."""
    ended = Job.objects.filter(
        zone=zone,
        finished_at__isnull=False,
        status__in=(JobStatus.SUCCEEDED, JobStatus.FAILED),
    )
    jobs = list(ended.order_by("-finished_at")[:SHOWN_MAX])
    bids = Bid.objects.in_bulk([job.bid_id for job in jobs])
    return [_describe(job, bids[job.bid_id]) for job in jobs if job.bid_id in bids]


def _describe(job: Job, bid: Bid) -> FinishedJob:
    assert job.finished_at is not None
    return FinishedJob(
        tokens=round_size(job.trained_tokens),
        paid_micros=bid.paid_micros,
        promised_s=(job.deadline_at - bid.created_at).total_seconds(),
        took_s=(job.finished_at - bid.created_at).total_seconds(),
        is_done=job.status == JobStatus.SUCCEEDED,
    )


def round_size(count: int) -> int:
    """Round to two digits, so that a size does not tell whose data it was."""
    return count if count < 100 else round(count, 1 - floor(log10(count)))
