"""The form that bids are placed with."""

from __future__ import annotations

import math
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import Any

from django.http import HttpResponse, QueryDict
from django.shortcuts import redirect, render
from django.utils import timezone
from django.views.decorators.http import require_http_methods

from marketplace.accounts.models import Organisation
from marketplace.auction.bidding.job_request import JobRequest
from marketplace.auction.bidding.measure import MeasuredJob, measure_job
from marketplace.auction.bidding.place import NewBid
from marketplace.auction.bidding.quotes import BidQuote, make_quote
from marketplace.auction.bidding.terms import parse_price
from marketplace.auction.pay_rule import GIVE_BACK_RULE
from marketplace.common import clock
from marketplace.common.errors import UserError
from marketplace.fleet.models import Zone
from marketplace.fleet.policy_settings import find_beat
from marketplace.fleet.selectors import list_nodes_on_sale, list_open_zones
from marketplace.jobs.models import Dataset
from marketplace.payments.freezes import list_freezes
from marketplace.payments.selectors import get_wallet
from marketplace.vendors.reports import count_trouble, list_findings
from marketplace.vendors.selectors import find_kinds, find_report, list_offers
from marketplace.vendors.wishes import parse_wish
from marketplace.web.forms import BidForm, get_bid_defaults
from marketplace.web.presenters.curve import find_horizon_end, pick_treads, serialize_quote
from marketplace.web.presenters.warm import present_warm_quote
from marketplace.web.views.bid_drafts import drop_draft, find_draft, keep_draft
from marketplace.web.views.earlier_terms import read_earlier_terms
from marketplace.web.views.payments import build_pay_choice, place_paid_bid
from marketplace.web.views.requests import PageRequest, page
from marketplace.web.views.uploads import (
    ShownUpload,
    find_upload,
    follow_page_upload,
    receive_page_upload,
)

#: Seconds between the soonest deadline there is and the one that a new form offers, at least.
TIME_TO_READ_S = 300.0


@page
@require_http_methods(["GET", "POST"])
def show_bid_form(request: PageRequest) -> HttpResponse:
    """The form; ``do=check`` reads the data and quotes, ``do=place`` bids."""
    if request.method == "GET" and "fresh" in request.GET:
        # By another address, so that Back does not forget what is filled in from here on.
        drop_draft(request)
        return redirect("bid_new")
    now = clock.now()
    zones = list_open_zones()
    if request.method == "GET":
        initial = get_bid_defaults(zone=zones.first(), now=now)
        initial |= {"verified_only": request.organisation.verified_only}
        initial |= read_earlier_terms(request)
        draft = find_draft(request, now=now, key=initial["key"])
        form = BidForm(
            _format_initial(initial) if draft is None else draft,
            organisation=request.organisation,
            zones=zones,
            prefix=None,
        )
        return _form_page(
            request,
            form,
            now=now,
            status=200,
            follows_data=draft is None or draft.get("deadline") == draft.get("offered_deadline"),
            is_draft=draft is not None,
        )
    form = BidForm(request.POST, request.FILES, organisation=request.organisation, zones=zones)
    upload, upload_error = _upload(request, form)
    assert isinstance(form.data, QueryDict)
    if request.POST.get("do") == "place" and upload_error is None and form.is_valid():
        try:
            answer = place_paid_bid(request, _read_bid(request, form, now=now), now=now)
            drop_draft(request)
            return answer
        except UserError as error:
            form.refuse(error)
            keep_draft(request, request.POST, now=now)
            return _form_page(request, form, now=now, status=error.status, upload=upload)
    keep_draft(request, request.POST, now=now)
    return _form_page(
        request,
        form,
        now=now,
        status=200 if request.POST.get("do") != "place" else 400,
        upload=upload,
        upload_error=upload_error,
        follows_data=request.POST.get("deadline") == request.POST.get("offered_deadline"),
    )


def _read_bid(request: PageRequest, form: BidForm, *, now: datetime) -> NewBid:
    data = form.cleaned_data
    if data["dataset"] is None:
        raise UserError(
            "no_dataset", "Upload a file or choose a data set first.", param="dataset_id"
        )
    return NewBid(
        organisation=request.organisation,
        placed_by=request.user,
        zone=data["zone"],
        dataset=data["dataset"],
        name=data["name"],
        adapter=form.adapter,
        training=form.training,
        validation=data["validation"],
        model=form.begins_with,
        price_micros=0 if form.asks_price else parse_price(data["price"]),
        beat=find_beat(data["zone"], now) if form.asks_price else None,
        deadline_at=data["deadline"],
        idempotency_key=f"form-{data['key']}",
        preparation=form.preparation,
        verified_only=form.cleaned_data["verified_only"],
    )


