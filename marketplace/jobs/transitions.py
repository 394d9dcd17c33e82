"""The closed table of what may follow what in the life of a job."""

from __future__ import annotations

from collections.abc import Mapping

from marketplace.common.errors import MarketFault
from marketplace.jobs.models import Job, JobStatus

ALLOWED: Mapping[JobStatus, frozenset[JobStatus]] = {
    JobStatus.QUEUED: frozenset({JobStatus.RUNNING, JobStatus.FAILED, *Job.STOPPED}),
    JobStatus.RUNNING: frozenset({JobStatus.QUEUED, JobStatus.MOVING, *Job.ENDED}),
    # A job with the order to leave a node may end there before it does.
    JobStatus.MOVING: frozenset({JobStatus.QUEUED, JobStatus.RUNNING, *Job.ENDED}),
    **dict.fromkeys(Job.ENDED, frozenset()),
}


class WrongTransition(MarketFault):
    """A step that the table does not have: a mistake of ours, never of the caller."""


def set_status(job: Job, status: JobStatus) -> None:
    """Move a locked job on; staying where it is changes nothing.

    Raises
    ------
    WrongTransition
        The job is left as it was.
    """
    current = JobStatus(job.status)
    if status == current:
        return
    if status not in ALLOWED[current]:
        raise WrongTransition(f"{job.pk} cannot go from {current} to {status}")
    job.status = status
