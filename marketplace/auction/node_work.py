"""What an organisation's nodes did for settled jobs, and what it was paid for that."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import datetime

from django.db.models import Count, Sum
from django.db.models.functions import Substr

from marketplace.accounts.models import Organisation
from marketplace.auction.models import WorkShare
from marketplace.auction.models.bids import HOLD_PREFIX
from marketplace.fleet.models import Node
from marketplace.jobs.models import Job
from marketplace.payments.models import Earning, EarningKind


@dataclass(frozen=True, slots=True)
class SettledWork:
    """One node's part of one job."""

    share: WorkShare
    #: Neither its price nor its bid is the provider's to know.
    job: Job

    @property
    def micros_per_unit(self) -> float | None:
        """What a work unit was paid, micro-dollars; ``None`` where no unit counted."""
        return self.share.paid_micros / self.share.units if self.share.units else None


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


@dataclass(frozen=True, slots=True)
class NodeEarnings:
    """What one node did of settled jobs, and what it was paid."""

    node: Node
    jobs: int
    units: int
    paid_micros: int

    @property
    def micros_per_unit(self) -> float | None:
        """What a work unit was paid on average, micro-dollars."""
        return self.paid_micros / self.units if self.units else None


def sum_latest_work(*, node: Node, limit: int) -> NodeEarnings:
    """Sum up what a node did of its latest settled jobs, at most ``limit``, and was paid."""
    latest = WorkShare.objects.filter(node=node).order_by("-pk")[:limit]
    sums = latest.aggregate(
        jobs=Count("pk"), units=Sum("units", default=0), paid_micros=Sum("paid_micros", default=0)
    )
    return NodeEarnings(node, **sums)


def sum_node_work(*, organisation: Organisation, since: datetime) -> list[NodeEarnings]:
    """Sum up by node what an organisation earned with jobs since a moment; the most first.

    Two queries that read the lines of that time, however long the organisation's past is.
    """
    lines = Earning.objects.filter(
        organisation=organisation,
        kind=EarningKind.PROVIDER,
        returned_at=None,
        accrued_at__gt=since,
        reference__startswith=HOLD_PREFIX,
    )
    bids = lines.annotate(named=Substr("reference", len(HOLD_PREFIX) + 1)).values("named")
    sums = (
        WorkShare.objects.filter(organisation=organisation, bid__in=bids)
        .values_list("node")
        .annotate(jobs=Count("bid"), units=Sum("units"), paid=Sum("paid_micros"))
    )
    found = {node_id: rest for node_id, *rest in sums}
    nodes = Node.objects.in_bulk(found)
    return sorted(
        (NodeEarnings(nodes[node_id], *rest) for node_id, rest in found.items()),
        key=lambda row: (-row.paid_micros, row.node.name),
    )