def _upload(request: PageRequest, form: BidForm) -> tuple[ShownUpload | None, UserError | None]:
    """Have an uploaded file read and choose the data set that it becomes.

    Otherwise what there is to wait for or to decide, or why the file cannot be used.
    """
    earlier = request.POST.get("upload", "")
    if request.FILES.get("file") is None and not earlier:
        return None, None
    form.data = form.data.copy()
    form.data["dataset"] = ""
    form.files = type(form.files)()
    zone = list_open_zones().filter(name=request.POST.get("zone", "")).first()
    try:
        upload = receive_page_upload(request, zone=zone)
        upload = upload or follow_page_upload(request, find_upload(request, earlier))
    except UserError as error:
        return None, error
    shown = ShownUpload(upload)
    if upload.dataset_id is not None:
        form.data["dataset"] = upload.dataset_id
        return None, None
    return (None, shown.error) if shown.error else (shown, None)


def _form_page(
    request: PageRequest,
    form: BidForm,
    *,
    now: datetime,
    status: int,
    upload: ShownUpload | None = None,
    upload_error: UserError | None = None,
    follows_data: bool = False,
    is_draft: bool = False,
) -> HttpResponse:
    """The form with a quote for what it holds.

    ``follows_data`` says that the deadline is the one the form offered: it moves to where there
    are plans to choose from, unless the address names one that can be met.
    """
    zones = list_open_zones()
    form.is_valid()
    dataset: Dataset | None = form.cleaned_data.get("dataset")
    if dataset is not None and dataset.needs_preparation and request.POST.get("do") != "place":
        form.ask_for_preparation()
    data = form.cleaned_data
    zone: Zone | None = data.get("zone") or zones.first()
    quote, refusal = _quote(request.organisation, form, zone, dataset, now=now)
    if follows_data and refusal is not None and form.find_field(refusal) == "deadline":
        form.cleaned_data["deadline"] = get_bid_defaults(zone=zone, now=now)["deadline"]
        quote, refusal = _quote(request.organisation, form, zone, dataset, now=now)
    is_named = "deadline" in request.GET and quote is not None and quote.price_micros is not None
    if follows_data and quote is not None and not is_named:
        quote = _quote_halfway(request.organisation, form, quote, now=now)
    refusal_is_marked = refusal is not None and form.find_field(refusal) is not None
    if refusal is not None and refusal_is_marked:
        form.refuse(refusal)
    balance = get_wallet(organisation=request.organisation)
    context = {
        "form": form,
        "is_draft": is_draft,
        "wallet": balance,
        "is_short": balance.available_micros == 0,
        **build_pay_choice(request),
        "freezes": list_freezes([request.organisation.pk]),
        "zone": zone,
        "give_back_rule": GIVE_BACK_RULE,
        "dataset": dataset,
        "shown": upload,
        "upload_error": upload_error,
        "quote": quote,
        "offered_deadline": (
            form["deadline"].value() if follows_data else request.POST.get("offered_deadline", "")
        ),
        "quote_refusal": refusal,
        "refusal_is_marked": refusal_is_marked,
        "quote_data": None if quote is None else serialize_quote(quote),
        "treads": [] if quote is None else pick_treads(quote.curve),
        "models": _models(request.organisation, zones, form, dataset, chosen=zone, now=now),
        "now": now,
        **_describe_preparation(form, zone, dataset, now=now),
        "warm": None if quote is None else present_warm_quote(quote),
        "resolved": None if quote is None else quote.measured.terms,
    }
    return render(request, "web/bid_new.html", context, status=status)


def _describe_preparation(
    form: BidForm, zone: Zone | None, dataset: Dataset | None, *, now: datetime
) -> dict[str, Any]:
    """What the data hold, and what vendors would do with them."""
    if zone is None or dataset is None:
        return {}
    report = find_report(dataset)
    return {
        "offers": list_offers(zone=zone, dataset=dataset, wish=parse_wish(form.consent), now=now),
        # What could be had with the owner's leave.
        "other_kinds": find_kinds(zone),
        "findings": [] if report is None else list_findings(report),
        "trouble": 0 if report is None else count_trouble(report),
    }


