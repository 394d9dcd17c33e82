"""A vendor's console: what it offers, the work it has, what it earned."""

from __future__ import annotations

from typing import Any

from django.contrib import messages
from django.http import HttpResponse
from django.shortcuts import redirect, render
from django.views.decorators.debug import sensitive_variables
from django.views.decorators.http import require_GET, require_http_methods, require_POST

from marketplace.common import clock
from marketplace.common.errors import NotFound, UserError
from marketplace.common.money import count_decimals
from marketplace.console.vendor_form import VendorForm, describe_terms
from marketplace.fleet.selectors import list_open_zones
from marketplace.payments.selectors import get_earnings, list_earnings
from marketplace.vendors.handover import make_link
from marketplace.vendors.listing import list_vendor, pause_vendor, renew_secret, resume_vendor
from marketplace.vendors.models import Preparation, Vendor
from marketplace.vendors.opinions import list_opinions_for
from marketplace.vendors.selectors import list_work, summarize_vendor
from marketplace.web.views.requests import PageRequest, owner_page, page

EARNINGS_LISTED = 12


@page
@require_GET
def show_vendors(request: PageRequest) -> HttpResponse:
    return render(request, "console/vendors.html", _load_page(request))


def _load_page(request: PageRequest) -> dict[str, Any]:
    organisation, now = request.organisation, clock.now()
    vendors = Vendor.objects.filter(organisation=organisation).order_by("name")
    found = list_earnings(organisation=organisation, limit=EARNINGS_LISTED)
    lines = [line for line in found if line.kind == "vendor"]
    return {
        "now": now,
        "vendors": [summarize_vendor(vendor, now=now) for vendor in vendors],
        "work": list_work(organisation),
        "opinions": list_opinions_for(request.user).count(),
        "lines": lines,
        "decimals": count_decimals(line.amount_micros for line in lines),
        "earnings": get_earnings(organisation=organisation),
    }


@sensitive_variables("vendor")
@owner_page
@require_http_methods(["GET", "POST"])
def edit_vendor(request: PageRequest, vendor_id: str | None = None) -> HttpResponse:
    """The terms of a new vendor, or of one of the organisation's."""
    vendor = None if vendor_id is None else _find_vendor(request, vendor_id)
    zones = list(list_open_zones())
    initial = None if vendor is None else describe_terms(vendor)
    form = VendorForm(request.POST or None, zones=zones, initial=initial)
    if request.method == "POST" and form.is_valid():
        try:
            stored = list_vendor(
                organisation=request.organisation,
                listed_by=request.user,
                terms=form.read_terms(),
                vendor=vendor,
                now=clock.now(),
            )
        except UserError as error:
            form.refuse(error)
        else:
            waits = "" if stored.approved_at else " It gets work once the operator has approved it."
            messages.success(request, f"{stored.name} is listed.{waits}")
            return redirect("vendor_list")
    return render(request, "console/vendor_form.html", {"form": form, "vendor": vendor})


@owner_page
@require_POST
def switch_pause(request: PageRequest, vendor_id: str) -> HttpResponse:
    vendor = _find_vendor(request, vendor_id)
    if vendor.paused_at is None:
        pause_vendor(vendor=vendor, paused_by=request.user, now=clock.now())
        words = f"{vendor.name} gets no new work. What it has goes on."
    else:
        resume_vendor(vendor=vendor, resumed_by=request.user)
        words = f"{vendor.name} gets work again."
    messages.success(request, words)
    return redirect("vendor_list")


@owner_page
@require_POST
def change_secret(request: PageRequest, vendor_id: str) -> HttpResponse:
    vendor = renew_secret(vendor=_find_vendor(request, vendor_id), renewed_by=request.user)
    messages.success(request, f"Messages of {vendor.name} are signed with another secret now.")
    return redirect("vendor_edit", vendor_id=vendor.pk)


@page
@require_POST
def show_link(request: PageRequest, preparation_id: str) -> HttpResponse:
    """A link to the data of one preparation, in the answer itself: it stands in no address."""
    found = (
        Preparation.objects.select_related("vendor")
        .filter(pk=preparation_id.replace("\0", ""), vendor__organisation=request.organisation)
        .first()
    )
    if found is None:
        raise NotFound("unknown_work", "There is no such work for you, or not any more.")
    link = make_link(preparation=found, asked_by=request.user, now=clock.now())
    return render(
        request, "console/vendors.html", _load_page(request) | {"link": link, "linked": found}
    )


def _find_vendor(request: PageRequest, vendor_id: str) -> Vendor:
    found = Vendor.objects.filter(
        organisation=request.organisation, pk=vendor_id.replace("\0", "")
    ).first()
    if found is None:
        raise NotFound("unknown_vendor", f"{request.organisation.name} lists no such vendor.")
    return found
