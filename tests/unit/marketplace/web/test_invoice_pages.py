"""Invoices on the pages: whom they are for, what they say, and as a file."""

from __future__ import annotations

import re
from typing import Any

import pytest
import time_machine
from django.test import Client

from marketplace.accounts.models import Membership, Organisation, Role
from marketplace.auction.tasks import issue_invoices
from marketplace.payments.caps import set_cap
from marketplace.payments.invoices import INVOICES_OF_PAGE
from marketplace.payments.models import BillingDetails, Invoice, SpendingCap
from tests import builders
from tests.builders import NOW
from tests.grown_house import copy_rows
from tests.pages import read_text

pytestmark = pytest.mark.django_db

DETAILS = {
    "legal_name": "Northwind <b>Labs</b>",
    "address": "1 Quay\nBergen",
    "country": "NO",
    "tax_id": "no 123456",
}


@pytest.fixture
def buyer(settings: Any) -> Organisation:
    settings.TAX_RATES, settings.SELLER_COUNTRY = {"NO": 25_000}, "NO"
    return builders.organisation(name="Northwind Labs", usd="10")


@pytest.fixture
def owner(buyer: Organisation) -> Client:
    client = Client()
    client.force_login(builders.owner_of(buyer))
    client.post("/settings/organisation", {"organisation": buyer.pk})
    return client


def _pay(buyer: Organisation) -> None:
    builders.hold_funds(organisation=buyer, amount_micros=2_000_001, reference="question:q")
    builders.settle_hold(hold_reference="question:q", charge_micros=1_250_000)
    with time_machine.travel(NOW.replace(month=4, day=1), tick=False):
        issue_invoices()


def test_an_invoice_says_who_what_and_the_tax_on_page_and_as_a_file(
    owner: Client, buyer: Organisation
) -> None:
    assert "No invoices yet" in read_text(owner.get("/wallet/invoices"))
    assert owner.post("/wallet/invoices", DETAILS).status_code == 302
    _pay(buyer)
    assert "2026-000001" in read_text(owner.get("/wallet/invoices"))
    page = owner.get("/wallet/invoices/2026-000001")
    text = read_text(page)
    for words in (
        "Invoice 2026-000001",
        "Northwind <b>Labs</b>",
        "Norway",
        "NO123456",
        "Answers of models",
        "Net $1.00",
        "Tax, 25 % $0.25",
        "Total $1.25",
    ):
        assert words in text
    assert "<b>Labs" not in page.content.decode()
    pdf = owner.get("/wallet/invoices/2026-000001/pdf")
    assert (pdf["Content-Type"], pdf.content[:5]) == ("application/pdf", b"%PDF-")
    assert pdf["Content-Disposition"] == 'attachment; filename="invoice-2026-000001.pdf"'


def test_wrong_details_are_told_and_what_was_typed_stays(owner: Client) -> None:
    answer = owner.post("/wallet/invoices", DETAILS | {"tax_id": "SE1234"})
    assert answer.status_code == 400
    assert "The tax id is of another country than the address." in read_text(answer)
    assert b"SE1234" in answer.content
    assert not BillingDetails.objects.exists()


def test_who_only_looks_changes_no_details(buyer: Organisation) -> None:
    viewer = builders.user()
    Membership.objects.create(organisation=buyer, user=viewer, role=Role.VIEWER)
    client = Client()
    client.force_login(viewer)
    client.post("/settings/organisation", {"organisation": buyer.pk})
    assert client.get("/wallet/invoices").status_code == 200
    assert client.post("/wallet/invoices", DETAILS).status_code == 403
    assert not BillingDetails.objects.exists()


@pytest.mark.parametrize("path", ["", "/pdf"])
def test_another_organisations_invoice_is_not_found(buyer: Organisation, path: str) -> None:
    _pay(buyer)
    stranger = Client()
    stranger.force_login(builders.user())
    assert stranger.get(f"/wallet/invoices/2026-000001{path}").status_code == 404


@pytest.mark.parametrize("month", ["2026-13", "x", "2026-03-01"])
def test_usage_of_no_month_is_not_found(owner: Client, month: str) -> None:
    assert owner.get(f"/wallet/usage/{month}").status_code == 404
    assert owner.get("/wallet/usage/2026-03").status_code == 200


def test_a_cap_is_set_for_an_api_key_and_taken_away(owner: Client, buyer: Organisation) -> None:
    key, _ = builders.api_key(buyer)
    form = {"who": key.pk, "period": "day", "usd": "5"}
    owner.post("/settings/caps", form)
    assert f"API key {key.name} a day" in read_text(owner.get("/settings/caps"))
    set_cap(organisation=buyer, member_id=None, period="day", amount_micros=5)
    owner.post("/settings/caps", {"who": key.pk, "period": "day"})
    assert SpendingCap.objects.get().api_key is None


def test_older_invoices_are_a_page_further(owner: Client, buyer: Organisation) -> None:
    _pay(buyer)
    copy_rows([Invoice], times=INVOICES_OF_PAGE + 5)
    address, seen = "/wallet/invoices", []
    for count in (INVOICES_OF_PAGE, 6):
        page = owner.get(address).content.decode()
        numbers = re.findall(r'href="/wallet/invoices/([^"/]+)/pdf"', page)
        assert len(numbers) == count
        seen += numbers
        older = re.search(r'href="(\?before=[^"]+)"', page)
        address = f"/wallet/invoices{older[1]}" if older else ""
    assert address == ""
    latest_first = Invoice.objects.order_by("-issued_at", "-number")
    assert seen == list(latest_first.values_list("number", flat=True))
    assert owner.get("/wallet/invoices?before=2026-999999").status_code == 404
