"""What an operator does with vendors: approves and suspends them, and decides disputes."""

from __future__ import annotations

from django.contrib import messages
from django.http import HttpResponse
from django.shortcuts import redirect, render
from django.views.decorators.http import require_GET, require_POST

from marketplace.common import clock
from marketplace.common.errors import NotFound, UserError
from marketplace.vendors.acceptance import decide_dispute
from marketplace.vendors.listing import approve_vendor, pause_vendor, resume_vendor
from marketplace.vendors.models import Dispute, Vendor
from marketplace.vendors.selectors import list_disputes, summarize_vendor
from marketplace.web.views.requests import PageRequest, operator_page, show_refusal


@operator_page
@require_GET
def show_all_vendors(request: PageRequest) -> HttpResponse:
    now = clock.now()
    vendors = Vendor.objects.select_related("organisation").order_by("approved_at", "name")
    context = {
        "vendors": [summarize_vendor(vendor, now=now) for vendor in vendors],
        "disputes": list_disputes(),
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


@operator_page
@require_POST
def answer_dispute(request: PageRequest, dispute_id: str) -> HttpResponse:
    """``do``: owner or vendor, who was right."""
    dispute = Dispute.objects.select_related("vendor").filter(pk=dispute_id.replace("\0", ""))
    if (found := dispute.first()) is None:
        raise NotFound("unknown_dispute", "There is no such dispute.")
    side = request.POST.get("do")
    with show_refusal(request):
        if side not in ("owner", "vendor"):
            raise UserError("invalid_decision", "Decide for the owner or for the vendor.")
        decide_dispute(
            dispute=found,
            is_for_owner=side == "owner",
            words=request.POST.get("words", ""),
            decided_by=request.user,
            now=clock.now(),
        )
        messages.success(request, f"Decided for the {side}.")
    return redirect("operator_vendors")
