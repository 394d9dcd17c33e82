"""The operator's page of profit and loss, by zone and month."""

from __future__ import annotations

from django.http import HttpResponse
from django.shortcuts import render
from django.views.decorators.http import require_GET

from marketplace.common import clock
from marketplace.common.downloads import LinesDownload
from marketplace.common.money import count_decimals
from marketplace.tiers.profits import list_profit_months, load_profit_report, write_profit_csv
from marketplace.web.views.requests import PageRequest, operator_page


@operator_page
@require_GET
def show_profit(request: PageRequest, month: str = "") -> HttpResponse:
    """One month; the present one where none is named."""
    report = load_profit_report(month=month or f"{clock.now():%Y-%m}")
    lines = (*report.lines, report.total)
    amounts = [n for line in lines for n in (*line.amounts_micros, line.total_micros)]
    context = {
        "report": report,
        "months": list_profit_months(),
        "heads": " | ".join(["Line", *(f"#{name}" for name in report.zones), "#All"]),
        "decimals": count_decimals(amounts),
    }
    return render(request, "console/profit.html", context)


@operator_page
@require_GET
def download_profit(request: PageRequest, month: str) -> LinesDownload:
    report = load_profit_report(month=month)
    return LinesDownload(
        write_profit_csv(report),
        content_type="text/csv; charset=utf-8",
        name=f"profit-{report.name}.csv",
    )
