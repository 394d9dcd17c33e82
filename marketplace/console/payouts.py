"""How a provider gets paid: its account at the gateway, its payouts, and statements by month."""

from __future__ import annotations

from django.conf import settings
from django.contrib import messages
from django.http import HttpResponse
from django.shortcuts import redirect, render
from django.urls import reverse
from django.views.decorators.http import require_GET

from marketplace.accounts.recent_sign_in import must_ask_again
from marketplace.common import clock
from marketplace.common.downloads import LinesDownload
from marketplace.common.errors import UserError
from marketplace.common.money import count_decimals
from marketplace.payments.models import Payout
from marketplace.payments.month_statements import (
    EARNINGS,
    load_account_months,
    load_month_statement,
    write_month_csv,
)
from marketplace.payments.payout_overview import load_payout_overview
from marketplace.payments.payouts import open_payout_account
from marketplace.payments.statements import load_statement, write_csv
from marketplace.payments.stripe_client import GatewayFault
from marketplace.web.views.requests import PageRequest, owner_page, page

PAYOUTS_LISTED = 24
#: On the page of a month; the CSV has all.
EARNINGS_LISTED = 200


@page
@require_GET
def show_payouts(request: PageRequest) -> HttpResponse:
    organisation, now = request.organisation, clock.now()
    context = vars(load_payout_overview(organisation=organisation, now=now)) | {
        "payouts": Payout.objects.filter(organisation=organisation).order_by("-made_at")[
            :PAYOUTS_LISTED
        ],
        "months": load_account_months(
            organisation=organisation, kinds=EARNINGS, month=f"{now:%Y-%m}"
        ).months,
    }
    return render(request, "console/payouts.html", context)


@owner_page
@require_GET
def set_up_payouts(request: PageRequest) -> HttpResponse:
    """To the gateway's pages; a link, for a form may not lead to another site.

    Nor may the form that asks who somebody is: it leads back to the link.
    """
    if must_ask_again(request):
        messages.info(request, "Confirm that it is you, then go on to the payment service.")
        return redirect(f"{reverse('account_reauthenticate')}?next={reverse('payouts')}")
    try:
        address = open_payout_account(
            organisation=request.organisation,
            now=clock.now(),
            return_url=f"{settings.PUBLIC_URL}{reverse('payouts')}",
        )
    except GatewayFault:
        messages.error(request, "The payment service does not answer. Try again in a minute.")
        return redirect("payouts")
    except UserError as error:
        messages.error(request, error.message)
        return redirect("payouts")
    return redirect(address)


@page
@require_GET
def show_statement(request: PageRequest, month: str) -> HttpResponse:
    organisation = request.organisation
    statement = load_statement(organisation=organisation, month=month, limit=EARNINGS_LISTED)
    context = {
        "statement": statement,
        "is_cut": len(statement.earnings) == EARNINGS_LISTED,
        "owed": load_account_months(organisation=organisation, kinds=EARNINGS, month=month),
        "decimals": count_decimals(line.amount_micros for line in statement.earnings),
    }
    return render(request, "console/statement.html", context)


@page
@require_GET
def download_statement(request: PageRequest, month: str) -> LinesDownload:
    """What was earned and paid; ``?entries`` each entry of the ledger, also what was taken back."""
    organisation, content_type = request.organisation, "text/csv; charset=utf-8"
    if "entries" in request.GET:
        owed = load_month_statement(organisation=organisation, kinds=EARNINGS, month=month)
        name = f"entries-{owed.name}.csv"
        return LinesDownload(write_month_csv(owed), content_type=content_type, name=name)
    statement = load_statement(organisation=organisation, month=month)
    name = f"statement-{statement.name}.csv"
    return LinesDownload(write_csv(statement), content_type=content_type, name=name)
