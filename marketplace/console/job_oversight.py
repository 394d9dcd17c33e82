"""Anybody's job and bid, as an operator looks into them and acts. Each look is in the audit log."""

from __future__ import annotations

from typing import Any

from django.contrib import messages
from django.db.models import Count, F, Max, Min, Q, QuerySet, Sum
from django.http import HttpResponse
from django.shortcuts import redirect, render
from django.views.decorators.http import require_GET, require_POST

from marketplace.accounts.oversight import REASON_MAX
from marketplace.auction.models import Bid, Reservation
from marketplace.auction.operator_acts import (
    end_by_operator,
    refund_by_operator,
    replan_by_operator,
)
from marketplace.common import clock
from marketplace.common.errors import NotFound
from marketplace.common.money import format_usd_exact, to_micros
from marketplace.console.queries_in_address import read_text
from marketplace.fleet.selectors import slot_ends_at, slot_starts_at
from marketplace.jobs.models import EventKind, Job, JobStatus, Slice
from marketplace.payments.chargebacks import measure_repayable
from marketplace.payments.models import Hold
from marketplace.payments.selectors import list_entries
from marketplace.web.views.job_page import describe_money, describe_progress
from marketplace.web.views.requests import PageRequest, operator_page, show_refusal

ROWS_PER_PAGE = 25
#: What the list shows, by the name in its address.
FILTERS: dict[str, tuple[str, Q]] = {
    "active": ("Active", Q(status__in=Job.ACTIVE)),
    "replan": ("Waits for a plan", Q(status__in=Job.ACTIVE, needs_replan=True)),
    "late": (
        "Will be late",
        Q(status__in=Job.ACTIVE, finish_planned_at__gt=F("deadline_at")),
    ),
    "failed": ("Failed", Q(status=JobStatus.FAILED)),
    "all": ("All", Q()),
}
#: Leases, plans and movements of money that one page shows.
ROWS_SHOWN = 60


@operator_page
@require_GET
def list_jobs(request: PageRequest) -> HttpResponse:
    """Jobs of all organisations; ``find`` is a part of an id, a name or an organisation."""
    show = request.GET.get("show", "active")
    show = show if show in FILTERS else "active"
    find, before = read_text(request, "find"), read_text(request, "before")
    found = _find_jobs(show, find)
    if before:
        found = found.filter(pk__lt=before)
    jobs = list(found[: ROWS_PER_PAGE + 1])
    context = {
        "jobs": jobs[:ROWS_PER_PAGE],
        "older": jobs[ROWS_PER_PAGE - 1].pk if len(jobs) > ROWS_PER_PAGE else None,
        "is_later": bool(before),
        "tabs": [(name, label) for name, (label, _) in FILTERS.items()],
        "show": show,
        "find": find,
        "now": clock.now(),
    }
    return render(request, "console/operator_jobs.html", context)


def _find_jobs(show: str, find: str) -> QuerySet[Job]:
    jobs = Job.objects.filter(FILTERS[show][1]).select_related("organisation", "zone")
    if find:
        named = Q(pk__icontains=find) | Q(name__icontains=find) | Q(bid_id=find)
        jobs = jobs.filter(named | Q(organisation__name__icontains=find))
    return jobs.order_by("-pk")


@operator_page
@require_GET
def show_any_job(request: PageRequest, job_id: str) -> HttpResponse:
    """The owner's page without its data, with leases, plans, its nodes' log, and acts."""
    now, job = clock.now(), _find_job(job_id)
    bid = Bid.objects.select_related("zone", "organisation").get(pk=job.bid_id)
    slices = Slice.objects.filter(job=job).select_related("node").order_by("-opened_at")
    progress = describe_progress(bid, job, "metrics", now)
    # A job of an hour has hundreds.
    told = [one for one in progress["events"] if one["kind"] != EventKind.CHECKPOINTED]
    context = {
        "job": job,
        "bid": bid,
        "now": now,
        **progress,
        "events": told,
        **describe_money(bid, job, now),
        "slices": slices[:ROWS_SHOWN],
        "plans": _list_plans(bid),
        "refundable": _find_refundable(job, bid),
        "reason_max": REASON_MAX,
    }
    return render(request, "console/operator_job.html", context)