def _quote(
    organisation: Organisation,
    form: BidForm,
    zone: Zone | None,
    dataset: Dataset | None,
    *,
    now: datetime,
) -> tuple[BidQuote | None, UserError | None]:
    deadline = form.cleaned_data.get("deadline")
    if zone is None or dataset is None or deadline is None:
        return None, None
    try:
        job = _read_job(organisation, form, zone, dataset)
        quote = make_quote(job, is_warm=form.is_warm, deadline_at=deadline, now=now)
    except UserError as error:
        return None, error
    return quote, None


def _read_job(
    organisation: Organisation, form: BidForm, zone: Zone, dataset: Dataset
) -> JobRequest:
    """The job that the form describes; a warm start is found for it, and not read."""
    return JobRequest(
        organisation=organisation,
        zone=zone,
        dataset=dataset,
        validation=form.cleaned_data.get("validation"),
        adapter=form.adapter,
        training=form.training,
        model=form.continues,
        preparation=form.preparation,
        verified_only=form.cleaned_data.get("verified_only", False),
    )


def _quote_halfway(
    organisation: Organisation, form: BidForm, quote: BidQuote, *, now: datetime
) -> BidQuote:
    """For a new form: half-way along the treads, neither the most expensive nor the slowest.

    And never so near the soonest possible that reading the page would make it impossible.
    """
    if not quote.curve:
        return quote
    slot_s = quote.zone.slot_s
    spare = timedelta(seconds=slot_s * math.ceil(TIME_TO_READ_S / slot_s))
    deadline = max(
        quote.curve[len(quote.curve) // 2].deadline_at,
        min(quote.curve[0].deadline_at + spare, find_horizon_end(quote.zone, now)),
    )
    form.cleaned_data["deadline"] = deadline
    form.data = form.data.copy()
    form.data["deadline"] = format_local(deadline)
    better, _ = _quote(organisation, form, quote.zone, form.cleaned_data["dataset"], now=now)
    return better or quote


@dataclass(frozen=True, slots=True)
class ModelChoice:
    """One model's card: whether the job fits and how much memory it takes."""

    zone: Zone
    chosen: bool
    nodes: int
    #: The base model and the job; ``None`` without a data set.
    needs_gb: float | None
    largest_gb: float | None
    fits: bool | None

    @property
    def share(self) -> float:
        return (self.needs_gb or 0.0) / self.largest_gb if self.largest_gb else 0.0


def _models(
    organisation: Organisation,
    zones: Any,
    form: BidForm,
    dataset: Dataset | None,
    *,
    chosen: Any,
    now: datetime,
) -> list[ModelChoice]:
    choices = []
    for zone in zones:
        measured = _measured(organisation, zone, form, dataset, now=now)
        memory = [node.memory_gb for node in list_nodes_on_sale(zone)]
        needs = None if measured is None else zone.base_memory_gb + measured.work.memory_demand_gb
        largest = max(memory, default=None)
        fits = None if needs is None or largest is None else needs <= largest
        choices.append(ModelChoice(zone, zone == chosen, len(memory), needs, largest, fits))
    return choices


def _measured(
    organisation: Organisation,
    zone: Zone,
    form: BidForm,
    dataset: Dataset | None,
    *,
    now: datetime,
) -> MeasuredJob | None:
    if dataset is None:
        return None
    try:
        return measure_job(_read_job(organisation, form, zone, dataset), now=now)
    except UserError:
        return None


def _format_initial(initial: dict[str, Any]) -> dict[str, Any]:
    """Initial values as a browser would send them, so that they can be quoted at once."""
    return {
        name: format_local(value) if isinstance(value, datetime) else value
        for name, value in initial.items()
    }


def format_local(at: datetime) -> str:
    """Whole seconds, rounded up: a deadline a moment before a slot's end would lose the slot."""
    whole = at if at.microsecond == 0 else at.replace(microsecond=0) + timedelta(seconds=1)
    return timezone.localtime(whole).strftime("%Y-%m-%dT%H:%M:%S")
