"""Invoices, whom they are addressed to, and usage records."""

from __future__ import annotations

from django.contrib import messages
from django.http import HttpResponse
from django.shortcuts import redirect, render
from django.views.decorators.http import require_GET, require_http_methods

from marketplace.common import clock
from marketplace.common.downloads import LinesDownload
from marketplace.common.errors import UserError
from marketplace.common.money import count_decimals
from marketplace.jobs.usage import list_usage_months, write_usage
from marketplace.payments.invoice_pdf import build_pdf
from marketplace.payments.invoices import (
    get_billing_details,
    get_invoice,
    list_invoices,
    set_billing_details,
)
from marketplace.payments.models import COUNTRY_CHOICES
from marketplace.payments.statements import read_month
from marketplace.web.views.requests import PageRequest, money_page, page


@money_page
@require_http_methods(["GET", "POST"])
def show_invoices(request: PageRequest) -> HttpResponse:
    """The invoices, and whom the next ones are addressed to."""
    details = get_billing_details(request.organisation)
    error: UserError | None = None
    if request.method == "POST":
        given = {
            name: request.POST.get(name, "")
            for name in ("legal_name", "address", "postal_code", "country", "tax_id")
        }
        try:
            set_billing_details(organisation=request.organisation, **given)
        except UserError as refused:
            error = refused
            for name, text in given.items():
                setattr(details, name, text)
        else:
            messages.success(request, "Saved. The next invoices say so.")
            return redirect("invoices")
    before = request.GET.get("before", "")
    listed, last = list_invoices(request.organisation, before=before)
    context = {
        "invoices": listed,
        "last": last,
        "is_later": bool(before),
        "details": details,
        "error": error,
        "countries": COUNTRY_CHOICES,
        "usage_months": list_usage_months(organisation=request.organisation, now=clock.now()),
    }
    return render(request, "web/invoices.html", context, status=200 if error is None else 400)


@page
@require_GET
def show_invoice(request: PageRequest, number: str) -> HttpResponse:
    invoice = get_invoice(organisation=request.organisation, number=number)
    lines = list(invoice.lines.order_by("position"))
    amounts = [line.amount_micros for line in lines]
    context = {
        "invoice": invoice,
        "lines": lines,
        "decimals": count_decimals([*amounts, invoice.tax_micros, invoice.net_micros]),
    }
    return render(request, "web/invoice.html", context)


@page
@require_GET
def download_invoice(request: PageRequest, number: str) -> HttpResponse:
    invoice = get_invoice(organisation=request.organisation, number=number)
    name = f"{invoice.title.lower().replace(' ', '-')}-{invoice.number}.pdf"
    return HttpResponse(
        build_pdf(invoice),
        content_type="application/pdf",
        headers={"Content-Disposition": f'attachment; filename="{name}"'},
    )


@page
@require_GET
def download_usage(request: PageRequest, month: str) -> LinesDownload:
    """Usage records of a month, one CloudEvent a line."""
    starts_at, ends_at = read_month(month)
    lines = write_usage(organisation=request.organisation, starts_at=starts_at, ends_at=ends_at)
    return LinesDownload(lines, content_type="application/jsonl", name=f"usage-{month}.jsonl")
