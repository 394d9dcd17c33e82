"""The operator's page of rent against earnings, by job."""

from __future__ import annotations

from django.http import HttpResponse
from django.shortcuts import render
from django.views.decorators.http import require_GET

from marketplace.common import clock
from marketplace.common.downloads import LinesDownload
from marketplace.common.money import count_decimals
from marketplace.tiers.rent import list_rent_months, load_rent_report, write_rent_csv
from marketplace.web.views.requests import PageRequest, operator_page


@operator_page
@require_GET
def show_rent(request: PageRequest, month: str = "") -> HttpResponse:
    """One month; the present one where none is named."""
    report = load_rent_report(month=month or f"{clock.now():%Y-%m}")
    context = {
        "report": report,
        "months": list_rent_months(),
        "decimals": count_decimals(
            amount
            for line in report.lines
            for amount in (line.rent_micros, line.earned_micros, line.gain_micros)
        ),
    }
    return render(request, "console/rent.html", context)


@operator_page
@require_GET
def download_rent(request: PageRequest, month: str) -> LinesDownload:
    report = load_rent_report(month=month)
    return LinesDownload(
        write_rent_csv(report),
        content_type="text/csv; charset=utf-8",
        name=f"rent-{report.name}.csv",
    )
