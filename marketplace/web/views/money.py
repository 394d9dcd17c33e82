"""The wallet."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from django.conf import settings
from django.contrib import messages
from django.http import HttpResponse
from django.shortcuts import redirect, render
from django.views.decorators.http import require_GET, require_POST

from marketplace.accounts.models import Organisation
from marketplace.auction.selectors import find_paid_bids
from marketplace.common import clock
from marketplace.common.money import count_decimals, format_usd_exact, to_micros
from marketplace.exports.models import REFERENCE_PREFIX as EXPORT_PREFIX
from marketplace.payments import stripe_client
from marketplace.payments.card_limits import get_day_limit
from marketplace.payments.freezes import list_freezes
from marketplace.payments.funding import (
    can_take_demo_money,
    find_funds_request,
    request_funds,
    take_demo_money,
)
from marketplace.payments.models import (
    MICROS_PER_CENT,
    AccountKind,
    CardPayment,
    Hold,
    HoldStatus,
    Posting,
    WalletRules,
)
from marketplace.payments.selectors import StatementRow, get_wallet, list_wallet_rows
from marketplace.payments.top_ups import list_cards
from marketplace.questions.models import REFERENCE_PREFIX
from marketplace.warm.selectors import list_royalties, sum_royalties
from marketplace.web.views.payments import build_form_key
from marketplace.web.views.requests import PageRequest, money_page, page, show_refusal

ROWS_PER_PAGE = 30
ROYALTIES_SHOWN = 20
PAYMENTS_LISTED = 10
HOLDS_LISTED = 20

#: What an entry is called, and what it did.
WORDS = {
    "grant": "Added to your wallet",
    "hold": "Held",
    "charge": "Paid",
    "release": "Released",
    "refund": "Returned",
    "given_up": "Left to the market",
    "sla_credit": "Credit for a missed deadline",
    "top_up": "Paid in by card",
    "capture": "Left of a cent that a card paid",
    "card_return": "Sent back to a card",
    "card_refund": "Could not go back to a card",
    "uncollected": "Paid for a card",
    "dispute_closed": "Taken for a chargeback",
}
#: The same of questions to models.
QUESTION_WORDS = {
    "hold": "Held for an answer",
    "charge": "Paid for an answer",
    "release": "Released: there was no answer",
}
#: The same of adapters in other forms.
EXPORT_WORDS = {
    "hold": "Held for an export",
    "charge": "Paid for an export",
    "release": "Released: the export was not made",
}


@page
@require_GET
def show_wallet(request: PageRequest) -> HttpResponse:
    organisation = request.organisation
    before = request.GET.get("before", "")
    rows = list_wallet_rows(
        organisation=organisation,
        limit=ROWS_PER_PAGE,
        before=int(before) if before.isascii() and before.isdigit() and len(before) < 19 else None,
    )
    double = request.GET.get("view") == "double"
    holds = Hold.objects.filter(organisation=organisation, status=HoldStatus.HELD)[:HOLDS_LISTED]
    bids = find_paid_bids(hold.reference for hold in holds)
    balance = get_wallet(organisation=organisation)
    listed = _list_rows(rows, double=double)
    royalties = list_royalties(organisation)
    context = {
        "wallet": balance,
        "total_micros": balance.available_micros + balance.held_micros,
        "holds": [(hold, bids.get(hold.reference)) for hold in holds],
        "rows": listed,
        "decimals": count_decimals(_amounts(listed)),
        "double": double,
        "older": rows[-1].cursor if len(rows) == ROWS_PER_PAGE else None,
        "now": clock.now(),
        "demo_micros": settings.DEMO_MONEY_MICROS
        if can_take_demo_money(organisation=organisation)
        else 0,
        "funds_request": find_funds_request(organisation=organisation),
        "royalties": royalties.order_by("-measured_at")[:ROYALTIES_SHOWN],
        "royalties_micros": sum_royalties(royalties),
        "freezes": list_freezes([organisation.pk]),
        **_describe_cards(organisation),
    }
    return render(request, "web/wallet.html", context)


def _describe_cards(organisation: Organisation) -> dict[str, Any]:
    """What the card part of the page shows; nothing where the market takes no cards."""
    if not stripe_client.is_configured():
        return {}
    payments = CardPayment.objects.filter(organisation=organisation).order_by("-created_at")
    return {
        "takes_cards": True,
        "is_test_money": stripe_client.is_test_money(),
        "cards": list_cards(organisation),
        "payments": payments[:PAYMENTS_LISTED],
        "rules": WalletRules.objects.filter(organisation=organisation).first(),
        "form_key": build_form_key(),
        "card_least_micros": settings.CARD_LEAST_CENTS * MICROS_PER_CENT,
        "card_day_micros": get_day_limit(organisation, now=clock.now()) * MICROS_PER_CENT,
    }


@money_page
@require_POST
def ask_for_money(request: PageRequest) -> HttpResponse:
    """``do=demo`` takes demo money; otherwise the operator is asked for an amount."""
    now = clock.now()
    with show_refusal(request):
        if request.POST.get("do") == "demo":
            take_demo_money(organisation=request.organisation, taken_by=request.user, now=now)
            words = "Demo money is in your wallet. You can bid."
        else:
            asked = request_funds(
                organisation=request.organisation,
                amount_micros=to_micros(request.POST.get("usd", "").strip().removeprefix("$")),
                asked_by=request.user,
                now=now,
            )
            words = f"The operator sees your request for {format_usd_exact(asked.amount_micros)}."
        messages.success(request, words)
    return redirect("wallet")


def _list_rows(rows: list[StatementRow], *, double: bool) -> list[dict[str, Any]]:
    bids = find_paid_bids(row.reference for row in rows)
    legs: dict[str, list[Posting]] = {}
    if double:
        postings = Posting.objects.filter(entry__in=[row.entry_id for row in rows])
        for posting in postings.select_related("account", "account__organisation").order_by("pk"):
            legs.setdefault(posting.entry_id, []).append(posting)
    return [
        {
            "row": row,
            "words": _describe(row),
            "bid": bids.get(row.reference),
            # What left the wallet of what was held for it.
            "paid_micros": -(row.held_change_micros + row.available_change_micros)
            if row.kind == "charge"
            else None,
            "rest_came_back": row.kind == "charge" and row.available_change_micros > 0,
            "in_micros": row.available_change_micros if row.available_change_micros > 0 else None,
            "out_micros": -row.available_change_micros if row.available_change_micros < 0 else None,
            "legs": [
                {
                    "account": AccountKind(posting.account.kind).label,
                    "organisation": posting.account.organisation,
                    "debit": -posting.amount_micros if posting.amount_micros < 0 else None,
                    "credit": posting.amount_micros if posting.amount_micros > 0 else None,
                }
                for posting in sorted(legs.get(row.entry_id, []), key=lambda leg: leg.amount_micros)
            ],
        }
        for row in rows
    ]


def _describe(row: StatementRow) -> str:
    words = WORDS
    if row.reference.startswith(REFERENCE_PREFIX):
        words = QUESTION_WORDS
    elif row.reference.startswith(EXPORT_PREFIX):
        words = EXPORT_WORDS
    return words.get(row.kind, row.kind.replace("_", " ").capitalize())


def _amounts(listed: list[dict[str, Any]]) -> Iterator[int]:
    """Every amount of the table, so that its columns can have the decimals of the finest."""
    for item in listed:
        yield from (item["row"].available_after_micros, item["row"].available_change_micros)
        for leg in item["legs"]:
            yield leg["debit"] or leg["credit"] or 0
