"""What an organisation's nodes did for settled jobs, and what it was paid for that."""

from __future__ import annotations

from dataclasses import dataclass

from marketplace.accounts.models import Organisation
from marketplace.auction.models import WorkShare
from marketplace.jobs.models import Job


@dataclass(frozen=True, slots=True)
class SettledWork:
    """One node's part of one job."""

    share: WorkShare
    #: Neither its price nor its bid is the provider's to know.
    job: Job


def list_node_work(
    *,
    organisation: Organisation,
    limit: int,
    before: int | None = None,
    node_id: str | None = None,
    job_id: str | None = None,
) -> list[SettledWork]:
    """The work of an organisation's nodes, what was settled last first.

    Parameters
    ----------
    before
        The ``pk`` of the last share of the page before.
    node_id, job_id
        Only work of this node, or for this job.
    """
    shares = WorkShare.objects.filter(organisation=organisation).select_related("node")
    if before is not None:
        shares = shares.filter(pk__lt=before)
    if node_id is not None:
        shares = shares.filter(node=node_id)
    if job_id is not None:
        shares = shares.filter(bid__in=Job.objects.filter(pk=job_id).values("bid_id"))
    found = list(shares.order_by("-pk")[:limit])
    jobs = {job.bid_id: job for job in Job.objects.filter(bid_id__in=[of.bid_id for of in found])}
    return [SettledWork(share, jobs[share.bid_id]) for share in found]
