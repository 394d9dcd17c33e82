"""The jobs list, a job's page, and what can be done with a job."""

from __future__ import annotations

import json
from collections.abc import Iterable
from datetime import datetime, timedelta
from typing import Any

from django.db.models import Count, F, OuterRef, Q, QuerySet, Subquery, Sum
from django.http import HttpResponse
from django.http.response import HttpResponseBase
from django.shortcuts import redirect, render
from django.urls import reverse
from django.utils import timezone
from django.views.decorators.http import require_GET, require_POST

from marketplace.accounts.models import Organisation, User
from marketplace.auction.bidding.choices import explain_choices
from marketplace.auction.endings import quote_cancelling
from marketplace.auction.models import Bid, BidStatus
from marketplace.auction.selectors import list_bids
from marketplace.common import clock
from marketplace.common.errors import NotFound
from marketplace.exports.selectors import list_export_choices, list_pushes
from marketplace.fleet.models import Node
from marketplace.jobs.downloads import (
    get_artifact,
    get_checkpoint,
    open_adapter,
    open_checkpoint,
)
from marketplace.jobs.models import Artifact, EventKind, Job, JobEvent, JobStatus
from marketplace.jobs.selectors import (
    add_excerpts,
    list_job_checkpoints,
    list_job_events,
    list_row_outliers,
    list_samples,
    load_metric_series,
)
from marketplace.jobs.services import cancel_job
from marketplace.vendors.downloads import download_changes
from marketplace.vendors.models import Preparation
from marketplace.vendors.selectors import (
    can_be_disputed,
    find_preparation,
    has_open_dispute,
    list_accesses,
)
from marketplace.web.presenters.plans import build_job_ribbon, find_ribbon_nodes, label_node
from marketplace.web.presenters.progress import serialize_plan
from marketplace.web.presenters.receipt import build_receipt, find_kept, list_bid_lines
from marketplace.web.presenters.warm import present_lineage
from marketplace.web.templatetags.finetender import usd
from marketplace.web.views.requests import PageRequest, page

ROWS_PER_PAGE = 20
LATEST_EVENTS = 6
#: Jobs with less time than this are shown to the second.
SHORT = timedelta(hours=1)
TABS = ("metrics", "events", "logs", "checkpoints", "data", "config", "receipt")
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
            "share": _share(job),
            "left_s": _left_s(job, now),
        }
        for bid, job in ((bid, jobs.get(bid.pk)) for bid in bids)
    ]


def _share(job: Job | None) -> float | None:
    if job is None or not job.total_steps:
        return None
    if job.status == JobStatus.SUCCEEDED:
        return 1.0
    return min(1.0, job.step / job.total_steps)


def _left_s(job: Job | None, now: datetime) -> float | None:
    if job is None or job.eta_at is None or not job.is_active:
        return None
    return max(0.0, (job.eta_at - now).total_seconds())


def _month(organisation: Organisation, *, now: datetime) -> dict[str, Any]:
    """The tiles above the list: this month in the visitor's zone."""
    begins_at = timezone.localtime(now).replace(day=1, hour=0, minute=0, second=0, microsecond=0)
    bids = Bid.objects.filter(
        organisation=organisation, created_at__gte=begins_at, dataset__isnull=False
    )
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


def _job_of(organisation: Organisation, job_id: str) -> Job:
    job = (
        Job.objects.select_related("zone", "dataset", "created_by")
        .filter(pk=job_id.replace("\0", ""), organisation=organisation)
        .first()
    )
    if job is None:
        raise NotFound("unknown_job", f"{organisation.name} has no job {job_id}.")
    return job


@page
@require_GET
def show_job(request: PageRequest, job_id: str, tab: str = "metrics") -> HttpResponse:
    if tab not in TABS:
        raise NotFound("unknown_tab", "A job's page has no such part.")
    now = clock.now()
    job = _job_of(request.organisation, job_id)
    bid = Bid.objects.select_related("zone").get(pk=job.bid_id)
    checkpoints = list(list_job_checkpoints(job))
    every_checkpoint = list(job.checkpoints.order_by("step"))
    events = list(list_job_events(job).order_by("-seq"))
    artifact = Artifact.objects.filter(job=job).first()
    machines = find_ribbon_nodes(job.zone)
    outliers = list_row_outliers(job)
    context = {
        "job": job,
        "bid": bid,
        "now": now,
        "tab": tab,
        "tabs": _tabs(job, events, checkpoints),
        "ribbon": build_job_ribbon(
            job,
            now=now,
            begun_at=bid.created_at,
            checkpoints=every_checkpoint,
            machines=machines,
        ),
        "plan_data": serialize_plan(bid, job, machines) if tab == "metrics" else None,
        "outliers": add_excerpts(outliers, dataset=job.dataset) if tab == "data" else outliers,
        "samples": list_samples(job) if tab == "metrics" else [],
        **_describe_preparation(find_preparation(job), now),
        "export_choices": list_export_choices(job) if artifact is not None else [],
        "pushes": list_pushes(job) if artifact is not None else [],
        "share": _share(job),
        "left_s": _left_s(job, now),
        "kept_micros": find_kept(bid),
        "paid_share": min(1.0, bid.paid_micros / bid.price_micros),
        "was_stopped": job.status in (JobStatus.CANCELLED, JobStatus.FAILED),
        "decide_s": bid.decided_at and (bid.decided_at - bid.created_at).total_seconds(),
        "finish_at": job.finished_at or job.finish_planned_at,
        "time_shares": _time_shares(bid, job, now),
        "events": _list_events(events),
        "latest_events": _list_events(events[:LATEST_EVENTS]),
        "checkpoints": checkpoints,
        "artifact": artifact,
        "lines": list_bid_lines(bid),
        "receipt": build_receipt(bid, job=job),
        "lineage": present_lineage(job, bid),
        "node_name": _current_node(job),
        "config_text": _format_config(job),
        "choices": explain_choices(
            bid.resolved,
            adapter=bid.adapter,
            training=bid.training,
            rows=job.dataset.rows,
            sequence_length_limit=job.zone.max_sequence_length,
        ),
        # The plan of a short job is shown to the second.
        "time_seconds": job.deadline_at - bid.created_at < SHORT,
        **_cancel_effect(bid, job, now=now),
        "series": load_metric_series(job)[-400:],
    }
    return render(request, "web/job.html", context)


