"""Sweeps: several jobs that differ in some settings, placed as one bundle."""

from __future__ import annotations

from datetime import datetime

from django.http import HttpResponse
from django.shortcuts import redirect, render
from django.views.decorators.http import require_GET, require_http_methods, require_POST

from marketplace.auction.bidding.bundle_quotes import SweepQuote, make_bundle_quote
from marketplace.auction.bidding.bundles import MOST_JOBS, NewBundle, place_bundle
from marketplace.auction.bidding.cancel import cancel_bid
from marketplace.auction.bidding.refusals import describe_bid_refusal
from marketplace.auction.bidding.terms import parse_price
from marketplace.auction.bidding.wait import wait_for_bid
from marketplace.auction.models import BidStatus
from marketplace.auction.pay_rule import GIVE_BACK_RULE
from marketplace.auction.selectors import (
    annotate_refunds,
    find_bundle_status,
    find_job_ids,
    get_bundle,
)
from marketplace.common import clock
from marketplace.common.errors import UserError
from marketplace.fleet.selectors import list_open_zones
from marketplace.jobs.selectors import list_datasets
from marketplace.payments.selectors import get_wallet
from marketplace.web.bundle_form import BundleForm, get_bundle_defaults
from marketplace.web.views.requests import PageRequest, page


@page
@require_http_methods(["GET", "POST"])
def show_bundle_form(request: PageRequest) -> HttpResponse:
    """The form with a quote; ``do=place`` bids."""
    now = clock.now()
    zones = list_open_zones()
    first_zone, first_data = zones.first(), list_datasets(request.organisation).first()
    if first_zone is None or first_data is None:
        return render(request, "web/bundle_new.html", {"form": None})
    values = request.POST or request.GET
    given = {name: values[name] for name in values}
    defaults = get_bundle_defaults(zone=first_zone, now=now) | {"dataset": first_data.pk}
    form = BundleForm(defaults | given, organisation=request.organisation, zones=zones)
    asked = _read(request, form)
    if request.POST.get("do") == "place" and asked is not None:
        try:
            bundle = place_bundle(asked=asked, now=now)
        except UserError as error:
            form.refuse(error)
            return _form_page(request, form, None, status=error.status)
        wait_for_bid(bid=bundle.bids.order_by("-arrival")[0])
        return redirect("bundle_detail", bundle_id=bundle.pk)
    quote = None if asked is None else _quote(form, asked, now=now)
    return _form_page(request, form, quote, status=400 if request.method == "POST" else 200)


def _read(request: PageRequest, form: BundleForm) -> NewBundle | None:
    """What the form asks for; ``None`` where it cannot be read."""
    if not form.is_valid():
        return None
    data = form.cleaned_data
    try:
        # A quote needs no limit.
        placing = request.POST.get("do") == "place"
        price_micros = parse_price(data["price"]) if placing else 0
    except UserError as error:
        form.refuse(error)
        return None
    return NewBundle(
        organisation=request.organisation,
        placed_by=request.user,
        zone=data["zone"],
        dataset=data["dataset"],
        validation=data["validation"],
        name=data["name"],
        adapter={},
        training=form.training,
        sweep=form.sweep,
        all_or_none=form.all_or_none,
        price_micros=price_micros,
        deadline_at=data["deadline"],
        idempotency_key=f"form-{data['key']}",
        verified_only=data["verified_only"],
    )


def _quote(form: BundleForm, asked: NewBundle, *, now: datetime) -> SweepQuote | None:
    try:
        return make_bundle_quote(asked=asked, now=now)
    except UserError as error:
        form.refuse(error)
        return None


def _form_page(
    request: PageRequest, form: BundleForm, quote: SweepQuote | None, *, status: int
) -> HttpResponse:
    context = {
        "form": form,
        "quote": quote,
        "wallet": get_wallet(organisation=request.organisation),
        "most_jobs": MOST_JOBS,
        "give_back_rule": GIVE_BACK_RULE,
    }
    return render(request, "web/bundle_new.html", context, status=status)


@page
@require_GET
def show_bundle(request: PageRequest, bundle_id: str) -> HttpResponse:
    """What was asked for, what the auction answered, and each job."""
    bundle = get_bundle(request.organisation, bundle_id)
    bids = list(annotate_refunds(bundle.bids.select_related("zone")).order_by("arrival"))
    jobs = find_job_ids(bids)
    refused = next((bid for bid in bids if bid.status == BidStatus.REFUSED), None)
    context = {
        "bundle": bundle,
        "status": find_bundle_status(bids),
        "rows": [(bid, jobs.get(bid.pk)) for bid in bids],
        "won": sum(bid.status == BidStatus.ADMITTED for bid in bids),
        "paid_micros": sum(bid.payment_micros or 0 for bid in bids),
        "refund_micros": sum(bid.refund_micros for bid in bids),
        "why": "" if refused is None else describe_bid_refusal(refused),
    }
    return render(request, "web/bundle.html", context)


@page
@require_POST
def withdraw_one_bundle(request: PageRequest, bundle_id: str) -> HttpResponse:
    bundle = get_bundle(request.organisation, bundle_id)
    for bid in bundle.bids.filter(status=BidStatus.PENDING).order_by("arrival"):
        cancel_bid(bid=bid, now=clock.now())
    return redirect("bundle_detail", bundle_id=bundle.pk)
