"""The list of an organisation's jobs."""

from __future__ import annotations

from datetime import datetime, timedelta
from typing import Any

from django.db.models import Count, F, Q, Sum
from django.http import HttpResponse
from django.shortcuts import render
from django.utils import timezone
from django.views.decorators.http import require_GET

from marketplace.accounts.models import Organisation
from marketplace.auction.models import Bid, BidStatus
from marketplace.auction.selectors import list_bids, search_bids
from marketplace.common import clock
from marketplace.common.errors import NotFound
from marketplace.common.ids import first_id
from marketplace.jobs.models import Job, JobStatus
from marketplace.web.presenters.plans import build_job_ribbon, find_ribbon_nodes
from marketplace.web.presenters.progress import compute_done_share, compute_left_s
from marketplace.web.presenters.receipt import find_kept
from marketplace.web.views.requests import PageRequest, page

ROWS_PER_PAGE = 20
FILTERS = ("all", "active", "done", "refused")


@page
@require_GET
def list_own_jobs(request: PageRequest) -> HttpResponse:
    now = clock.now()
    chosen = request.GET.get("show", "all")
    chosen = chosen if chosen in FILTERS else "all"
    find, before = (
        request.GET.get(name, "").replace("\0", "").strip()[:80] for name in ("find", "before")
    )
    bids = _list_page(request.organisation, chosen, find=find, before=before)
    context = {
        "rows": _rows(bids[:ROWS_PER_PAGE], now=now),
        "tabs": [(name, name.capitalize()) for name in FILTERS],
        "chosen": chosen,
        "find": find,
        "is_later": bool(before),
        "older": bids[ROWS_PER_PAGE - 1].pk if len(bids) > ROWS_PER_PAGE else None,
        "month": _month(request.organisation, now=now),
        "now": now,
    }
    return render(request, "web/jobs.html", context)


def _list_page(owner: Organisation, chosen: str, *, find: str, before: str) -> list[Bid]:
    """The bids of a page, and the first of the next one.

    Each tab has an index: one with few rows reads few of all bids.
    """
    bids = list_bids(owner)
    if before:
        bids = bids.filter(pk__lt=before)
    if chosen == "refused":
        bids = bids.filter(status__in=Bid.LOST)
    elif chosen in ("active", "done"):
        # By their names: there are few, however many bids there were.
        running = Job.objects.filter(organisation=owner, settled_at=None, status__in=Job.ACTIVE)
        pending = Bid.objects.filter(organisation=owner, status__in=Bid.OPEN)
        names = [*running.values_list("bid_id", flat=True), *pending.values_list("pk", flat=True)]
        won = bids.filter(status=BidStatus.ADMITTED)
        bids = won.exclude(pk__in=names) if chosen == "done" else bids.filter(pk__in=names)
    limit = ROWS_PER_PAGE + 1
    if find:
        return search_bids(bids, organisation=owner, words=find, limit=limit)
    return list(bids[:limit])


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
    # Ids sort by time, by the clock of the process that made them.
    lately = first_id("bid", begins_at - timedelta(days=1))
    bids = list_bids(organisation).filter(pk__gte=lately, created_at__gte=begins_at)
    # Of the others nobody knows what was kept.
    told = Q(status=BidStatus.ADMITTED, asks_price=False)
    sums = bids.aggregate(
        bids=Count("pk", filter=~Q(status__in=(*Bid.OPEN, BidStatus.CANCELLED))),
        won=Count("pk", filter=Q(status=BidStatus.ADMITTED)),
        paid=Sum(F("payment_micros") - F("refund_micros"), filter=Q(status=BidStatus.ADMITTED)),
        offered=Sum("price_micros", filter=told),
        charged=Sum("payment_micros", filter=told),
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
