"""The list of an organisation's jobs."""

from __future__ import annotations

from datetime import datetime
from typing import Any

from django.db.models import Count, F, OuterRef, Q, QuerySet, Subquery, Sum
from django.http import HttpResponse
from django.shortcuts import render
from django.utils import timezone
from django.views.decorators.http import require_GET

from marketplace.accounts.models import Organisation
from marketplace.auction.models import Bid, BidStatus
from marketplace.auction.selectors import list_bids
from marketplace.common import clock
from marketplace.common.errors import NotFound
from marketplace.jobs.models import Job, JobStatus
from marketplace.web.presenters.plans import build_job_ribbon, find_ribbon_nodes
from marketplace.web.presenters.progress import compute_done_share, compute_left_s
from marketplace.web.presenters.receipt import find_kept
from marketplace.web.views.requests import PageRequest, page

ROWS_PER_PAGE = 20
FILTERS: dict[str, Q] = {
    "all": Q(),
    "active": Q(status=BidStatus.PENDING) | Q(job_status__in=Job.ACTIVE),
    "done": Q(job_status__in=(JobStatus.SUCCEEDED, JobStatus.FAILED, JobStatus.CANCELLED)),
    "refused": Q(status__in=(BidStatus.REFUSED, BidStatus.CANCELLED)),
}


@page
@require_GET
def list_own_jobs(request: PageRequest) -> HttpResponse:
    now = clock.now()
    chosen = request.GET.get("show", "all")
    chosen = chosen if chosen in FILTERS else "all"
    find = request.GET.get("find", "").replace("\0", "").strip()[:80]
    bids = _with_job_status(list_bids(request.organisation))
    shown = bids.filter(FILTERS[chosen])
    if find:
        shown = shown.filter(
            Q(name__icontains=find)
            | Q(pk__icontains=find)
            | Q(zone__base_model_name__icontains=find)
            | Q(job_id__icontains=find)
        )
    total = shown.count()
    start = min(_number(request.GET.get("from")), max(0, total - 1))
    context = {
        "rows": _rows(list(shown[start : start + ROWS_PER_PAGE]), now=now),
        "tabs": [
            (name, name.capitalize(), bids.filter(wanted).count())
            for name, wanted in FILTERS.items()
        ],
        "chosen": chosen,
        "find": find,
        "total": total,
        "first": start + 1,
        "last": min(total, start + ROWS_PER_PAGE),
        "newer": max(0, start - ROWS_PER_PAGE) if start else None,
        "older": start + ROWS_PER_PAGE if start + ROWS_PER_PAGE < total else None,
        "month": _month(request.organisation, now=now),
        "now": now,
    }
    return render(request, "web/jobs.html", context)


def _with_job_status(bids: QuerySet[Bid]) -> QuerySet[Bid]:
    job = Job.objects.filter(bid_id=OuterRef("pk"))
    return bids.annotate(
        job_status=Subquery(job.values("status")[:1]), job_id=Subquery(job.values("pk")[:1])
    )


def _rows(bids: list[Bid], *, now: datetime) -> list[dict[str, Any]]:
    jobs = {
        job.bid_id: job
        for job in Job.objects.filter(bid_id__in=[bid.pk for bid in bids]).select_related("zone")
    }
    machines = {zone: find_ribbon_nodes(zone) for zone in {job.zone for job in jobs.values()}}
    return [
        {
            "bid": bid,
            "job": job,
            "ribbon": job
            and build_job_ribbon(
                job, now=now, begun_at=bid.created_at, machines=machines[job.zone]
            ),
            "kept": find_kept(bid),
            "share": compute_done_share(job),
            "left_s": compute_left_s(job, now),
        }
        for bid, job in ((bid, jobs.get(bid.pk)) for bid in bids)
    ]


def _month(organisation: Organisation, *, now: datetime) -> dict[str, Any]:
    """The tiles above the list: this month in the visitor's zone."""
    begins_at = timezone.localtime(now).replace(day=1, hour=0, minute=0, second=0, microsecond=0)
    bids = list_bids(organisation).filter(created_at__gte=begins_at)
    sums = bids.aggregate(
        bids=Count("pk", filter=~Q(status__in=(BidStatus.PENDING, BidStatus.CANCELLED))),
        won=Count("pk", filter=Q(status=BidStatus.ADMITTED)),
        paid=Sum(F("payment_micros") - F("refund_micros"), filter=Q(status=BidStatus.ADMITTED)),
        offered=Sum("price_micros", filter=Q(status=BidStatus.ADMITTED)),
        charged=Sum("payment_micros", filter=Q(status=BidStatus.ADMITTED)),
        lost_on_price=Count("pk", filter=Q(refusal="price")),
        lost=Count("pk", filter=Q(status=BidStatus.REFUSED)),
    )
    done = Job.objects.filter(
        organisation=organisation, status=JobStatus.SUCCEEDED, finished_at__gte=begins_at
    )
    kept = (sums["offered"] or 0) - (sums["charged"] or 0)
    return sums | {
        "begins_at": begins_at,
        "kept": kept,
        "kept_share": kept / sums["offered"] if sums["offered"] else None,
        "done": done.count(),
        "in_time": done.filter(finished_at__lte=F("deadline_at")).count(),
    }


def _number(text: str | None) -> int:
    return int(text) if text and text.isascii() and text.isdigit() and len(text) < 9 else 0


def find_own_job(organisation: Organisation, job_id: str) -> Job:
    """A job of an organisation.

    Raises
    ------
    NotFound
        ``unknown_job``.
    """
    job = (
        Job.objects.select_related("zone", "dataset", "created_by")
        .filter(pk=job_id.replace("\0", ""), organisation=organisation)
        .first()
    )
    if job is None:
        raise NotFound("unknown_job", f"{organisation.name} has no job {job_id}.")
    return job
