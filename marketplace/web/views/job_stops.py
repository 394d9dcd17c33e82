"""Cancelling, pausing and resuming a job: each page says first what it does to the money."""

from __future__ import annotations

import uuid
from contextlib import suppress
from datetime import datetime

from django.http import HttpResponse
from django.shortcuts import redirect, render
from django.views.decorators.http import require_http_methods

from marketplace.auction.bidding.job_request import JobRequest
from marketplace.auction.bidding.place import NewBid
from marketplace.auction.bidding.quotes import BidQuote, make_quote
from marketplace.auction.bidding.resuming import RESUMED, find_paused_job, find_price_left
from marketplace.auction.bidding.terms import parse_price
from marketplace.auction.cancelling import cancel_sold_job, quote_cancelling
from marketplace.auction.models import Bid
from marketplace.auction.pausing import check_can_pause, pause_sold_job
from marketplace.common import clock
from marketplace.common.errors import Conflict, UserError
from marketplace.common.request_rates import Counter, check_rate
from marketplace.jobs.models import Job, JobStatus
from marketplace.jobs.selectors import list_job_checkpoints
from marketplace.web.forms import ResumeForm, get_bid_defaults
from marketplace.web.templatetags.finetender import usd_input
from marketplace.web.views.bid_form import format_local
from marketplace.web.views.jobs import find_own_job
from marketplace.web.views.payments import build_pay_choice, place_paid_bid
from marketplace.web.views.requests import PageRequest, page, show_refusal


@page
@require_http_methods(["GET", "POST"])
def stop_job(request: PageRequest, job_id: str, is_pause: bool = False) -> HttpResponse:
    """Say what goes back for a job, and end it at its owner's word if no less does by then."""
    now, job = clock.now(), find_own_job(request.organisation, job_id)
    if request.method == "POST":
        shown = request.POST.get("at_least", "")
        at_least = int(shown[:18]) if shown.isdecimal() else None
        with show_refusal(request):
            if is_pause:
                pause_sold_job(job=job, paused_by=request.user, now=now, at_least_micros=at_least)
            else:
                cancel_sold_job(
                    job=job, cancelled_by=request.user, now=now, at_least_micros=at_least
                )
            return redirect("job_detail", job_id=job.pk)
        return redirect("job_pause" if is_pause else "job_stop", job_id=job.pk)
    if not job.is_active:
        return redirect("job_detail", job_id=job.pk)
    if is_pause:
        check_can_pause(job)
    # As the API's preview: it searches for a price.
    check_rate(Counter("quotes", job.organisation_id), whose="your organisation")
    bid = Bid.objects.select_related("zone").get(pk=job.bid_id)
    try:
        due, problem = quote_cancelling(bid=bid, job=job, now=now), ""
    except Conflict as error:
        # It can be ended all the same.
        due, problem = None, str(error)
    context = {
        "job": job,
        "bid": bid,
        "due": due,
        "problem": problem,
        "is_pause": is_pause,
        "steps_again": max(0, job.step - job.checkpoint_step),
    }
    return render(request, "web/job_cancel.html", context)


@page
@require_http_methods(["GET", "POST"])
def resume_job(request: PageRequest, job_id: str) -> HttpResponse:
    """Say what the rest of a paused job costs, and bid for it; ``do=price`` only says it again."""
    now, job = clock.now(), find_own_job(request.organisation, job_id)
    if job.status != JobStatus.PAUSED:
        return redirect("job_detail", job_id=job.pk)
    form = ResumeForm(request.POST if request.method == "POST" else _build_initial(job, now))
    status = 200
    if request.POST.get("do") == "place" and form.is_valid():
        try:
            return place_paid_bid(request, _read_bid(request, job, form), now=now)
        except UserError as error:
            form.refuse(error)
            status = error.status
    quote, problem = _quote(request, job, form, now=now)
    context = {
        "job": job,
        "bid": Bid.objects.get(pk=job.bid_id),
        "form": form,
        "quote": quote,
        "problem": problem,
        "checkpoint": list_job_checkpoints(job).first(),
        "now": now,
        **build_pay_choice(request),
    }
    return render(request, "web/job_resume.html", context, status=status)


def _build_initial(job: Job, now: datetime) -> dict[str, str]:
    deadline_at = job.deadline_at
    if deadline_at <= now:
        deadline_at = get_bid_defaults(zone=job.zone, now=now)["deadline"]
    price = ""
    # Where nothing is left, or not known yet, its owner names one.
    with suppress(UserError):
        price = usd_input(find_price_left(job))
    return {
        "price": price,
        "deadline": format_local(deadline_at),
        "key": uuid.uuid4().hex,
    }


def _quote(
    request: PageRequest, job: Job, form: ResumeForm, *, now: datetime
) -> tuple[BidQuote | None, str]:
    """The price of the rest by the deadline in the form, or why there is none."""
    if not form.is_valid():
        return None, ""
    check_rate(Counter("quotes", job.organisation_id), whose="your organisation")
    asked = JobRequest(
        organisation=request.organisation,
        zone=job.zone,
        dataset=job.dataset,
        adapter={},
        training={},
        model=RESUMED + job.pk,
    )
    try:
        quote = make_quote(asked, deadline_at=form.cleaned_data["deadline"], now=now)
    except UserError as error:
        return None, error.message
    return quote, quote.refusal_text


def _read_bid(request: PageRequest, job: Job, form: ResumeForm) -> NewBid:
    paused = find_paused_job(job.pk, organisation=request.organisation)
    return NewBid(
        organisation=request.organisation,
        placed_by=request.user,
        zone=paused.zone,
        dataset=paused.dataset,
        name=paused.name,
        adapter={},
        training={},
        model=RESUMED + paused.pk,
        price_micros=parse_price(form.cleaned_data["price"]),
        deadline_at=form.cleaned_data["deadline"],
        idempotency_key=f"form-{form.cleaned_data['key']}",
    )
