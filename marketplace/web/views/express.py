"""The express lane: a price by SLO, an answer at once, and the bank of prompts."""

from __future__ import annotations

import uuid
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import Any

from django.contrib import messages
from django.http import HttpResponse
from django.shortcuts import redirect, render
from django.views.decorators.http import require_GET, require_http_methods, require_POST

from marketplace.auction.pay_rule import EXPRESS_REFUNDS
from marketplace.common import clock
from marketplace.common.errors import UserError
from marketplace.express.bank import get_sharing, give_consent, withdraw_prompt
from marketplace.express.models import (
    BankPrompt,
    ExpressLane,
    ExpressRequest,
    LookupRecord,
    Sharing,
)
from marketplace.express.requests import (
    ExpressTerms,
    get_request,
    measure_express_job,
    place_request,
    wait_for_answer,
)
from marketplace.jobs.models import Dataset, Job
from marketplace.payments.selectors import wallet
from marketplace.web.express_form import ExpressForm
from marketplace.web.views.requests import PageRequest, page

#: SLOs offered, as multiples of the least, rounded up to whole seconds.
OFFERED = (1.1, 1.5, 2.0, 3.0, 5.0, 8.0)


@dataclass(frozen=True, slots=True)
class OfferedSlo:
    """One SLO with its price."""

    slo_s: int
    price_micros: int
    done_at: datetime


@page
@require_http_methods(["GET", "POST"])
def express_new(request: PageRequest) -> HttpResponse:
    """The form: model, rows and an SLO with its price; the answer comes at once."""
    now = clock.now()
    lanes = ExpressLane.objects.filter(is_open=True, rate_micros__isnull=False)
    lanes = lanes.select_related("zone").order_by("zone__name")
    datasets = Dataset.objects.filter(organisation=request.organisation).order_by("-created_at")
    values = request.POST if request.method == "POST" else request.GET
    form = ExpressForm(_fill(values, lanes, datasets), lanes=lanes, datasets=datasets)
    terms, refusal = _measure(request, form, now=now)
    if request.method == "POST" and terms is not None and form.is_valid():
        try:
            placed = _place(request, form, now=now)
            return redirect("express_answer", request_id=wait_for_answer(placed).pk)
        except UserError as error:
            refusal = error
    offered = [] if terms is None else list_offered_slos(terms, now=now)
    context = {
        "form": form,
        "lanes": lanes,
        "has_data": datasets.exists(),
        "terms": terms,
        "offered": offered,
        "chosen_s": form.choose_slo([one.slo_s for one in offered]),
        "refusal": refusal,
        "wallet": wallet(organisation=request.organisation),
        "latest": ExpressRequest.objects.filter(organisation=request.organisation).order_by(
            "-created_at"
        )[:10],
        "refunds": EXPRESS_REFUNDS,
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
    data = form.cleaned_data
    try:
        terms = measure_express_job(
            organisation=request.organisation,
            zone=data["zone"].zone,
            dataset=data["dataset"],
            adapter=form.soft_prompt,
            training=form.training,
            now=now,
        )
    except UserError as error:
        return None, error
    return terms, None


def list_offered_slos(terms: ExpressTerms, *, now: datetime) -> list[OfferedSlo]:
    """SLOs to choose from, the shortest and dearest first."""
    seconds = {int(terms.least_slo_s * factor) + 1 for factor in OFFERED}
    within = sorted(slo_s for slo_s in seconds if slo_s <= terms.lane.slo_max_s)
    return [
        OfferedSlo(slo_s, terms.price_micros(slo_s), now + timedelta(seconds=slo_s))
        for slo_s in within
    ]


def _place(request: PageRequest, form: ExpressForm, *, now: datetime) -> ExpressRequest:
    data = form.cleaned_data
    return place_request(
        organisation=request.organisation,
        placed_by=request.user,
        zone=data["zone"].zone,
        dataset=data["dataset"],
        name=data["name"],
        adapter=form.soft_prompt,
        training=form.training,
        slo_s=data["slo_s"] or 0.0,
        idempotency_key=f"form-{data['key']}",
        now=now,
    )


@page
@require_GET
def express_answer(request: PageRequest, request_id: str) -> HttpResponse:
    """What the lane answered, with the certificate, and what became of the job."""
    asked = get_request(request.organisation, request_id)
    job = Job.objects.filter(bid_id=asked.bid_id).first() if asked.bid_id else None
    record = None if job is None else LookupRecord.objects.filter(pk=job.pk).first()
    answer = asked.answer or {}
    context = {
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
def prompt_bank(request: PageRequest) -> HttpResponse:
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
def prompt_withdraw(request: PageRequest, prompt_id: str) -> HttpResponse:
    withdraw_prompt(organisation=request.organisation, prompt_id=prompt_id, now=clock.now())
    messages.success(request, "Withdrawn: its values are gone.")
    return redirect("prompt_bank")
