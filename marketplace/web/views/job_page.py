"""A job's page."""

from __future__ import annotations

import json
from collections.abc import Iterable
from datetime import datetime, timedelta
from typing import Any

from django.contrib import messages
from django.http import HttpResponse
from django.shortcuts import redirect, render
from django.urls import reverse
from django.views.decorators.http import require_GET, require_POST

from marketplace.accounts.erasure import find_deletion
from marketplace.accounts.models import Subject, User
from marketplace.auction.bidding.auto_settings import explain_choices
from marketplace.auction.bidding.resuming import list_resuming_bids
from marketplace.auction.models import Bid
from marketplace.auction.models.disputes import DISPUTABLE_FOR
from marketplace.auction.pausing import can_pause
from marketplace.auction.result_disputes import can_be_disputed, find_dispute, open_result_dispute
from marketplace.common import clock
from marketplace.common.errors import NotFound
from marketplace.fleet.models import Node
from marketplace.jobs.event_files import read_events
from marketplace.jobs.models import Artifact, EventKind, Job, JobEvent, JobStatus
from marketplace.jobs.selectors import (
    add_excerpts,
    list_job_checkpoints,
    list_row_outliers,
    list_samples,
    load_metric_series,
)
from marketplace.jobs.services.opening import FIRST_SEQ
from marketplace.vendors import selectors as vendors
from marketplace.vendors.agreement import count_agreement
from marketplace.vendors.models import Preparation
from marketplace.vendors.selectors import find_preparation
from marketplace.web.presenters.plans import build_job_ribbon, find_ribbon_nodes, label_node
from marketplace.web.presenters.progress import compute_done_share, compute_left_s, serialize_plan
from marketplace.web.presenters.receipt import build_receipt, find_kept, list_bid_lines
from marketplace.web.presenters.warm import present_lineage
from marketplace.web.views.jobs import find_own_job
from marketplace.web.views.requests import PageRequest, page, show_refusal
from workers.protocol.memory import find_row_limit
from workers.protocol.wire import to_json

LATEST_EVENTS = 6
#: Jobs with less time than this are shown to the second.
SHORT = timedelta(hours=1)
TABS = ("metrics", "events", "logs", "checkpoints", "data", "config", "receipt")


@page
@require_GET
def show_job(request: PageRequest, job_id: str, tab: str = "metrics") -> HttpResponse:
    if tab not in TABS:
        raise NotFound("unknown_tab", "A job's page has no such part.")
    now = clock.now()
    job = find_own_job(request.organisation, job_id)
    bid = Bid.objects.select_related("zone").get(pk=job.bid_id)
    context = {
        "job": job,
        "bid": bid,
        "now": now,
        "tab": tab,
        **describe_progress(bid, job, tab, now),
        **_describe_results(job, tab),
        **describe_money(bid, job, now),
        **_describe_preparation(find_preparation(job), now),
        **_describe_dispute(job, now),
        "deletion": find_deletion(Subject.JOB, job.pk),
        "lineage": present_lineage(job, bid),
        **_describe_pauses(job),
        "config_text": _format_config(job),
        "choices": explain_choices(
            bid.resolved,
            adapter=bid.terms.adapter,
            training=bid.terms.training,
            rows=job.dataset.rows,
            sequence_length_limit=find_row_limit(job.zone.max_sequence_length, job.dataset.format),
        ),
    }
    return render(request, "web/job.html", context)


@page
@require_POST
def dispute_result(request: PageRequest, job_id: str) -> HttpResponse:
    job = find_own_job(request.organisation, job_id)
    with show_refusal(request):
        open_result_dispute(
            job=job, reason=request.POST.get("reason", ""), opened_by=request.user, now=clock.now()
        )
        messages.success(request, "Your dispute is open. The provider's pay waits.")
    return redirect("job_detail", job_id=job.pk)