def _describe_preparation(preparation: Preparation | None, now: datetime) -> dict[str, Any]:
    return {
        "preparation": preparation,
        "accesses": [] if preparation is None else list_accesses(preparation),
        "can_dispute": preparation is not None and can_be_disputed(preparation, now=now),
        "is_disputed": preparation is not None and has_open_dispute(preparation),
    }


def _format_config(job: Job) -> str:
    """A job's settings; whose adapter a warm start began with is not among them."""
    settings = {name: job.spec[name] for name in ("adapter", "training")}
    return json.dumps({"base_model": job.zone.base_model_name, **settings}, indent=2)


def _tabs(job: Job, events: list[Any], checkpoints: list[Any]) -> list[dict[str, Any]]:
    counts = {"events": len(events), "checkpoints": len(checkpoints)}
    return [
        {
            "name": name,
            "label": name.capitalize(),
            "count": counts.get(name),
            "href": reverse("job_detail", args=[job.pk])
            if name == "metrics"
            else reverse("job_tab", args=[job.pk, name]),
        }
        for name in TABS
    ]


def _time_shares(bid: Bid, job: Job, now: datetime) -> dict[str, float]:
    """Of the time from bid to deadline: passed, and to spare."""
    whole = (job.deadline_at - bid.created_at).total_seconds() or 1.0
    finish = job.finished_at or job.finish_planned_at
    until = min(finish, now) if job.is_active else finish
    return {
        "passed": (until - bid.created_at).total_seconds() / whole,
        "spare": max(0.0, (job.deadline_at - finish).total_seconds() / whole),
    }


#: The dot beside an event.
_TONES = {
    EventKind.OPENED: "good",
    EventKind.STARTED: "run",
    EventKind.PAUSED: "idle",
    EventKind.MOVING: "move",
    EventKind.NODE_LOST: "bad",
    EventKind.FAULT: "bad",
    EventKind.REPLANNED: "move",
    EventKind.ADAPTER_STORED: "good",
    EventKind.SUCCEEDED: "good",
    EventKind.FAILED: "bad",
}


def _list_events(events: Iterable[JobEvent]) -> list[dict[str, Any]]:
    """Events with the names of who did them."""
    events = list(events)
    actors = {event.actor for event in events}
    names = {node.pk: label_node(node) for node in Node.objects.filter(pk__in=actors)}
    names |= {user.pk: user.get_short_name() for user in User.objects.filter(pk__in=actors)}
    return [
        {
            "at": event.at,
            "kind": event.kind,
            "tone": _TONES.get(EventKind(event.kind), ""),
            "message": event.message,
            "who": names.get(event.actor, "the house"),
        }
        for event in events
    ]


def _cancel_effect(bid: Bid, job: Job, *, now: datetime) -> dict[str, str]:
    """What cancelling does to the money, before it is pressed."""
    if not job.is_active:
        return {}
    due = quote_cancelling(bid=bid, job=job, now=now)
    used_micros = (bid.payment_micros or 0) - due.refund_micros - due.fee_micros
    kept = []
    if used_micros:
        kept.append(f"{usd(used_micros)} for what was done is not returned.")
    if due.fee_micros:
        kept.append(
            f"{usd(due.fee_micros)} is the reservation fee: slots were kept for this job, and "
            + ("it did little of its work." if used_micros else "nothing has run yet.")
        )
    words = " ".join(kept) or "Nothing has run yet, so all of it returns."
    return {
        "cancel_words": f"You get back {usd(due.refund_micros)} of "
        f"{usd(bid.payment_micros or 0)}. {words}",
        "cancel_label": f"Cancel and get {usd(due.refund_micros)} back",
    }


def _current_node(job: Job) -> str:
    held = job.slices.filter(status="open").select_related("node").first()
    return label_node(held.node) if held else ""


@page
@require_POST
def stop_job(request: PageRequest, job_id: str) -> HttpResponse:
    cancel_job(
        job=_job_of(request.organisation, job_id), cancelled_by=request.user, now=clock.now()
    )
    return redirect("job_detail", job_id=job_id)


@page
@require_GET
def download_adapter(request: PageRequest, job_id: str) -> HttpResponseBase:
    job = _job_of(request.organisation, job_id)
    return open_adapter(
        get_artifact(job), name=_file_name(job), range_header=request.headers.get("Range")
    )


@page
@require_GET
def download_vendor_changes(request: PageRequest, job_id: str) -> HttpResponseBase:
    """What a vendor changed or left out, row by row."""
    job = _job_of(request.organisation, job_id)
    return download_changes(
        job=job, name=_file_name(job), range_header=request.headers.get("Range")
    )


@page
@require_GET
def download_checkpoint(request: PageRequest, job_id: str, checkpoint_id: str) -> HttpResponseBase:
    job = _job_of(request.organisation, job_id)
    checkpoint = get_checkpoint(job, checkpoint_id)
    return open_checkpoint(
        checkpoint, name=_file_name(job), range_header=request.headers.get("Range")
    )


def _file_name(job: Job) -> str:
    return "".join(c if c.isascii() and (c.isalnum() or c in "-_.") else "-" for c in job.name)
