"""What an operator does with vendors: approves and suspends them."""

from __future__ import annotations

from django.contrib import messages
from django.http import HttpResponse
from django.shortcuts import redirect, render
from django.views.decorators.http import require_GET, require_POST

from marketplace.common import clock
from marketplace.common.errors import NotFound
from marketplace.vendors.listing import approve_vendor, pause_vendor, resume_vendor
from marketplace.vendors.models import Vendor
from marketplace.vendors.opinions import list_opinions_for
from marketplace.vendors.selectors import list_disputes, summarize_vendor
from marketplace.web.views.requests import PageRequest, operator_page


@operator_page
@require_GET
def show_all_vendors(request: PageRequest) -> HttpResponse:
    now = clock.now()
    vendors = Vendor.objects.select_related("organisation").order_by("approved_at", "name")
    context = {
        "vendors": [summarize_vendor(vendor, now=now) for vendor in vendors],
        "disputes": list_disputes(),
        "opinions": list_opinions_for(request.user).count(),
        "now": now,
    }
    return render(request, "console/operator_vendors.html", context)


@operator_page
@require_POST
def switch_vendor(request: PageRequest, vendor_id: str) -> HttpResponse:
    """``do``: approve, suspend or resume."""
    vendor = Vendor.objects.filter(pk=vendor_id.replace("\0", "")).first()
    if vendor is None:
        raise NotFound("unknown_vendor", "There is no such vendor.")
    match request.POST.get("do"):
        case "approve":
            approve_vendor(vendor=vendor, approved_by=request.user, now=clock.now())
            words = f"{vendor.name} gets work."
        case "suspend":
            pause_vendor(vendor=vendor, paused_by=request.user, now=clock.now())
            words = f"{vendor.name} gets no new work until you let it."
        case _:
            resume_vendor(vendor=vendor, resumed_by=request.user)
            words = f"{vendor.name} gets work again."
    messages.success(request, words)
    return redirect("operator_vendors")