def describe_progress(bid: Bid, job: Job, tab: str, now: datetime) -> dict[str, Any]:
    """How far the job is, where it runs, and what happened to it."""
    machines = find_ribbon_nodes(job.zone)
    checkpoints = list(list_job_checkpoints(job))
    events = read_events(job, is_shown=True)[::-1]
    return {
        "tabs": _tabs(job, events, checkpoints),
        "ribbon": build_job_ribbon(
            job,
            now=now,
            begun_at=bid.created_at,
            checkpoints=list(job.checkpoints.order_by("step")),
            machines=machines,
        ),
        "plan_data": serialize_plan(bid, job, machines) if tab == "metrics" else None,
        "share": compute_done_share(job),
        "left_s": compute_left_s(job, now),
        "was_stopped": job.status in (*Job.STOPPED, JobStatus.FAILED),
        "decide_s": bid.decided_at and (bid.decided_at - bid.created_at).total_seconds(),
        "finish_at": job.finished_at or job.finish_planned_at,
        "time_shares": _time_shares(bid, job, now),
        # The plan of a short job is shown to the second.
        "time_seconds": job.deadline_at - bid.created_at < SHORT,
        "node_name": _current_node(job),
        "events": _list_events(events),
        # A job's first event is in the file.
        "is_archive_unread": job.event_file_id is not None
        and all(event.seq > FIRST_SEQ for event in events),
        "latest_events": _list_events(events[:LATEST_EVENTS]),
        "checkpoints": checkpoints,
        "series": load_metric_series(job, is_shown=True)[-400:],
    }


def _describe_results(job: Job, tab: str) -> dict[str, Any]:
    """What the job made, and what its data did."""
    artifact = Artifact.objects.filter(job=job).first()
    outliers = list_row_outliers(job)
    return {
        "outliers": add_excerpts(outliers, dataset=job.dataset) if tab == "data" else outliers,
        "samples": list_samples(job) if tab == "metrics" else [],
        "artifact": artifact,
    }


def _describe_pauses(job: Job) -> dict[str, Any]:
    """The job that it goes on with, and the one that goes on with it."""
    own = Job.objects.filter(organisation=job.organisation_id)
    resumes, resumed_by = job.terms.resumes, None
    if job.status == JobStatus.PAUSED:
        resumed_by = own.filter(bid_id__in=list_resuming_bids(job.pk).values("pk")).first()
    return {
        "can_pause": job.is_active and can_pause(job),
        "resumed_from": None if resumes is None else own.filter(pk=resumes.job_id).first(),
        "resumed_by": resumed_by,
    }


def describe_money(bid: Bid, job: Job, now: datetime) -> dict[str, Any]:
    return {
        "kept_micros": find_kept(bid),
        "paid_share": min(1.0, bid.paid_micros / bid.price_micros),
        "lines": list_bid_lines(bid),
        "receipt": build_receipt(bid, job=job),
    }


def _describe_preparation(preparation: Preparation | None, now: datetime) -> dict[str, Any]:
    return {
        "preparation": preparation,
        "accesses": [] if preparation is None else vendors.list_accesses(preparation),
        "can_dispute": preparation is not None and vendors.can_be_disputed(preparation, now=now),
        "agreement": None if preparation is None else count_agreement(preparation),
        "is_disputed": preparation is not None and vendors.has_open_dispute(preparation),
    }


def _describe_dispute(job: Job, now: datetime) -> dict[str, Any]:
    return {
        "dispute": find_dispute(job),
        "can_dispute_result": can_be_disputed(job, now=now),
        "disputable_until": job.settled_at and job.settled_at + DISPUTABLE_FOR,
    }


def _format_config(job: Job) -> str:
    """A job's settings; they do not name the owner of a warm start's adapter."""
    settings = {name: to_json(getattr(job.terms, name)) for name in ("adapter", "training")}
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


def _current_node(job: Job) -> str:
    held = job.slices.filter(status="open").select_related("node").first()
    return label_node(held.node) if held else ""
