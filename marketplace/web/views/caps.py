"""How much the organisation and each member may spend in a day and a month."""

from __future__ import annotations

from django.contrib import messages
from django.http import HttpResponse
from django.shortcuts import redirect, render
from django.views.decorators.http import require_http_methods

from marketplace.common import clock
from marketplace.common.errors import UserError
from marketplace.payments.caps import set_cap, sum_spent
from marketplace.payments.models import SpendingCap
from marketplace.web.views.payments import read_usd
from marketplace.web.views.requests import PageRequest, money_page


@money_page
@require_http_methods(["GET", "POST"])
def show_caps(request: PageRequest) -> HttpResponse:
    """The caps and what is used of them; an empty amount takes a cap away."""
    organisation = request.organisation
    if request.method == "POST":
        try:
            set_cap(
                organisation=organisation,
                member_id=request.POST.get("member", "").replace("\0", "") or None,
                period=request.POST.get("period", ""),
                amount_micros=read_usd(request, "usd") if request.POST.get("usd") else None,
            )
        except UserError as error:
            messages.error(request, error.message)
        else:
            messages.success(request, "Saved.")
        return redirect("caps")
    now = clock.now()
    caps = SpendingCap.objects.filter(organisation=organisation).select_related("member")
    context = {
        "caps": [(cap, sum_spent(cap, now=now)) for cap in caps.order_by("member", "period")],
        "members": organisation.memberships.select_related("user").order_by("created_at"),
    }
    return render(request, "web/caps.html", context)
