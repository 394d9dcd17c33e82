"""The operator's pages of the books: months, closing them, and entries that two operators book."""

from __future__ import annotations

from django import forms
from django.contrib import messages
from django.http import HttpResponse
from django.shortcuts import redirect, render
from django.views.decorators.http import require_GET, require_POST

from marketplace.accounts.models import Organisation
from marketplace.common import clock
from marketplace.common.downloads import LinesDownload
from marketplace.common.money import to_micros
from marketplace.payments.closed_months import close_month, find_next_to_close, list_closed_months
from marketplace.payments.manual_entries import (
    CORRECTABLE,
    ManualTerms,
    book_proposed,
    decline_proposed,
    list_manual_entries,
    propose_entry,
)
from marketplace.payments.models import AccountKind, ManualKind
from marketplace.payments.month_statements import (
    ALL_KINDS,
    load_account_months,
    write_accounts_csv,
)
from marketplace.web.views.requests import PageRequest, operator_page, show_refusal


class ManualEntryForm(forms.Form):
    """Accounts and the organisation count for corrections only."""

    kind = forms.ChoiceField(
        label="What it is",
        choices=ManualKind.choices,
        widget=forms.Select(attrs={"class": "field"}),
    )
    usd = forms.DecimalField(
        label="Amount in dollars",
        max_digits=13,
        decimal_places=6,
        widget=forms.TextInput(attrs={"class": "field num", "inputmode": "decimal"}),
    )
    reason = forms.CharField(
        label="Why", max_length=300, widget=forms.TextInput(attrs={"class": "field"})
    )
    source = forms.ChoiceField(
        label="Of a correction: from",
        required=False,
        choices=[("", "")] + [(kind.value, kind.label) for kind in CORRECTABLE],
        widget=forms.Select(attrs={"class": "field"}),
    )
    target = forms.ChoiceField(
        label="to",
        required=False,
        choices=[("", "")] + [(kind.value, kind.label) for kind in CORRECTABLE],
        widget=forms.Select(attrs={"class": "field"}),
    )
    organisation = forms.ModelChoiceField(
        label="Whose wallet or earnings, where one is moved (its key)",
        required=False,
        queryset=Organisation.objects.all(),
        widget=forms.TextInput(attrs={"class": "field mono"}),
    )


@operator_page
@require_GET
def show_books(request: PageRequest, month: str = "") -> HttpResponse:
    """One month; the present one where none is named."""
    now = clock.now()
    name = month or f"{now:%Y-%m}"
    closed = list_closed_months()
    context = {
        "month": name,
        "books": load_account_months(organisation=None, kinds=ALL_KINDS, month=name),
        "closed": closed,
        "closed_month": next((row for row in closed if row.month == name), None),
        "next_to_close": find_next_to_close(now=now),
        "entries": list_manual_entries(),
        "labels": dict(AccountKind.choices),
        "form": ManualEntryForm(),
    }
    return render(request, "console/books.html", context)


@operator_page
@require_GET
def download_books(request: PageRequest, month: str) -> LinesDownload:
    books = load_account_months(organisation=None, kinds=ALL_KINDS, month=month)
    return LinesDownload(
        write_accounts_csv(books.accounts),
        content_type="text/csv; charset=utf-8",
        name=f"books-{month}.csv",
    )


@operator_page
@require_POST
def close_books(request: PageRequest, month: str) -> HttpResponse:
    with show_refusal(request):
        close_month(month=month, closed_by=request.user, now=clock.now())
        messages.success(request, f"The books of {month} are closed.")
    return redirect("operator_books")


@operator_page
@require_POST
def propose(request: PageRequest) -> HttpResponse:
    form = ManualEntryForm(request.POST)
    if not form.is_valid():
        messages.error(request, "Name a kind, an amount and a reason.")
        return redirect("operator_books")
    asked = form.cleaned_data
    with show_refusal(request):
        propose_entry(
            terms=ManualTerms(
                kind=ManualKind(asked["kind"]),
                amount_micros=to_micros(asked["usd"]),
                reason=asked["reason"],
                source=asked["source"],
                target=asked["target"],
                organisation=asked["organisation"],
            ),
            proposed_by=request.user,
            now=clock.now(),
        )
        messages.success(request, "It waits for another operator.")
    return redirect("operator_books")


@operator_page
@require_POST
def decide(request: PageRequest, manual_id: str) -> HttpResponse:
    now = clock.now()
    with show_refusal(request):
        if request.POST.get("do") == "book":
            book_proposed(manual_id=manual_id, booked_by=request.user, now=now)
            messages.success(request, "It is booked.")
        else:
            decline_proposed(manual_id=manual_id, declined_by=request.user, now=now)
            messages.success(request, "It is declined; nothing was booked.")
    return redirect("operator_books")
