"""The operator's overview: bids, money, prices, nodes, and what waits for an answer."""

from __future__ import annotations

from django.contrib import messages
from django.http import HttpResponse
from django.shortcuts import redirect, render
from django.views.decorators.http import require_GET, require_POST

from marketplace.common import clock
from marketplace.common.money import count_decimals, format_usd_exact
from marketplace.console.selectors import load_overview
from marketplace.payments.funding import decline_funds, grant_funds
from marketplace.web.views.requests import PageRequest, operator_page


@operator_page
@require_GET
def show_overview(request: PageRequest) -> HttpResponse:
    overview = load_overview(now=clock.now())
    context = {
        "overview": overview,
        "decimals": count_decimals(overview.balances.values()),
    }
    return render(request, "console/operator.html", context)


@operator_page
@require_POST
def answer_funds_request(request: PageRequest, request_id: str) -> HttpResponse:
    """``do=grant`` puts the amount that the page showed into the wallet, ``do=decline`` nothing."""
    now = clock.now()
    if request.POST.get("do") != "grant":
        declined = decline_funds(request_id=request_id, declined_by=request.user, now=now)
        messages.success(request, f"Declined. {declined.organisation} may ask again.")
        return redirect("operator")
    shown = request.POST.get("amount_micros", "")
    granted = grant_funds(
        request_id=request_id,
        amount_micros=int(shown) if shown.isascii() and shown.isdigit() else 0,
        granted_by=request.user,
        now=now,
    )
    amount = format_usd_exact(granted.amount_micros)
    messages.success(request, f"{amount} is in the wallet of {granted.organisation}.")
    return redirect("operator")
