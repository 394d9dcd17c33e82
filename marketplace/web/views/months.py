"""An owner's wallet by month."""

from __future__ import annotations

from django.http import HttpResponse
from django.shortcuts import render
from django.views.decorators.http import require_GET

from marketplace.common import clock
from marketplace.common.downloads import LinesDownload
from marketplace.payments.month_statements import (
    WALLET,
    load_account_months,
    load_month_statement,
    write_month_csv,
)
from marketplace.web.views.requests import PageRequest, money_page


@money_page
@require_GET
def show_wallet_month(request: PageRequest, month: str = "") -> HttpResponse:
    """One month; the present one where none is named."""
    wallet = load_account_months(
        organisation=request.organisation, kinds=WALLET, month=month or f"{clock.now():%Y-%m}"
    )
    return render(request, "web/wallet_month.html", {"wallet": wallet})


@money_page
@require_GET
def download_wallet_month(request: PageRequest, month: str) -> LinesDownload:
    statement = load_month_statement(organisation=request.organisation, kinds=WALLET, month=month)
    return LinesDownload(
        write_month_csv(statement),
        content_type="text/csv; charset=utf-8",
        name=f"wallet-{statement.name}.csv",
    )
