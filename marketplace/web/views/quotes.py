"""What a job would cost, for anybody: by its size, before there is an account or a file."""

from __future__ import annotations

from datetime import datetime
from typing import Any

from django.http import HttpRequest, HttpResponse
from django.shortcuts import render
from django.views.decorators.http import require_GET

from marketplace.auction.bidding.typical import SizedQuote, make_typical_quotes, quote_sized_job
from marketplace.common import clock
from marketplace.common.errors import MarketFault, UserError
from marketplace.fleet.models import Zone
from marketplace.fleet.selectors import get_open_zone, list_open_zones
from marketplace.web.presenters.curve import draw_price_steps, pick_treads
from marketplace.web.size_form import SizeForm
from marketplace.web.views.requests import public_page


@public_page
@require_GET
def show_quote(request: HttpRequest) -> HttpResponse:
    """The price of equal rows by each deadline; of a usual job where nothing is typed yet."""
    now = clock.now()
    zones = list_open_zones()
    named = request.GET.get("zone")
    zone = get_open_zone(named) if named else zones.first()
    context: dict[str, Any] = {"now": now, "zone": zone}
    if zone is not None:
        form = SizeForm(request.GET if "rows" in request.GET else None, zones=zones, zone=zone)
        context["form"] = form
        try:
            quote = _quote(form, zone, now=now)
        except MarketFault:
            context["problem"] = "Prices are away until an operator has looked at the record."
        except UserError as error:
            context["problem"] = error.message
        else:
            if quote is not None:
                context |= {
                    "quote": quote,
                    "problem": quote.refusal_text,
                    "steps": draw_price_steps(quote),
                    "treads": pick_treads(quote.curve),
                }
    return render(request, "web/quote.html", context)


def _quote(form: SizeForm, zone: Zone, *, now: datetime) -> SizedQuote | None:
    job = form.read_job()
    if not form.is_bound:
        usual = make_typical_quotes(zone=zone, now=now)
        if usual:
            job = usual[min(1, len(usual) - 1)].job
            form.propose(job)
    return None if job is None else quote_sized_job(zone=zone, job=job, now=now)