def _list_plans(bid: Bid) -> list[dict[str, Any]]:
    """Each plan that the bid had, the latest first: from when until when, on how many nodes."""
    plans = (
        Reservation.objects.filter(bid=bid)
        .values("revision")
        .annotate(
            first=Min("slot"),
            last=Max("slot"),
            cells=Count("pk"),
            nodes=Count("node", distinct=True),
            released=Count("pk", filter=Q(released_at__isnull=False)),
            released_at=Max("released_at"),
            cost=Sum("operational_cost_micros"),
        )
        .order_by("-revision")[:ROWS_SHOWN]
    )
    return [
        plan
        | {
            "starts_at": slot_starts_at(bid.zone, plan["first"]),
            "ends_at": slot_ends_at(bid.zone, plan["last"]),
        }
        for plan in plans
    ]


def _find_refundable(job: Job, bid: Bid) -> int:
    """What an operator may give back now; nothing before the job's money is settled."""
    settled = job.settled_at is not None and bid.rent_due_micros is None
    return measure_repayable(hold_reference=bid.hold_reference) if settled else 0


@operator_page
@require_POST
def act_on_job(request: PageRequest, job_id: str) -> HttpResponse:
    """``do``: replan, cancel or refund, for a ``reason``; a refund has an ``amount``."""
    job, now = _find_job(job_id), clock.now()
    act, reason = request.POST.get("do", ""), request.POST.get("reason", "")
    with show_refusal(request):
        if act == "replan":
            replan_by_operator(job=job, reason=reason, asked_by=request.user, now=now)
            messages.success(request, "The auction looks for a new plan. Its owner pays no more.")
        elif act == "cancel":
            end_by_operator(job=job, reason=reason, ended_by=request.user, now=now)
            messages.success(
                request, "The job has ended. What was paid goes back as its money is settled."
            )
        elif act == "refund":
            text = request.POST.get("amount", "").strip().removeprefix("$")
            amount = to_micros(text, param="amount")
            is_new = refund_by_operator(
                bid=Bid.objects.get(pk=job.bid_id),
                amount_micros=amount,
                reason=reason,
                refunded_by=request.user,
                now=now,
            )
            words = f"{format_usd_exact(amount)} went back to its owner"
            before = "; nothing more did now: the reason and the amount are the same"
            messages.success(request, f"{words}." if is_new else f"{words} before{before}.")
    return redirect("operator_job", job_id=job.pk)


@operator_page
@require_GET
def show_any_bid(request: PageRequest, bid_id: str) -> HttpResponse:
    """What was asked, what the auction answered, and how the bid's money moved."""
    bids = Bid.objects.select_related("zone", "organisation", "placed_by", "dataset", "bundle")
    bid = bids.filter(pk=bid_id.replace("\0", "")).first()
    if bid is None:
        raise NotFound("unknown_bid", "There is no such bid.")
    job = Job.objects.filter(bid_id=bid.pk).first()
    context = {
        "bid": bid,
        "job": job,
        "now": clock.now(),
        "plans": _list_plans(bid),
        "hold": Hold.objects.filter(reference=bid.hold_reference).first(),
        "entries": list_entries(hold_reference=bid.hold_reference, limit=ROWS_SHOWN),
        "parts": sorted((bid.parts or {}).items()),
    }
    return render(request, "console/operator_bid.html", context)


def _find_job(job_id: str) -> Job:
    jobs = Job.objects.select_related("zone", "dataset", "created_by", "organisation")
    job = jobs.filter(pk=job_id.replace("\0", "")).first()
    if job is None:
        raise NotFound("unknown_job", "There is no such job.")
    return job
