"""How much the organisation, each member and each API key may spend in a day and a month."""

from __future__ import annotations

from django.contrib import messages
from django.http import HttpResponse
from django.shortcuts import redirect, render
from django.views.decorators.http import require_http_methods

from marketplace.accounts.models import ApiKey
from marketplace.common import clock
from marketplace.payments.caps import set_cap, sum_spent
from marketplace.payments.models import SpendingCap
from marketplace.web.views.payments import read_usd
from marketplace.web.views.requests import PageRequest, money_page, show_refusal


@money_page
@require_http_methods(["GET", "POST"])
def show_caps(request: PageRequest) -> HttpResponse:
    """The caps and what is used of them; an empty amount takes a cap away."""
    organisation = request.organisation
    if request.method == "POST":
        with show_refusal(request):
            set_cap(
                organisation=organisation,
                **_read_spender(request),
                period=request.POST.get("period", ""),
                amount_micros=read_usd(request, "usd") if request.POST.get("usd") else None,
            )
            messages.success(request, "Saved.")
        return redirect("caps")
    now = clock.now()
    caps = SpendingCap.objects.filter(organisation=organisation)
    caps = caps.select_related("member", "api_key").order_by("member", "api_key", "period")
    context = {
        "caps": [(cap, sum_spent(cap, now=now)) for cap in caps],
        "keys": ApiKey.objects.filter(organisation=organisation, revoked_at=None).order_by("name"),
        "members": organisation.memberships.select_related("user").order_by("created_at"),
    }
    return render(request, "web/caps.html", context)


def _read_spender(request: PageRequest) -> dict[str, str | None]:
    """A member's or a key's id, by its prefix; neither: all of the organisation."""
    chosen = request.POST.get("who", "").replace("\0", "")
    is_key = chosen.startswith("key_")
    return {
        "member_id": None if is_key else chosen or None,
        "api_key_id": chosen if is_key else None,
    }
