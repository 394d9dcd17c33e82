"""The express lane: a price by SLO, an answer at once, and the bank of prompts."""

from __future__ import annotations

import uuid
from dataclasses import asdict
from datetime import datetime, timedelta
from typing import Any

from django.contrib import messages
from django.http import HttpResponse
from django.shortcuts import redirect, render
from django.views.decorators.http import require_GET, require_http_methods, require_POST

from marketplace.auction.bidding.job_request import JobRequest
from marketplace.auction.pay_rule import EXPRESS_LEAST_PERCENT, EXPRESS_REFUNDS
from marketplace.common import clock
from marketplace.common.errors import UserError
from marketplace.express.bank import get_sharing, give_consent, withdraw_prompt
from marketplace.express.models import (
    BankPrompt,
    ExpressLane,
    ExpressRequest,
    LookupRecord,
    RequestStatus,
    Sharing,
)
from marketplace.express.previews import list_slo_previews
from marketplace.express.requests import (
    ExpressOrder,
    ExpressTerms,
    get_request,
    measure_express_job,
    place_request,
    wait_for_answer,
)
from marketplace.jobs.models import Job, JobStatus
from marketplace.jobs.selectors import list_datasets
from marketplace.payments.selectors import get_wallet
from marketplace.web.express_form import ExpressForm
from marketplace.web.views.requests import PageRequest, page


@page
@require_http_methods(["GET", "POST"])
def show_express_form(request: PageRequest) -> HttpResponse:
    """The form: model, rows and an SLO with its price; the answer comes at once."""
    now = clock.now()
    lanes = ExpressLane.objects.filter(is_open=True, rate_micros__isnull=False)
    lanes = lanes.select_related("zone").order_by("zone__name")
    datasets = list_datasets(request.organisation)
    values = request.POST if request.method == "POST" else request.GET
    form = ExpressForm(_fill(values, lanes, datasets), lanes=lanes, datasets=datasets)
    terms, refusal = _measure(request, form, now=now)
    if request.method == "POST" and terms is not None and form.is_valid():
        try:
            placed = _place(request, form, now=now)
            return redirect("express_answer", request_id=wait_for_answer(placed).pk)
        except UserError as error:
            refusal = error
    slos = (
        []
        if terms is None
        else list_slo_previews(terms, organisation=request.organisation, now=now)
    )
    chosen = form.choose_slo(slos)
    context = {
        "form": form,
        "lanes": lanes,
        "has_data": datasets.exists(),
        "terms": terms,
        "slos": [asdict(one) for one in slos],
        "step_s": slos[1].slo_s - slos[0].slo_s if len(slos) > 1 else 1,
        "chosen": chosen,
        "done_at": None if chosen is None else now + timedelta(seconds=chosen.slo_s),
        "refusal": refusal,
        "wallet": get_wallet(organisation=request.organisation),
        "latest": ExpressRequest.objects.filter(organisation=request.organisation).order_by(
            "-created_at"
        )[:10],
        "refunds": EXPRESS_REFUNDS,
        "least_percent": EXPRESS_LEAST_PERCENT,
        "now": now,
    }
    status = refusal.status if request.method == "POST" and refusal is not None else 200
    return render(request, "web/express_new.html", context, status=status)


def _fill(values: Any, lanes: Any, datasets: Any) -> dict[str, Any]:
    """What was given, and what a form starts with."""
    first_lane, first_data = lanes.first(), datasets.first()
    defaults = {
        "zone": "" if first_lane is None else first_lane.zone.name,
        "dataset": "" if first_data is None else first_data.pk,
        "name": "express",
        "initial_prompt": "lookup",
        "epochs": "auto",
        "virtual_tokens": "auto",
        "target_loss": "auto",
        "key": uuid.uuid4().hex,
    }
    return defaults | {name: values[name] for name in values}


def _measure(
    request: PageRequest, form: ExpressForm, *, now: datetime
) -> tuple[ExpressTerms | None, UserError | None]:
    if not form.is_valid():
        return None, None
    try:
        terms = measure_express_job(_read_job(request, form), now=now)
    except UserError as error:
        return None, error
    return terms, None


def _read_job(request: PageRequest, form: ExpressForm) -> JobRequest:
    data = form.cleaned_data
    lane, dataset = data["zone"], data["dataset"]
    return JobRequest(request.organisation, lane.zone, dataset, form.soft_prompt, form.training)


def _place(request: PageRequest, form: ExpressForm, *, now: datetime) -> ExpressRequest:
    data = form.cleaned_data
    order = ExpressOrder(
        job=_read_job(request, form),
        name=data["name"],
        slo_s=data["slo_s"] or 0.0,
        placed_by=request.user,
        idempotency_key=f"form-{data['key']}",
    )
    return place_request(order, now=now)


@page
@require_GET
def show_express_answer(request: PageRequest, request_id: str) -> HttpResponse:
    """What the lane answered, with the certificate, and what became of the job."""
    asked = get_request(request.organisation, request_id)
    job = Job.objects.filter(bid_id=asked.bid_id).first() if asked.bid_id else None
    record = None if job is None else LookupRecord.objects.filter(pk=job.pk).first()
    answer = asked.answer or {}
    took_s = None
    if job is not None and job.finished_at is not None:
        took_s = (job.finished_at - asked.created_at).total_seconds()
    # The lookup is noted a moment after the job has ended.
    is_open = asked.status == RequestStatus.PENDING or (
        job is not None and (job.is_active or (job.status == JobStatus.SUCCEEDED and not record))
    )
    context = {
        "took_s": took_s,
        "is_open": is_open,
        "asked": asked,
        "answer": answer,
        "job": job,
        "lookup": None if record is None else record.lookup,
        "due_at": asked.created_at + timedelta(seconds=answer.get("slo_s") or asked.slo_s),
        "refunds": EXPRESS_REFUNDS,
    }
    return render(request, "web/express_answer.html", context)


@page
@require_http_methods(["GET", "POST"])
def show_prompt_bank(request: PageRequest) -> HttpResponse:
    """Who may start from the organisation's prompts, and which there are."""
    now = clock.now()
    if request.method == "POST":
        asked = request.POST.get("sharing", "")
        if asked in Sharing.values:
            give_consent(
                organisation=request.organisation,
                sharing=Sharing(asked),
                given_by=request.user,
                now=now,
            )
            messages.success(request, "Saved.")
        return redirect("prompt_bank")
    prompts = BankPrompt.objects.filter(organisation=request.organisation)
    context = {
        "sharing": get_sharing(request.organisation),
        "choices": Sharing.choices,
        "prompts": prompts.order_by("-created_at").defer("values", "features")[:100],
    }
    return render(request, "web/prompt_bank.html", context)


@page
@require_POST
def withdraw_from_bank(request: PageRequest, prompt_id: str) -> HttpResponse:
    withdraw_prompt(organisation=request.organisation, prompt_id=prompt_id, now=clock.now())
    messages.success(request, "Withdrawn: its values are gone.")
    return redirect("prompt_bank")
