"""Invoices: every charge, refund and credit on one, without gaps, with the tax in the price."""

from datetime import UTC, datetime, timedelta
from decimal import Decimal
from typing import Any

import pytest
from django.core.exceptions import ImproperlyConfigured
from django.db import DatabaseError, transaction
from hypothesis import given
from hypothesis import strategies as st

from marketplace.accounts.models import Organisation
from marketplace.common.errors import NotFound, UserError
from marketplace.config.settings import environment
from marketplace.payments.invoice_pdf import build_pdf
from marketplace.payments.invoices import (
    get_billing_details,
    get_invoice,
    issue_due_invoices,
    list_invoices,
    set_billing_details,
)
from marketplace.payments.ledger_checks import check_ledger
from marketplace.payments.models import (
    AccountKind,
    Entry,
    EntryKind,
    GatewayCall,
    Invoice,
    InvoicedEntry,
    InvoiceLine,
    InvoiceSeries,
)
from marketplace.payments.selectors import get_house_balances
from marketplace.payments.services import (
    CostSplit,
    distribute_charge,
    pay_sla_credit,
    refund_charge,
)
from marketplace.payments.taxes import Tax
from tests import builders
from tests.durable_work import make_calls
from tests.stand_in import GatewayControl
from tests.unit.marketplace.common.threads import at_once

pytestmark = pytest.mark.django_db

#: Of the month whose invoices the tests issue.
PAID = datetime(2026, 3, 31, 23, 59, tzinfo=UTC)
ISSUED = datetime(2026, 4, 1, 0, 5, tzinfo=UTC)


@pytest.fixture(autouse=True)
def seller(settings: Any) -> Any:
    settings.SELLER_NAME = "Harbour Compute"
    settings.SELLER_ADDRESS = "1 Quay\nHamburg"
    settings.SELLER_COUNTRY = "DE"
    settings.SELLER_TAX_ID = "DE111111111"
    settings.TAX_RATES = {"DE": 19_000, "FR": 20_000, "CH": 8_100}
    yield
    check = check_ledger()
    assert check.balanced, check


@pytest.fixture
def buyer() -> Organisation:
    return builders.organisation(name="Tidewater", usd="100")


def _charge(buyer: Organisation, name: str, micros: int, *, now: datetime = PAID) -> None:
    builders.hold_funds(organisation=buyer, amount_micros=micros, reference=name, now=now)
    builders.settle_hold(hold_reference=name, charge_micros=micros, now=now)


def _issue(*, now: datetime = ISSUED) -> int:
    return issue_due_invoices(now=now, name_references=_name)


def _name(references: Any) -> dict[str, str]:
    return {
        reference: "Answers" if reference.startswith("question:") else f"job of {reference}"
        for reference in references
    }


def _lines(invoice: Invoice) -> list[tuple[str, str, int, int]]:
    return [
        (line.text, line.kind, line.count, line.amount_micros)
        for line in invoice.lines.order_by("position")
    ]


def test_the_refund_of_a_cancelled_job_names_what_was_kept(buyer: Organisation) -> None:
    _charge(buyer, "bid:1", 1_000_000)
    refund_charge(hold_reference="bid:1", amount_micros=900_000, reason="not done", now=PAID)
    split = CostSplit(
        asks_micros=950_000,
        asks_returned_micros=900_000,
        asks_kept_micros=50_000,
        kept_micros=100_000,
        shares=(),
    )
    distribute_charge(hold_reference="bid:1", split=split, now=PAID)
    assert _issue() == 1
    [invoice] = list_invoices(buyer)[0]
    assert _lines(invoice) == [
        ("job of bid:1", "charge", 1, 1_000_000),
        ("job of bid:1, but for $0.10 that is kept", "refund", 1, -900_000),
    ]
    check, balances = check_ledger(), get_house_balances()
    assert (check.balanced, check.shared_asks.kept_micros) == (True, 50_000)
    assert balances[AccountKind.CONGESTION] == 100_000


def test_a_month_is_not_looked_at_again_once_it_gets_no_more_entries(
    buyer: Organisation, django_assert_num_queries: Any
) -> None:
    _charge(buyer, "bid:1", 1_000_000)
    assert _issue() == 1
    # A clock was slow, and the first of the new month is no matter of this one.
    _charge(buyer, "bid:2", 2_000_000, now=PAID)
    _charge(buyer, "bid:3", 3_000_000, now=ISSUED)
    closed = datetime(2026, 4, 2, tzinfo=UTC)
    assert _issue(now=closed - timedelta(seconds=1)) == 1
    assert _issue(now=closed) == 0
    with django_assert_num_queries(1):
        assert _issue(now=closed + timedelta(days=20)) == 0
    assert _issue(now=closed + timedelta(days=30)) == 1
    totals = [invoice.total_micros for invoice in list_invoices(buyer)[0]]
    assert totals == [3_000_000, 2_000_000, 1_000_000]


def test_a_month_has_one_invoice_with_all_that_was_paid_and_came_back(buyer: Organisation) -> None:
    set_billing_details(
        organisation=buyer, legal_name="Tidewater GmbH", address="2 Dock", country="DE", tax_id=""
    )
    _charge(buyer, "bid:1", 10_000_003)
    _charge(buyer, "question:1", 7)
    _charge(buyer, "question:2", 5)
    refund_charge(hold_reference="bid:1", amount_micros=3, reason="not done: part", now=PAID)
    pay_sla_credit(
        organisation=buyer, amount_micros=1_000_000, hold_reference="bid:1", reason="late", now=PAID
    )
    assert _issue() == 1
    [invoice] = list_invoices(buyer)[0]
    assert _lines(invoice) == [
        ("job of bid:1", "charge", 1, 10_000_003),
        ("Answers", "charge", 2, 12),
        ("job of bid:1", "refund", 1, -3),
        ("job of bid:1", "credit", 1, -1_000_000),
    ]
    # 9,000,012 with 19 % in it.
    assert (invoice.total_micros, invoice.tax_micros) == (9_000_012, 1_436_977)
    assert (invoice.net_micros, invoice.tax_percent) == (7_563_035, "19")
    assert (invoice.number, invoice.month_name, invoice.title) == (
        "2026-000001",
        "2026-03",
        "Invoice",
    )
    assert (invoice.seller_name, invoice.buyer_name) == ("Harbour Compute", "Tidewater GmbH")
    balances = get_house_balances()
    assert (balances[AccountKind.TAXES], balances[AccountKind.REVENUE]) == (1_436_977, -1_436_977)


def test_a_second_run_issues_nothing_and_a_late_entry_gets_an_invoice_of_its_own(
    buyer: Organisation,
) -> None:
    _charge(buyer, "bid:1", 5)
    assert [_issue(), _issue()] == [1, 0]
    # Booked by a transaction that was still open when the month's invoice was issued.
    _charge(buyer, "bid:2", 6)
    assert [_issue(), _issue()] == [1, 0]
    assert [invoice.number for invoice in list_invoices(buyer)[0]] == ["2026-000002", "2026-000001"]
    assert InvoicedEntry.objects.count() == Entry.objects.filter(kind=EntryKind.CHARGE).count() == 2


def test_the_present_month_waits_and_each_month_has_its_own(buyer: Organisation) -> None:
    _charge(buyer, "bid:1", 5)
    _charge(buyer, "bid:2", 6, now=ISSUED)
    assert _issue() == 1
    assert _issue(now=ISSUED + timedelta(days=31)) == 1
    assert {i.month_name: i.total_micros for i in list_invoices(buyer)[0]} == {
        "2026-03": 5,
        "2026-04": 6,
    }


def test_numbers_have_no_gaps_across_organisations_and_begin_again_each_year() -> None:
    for number in range(3):
        _charge(builders.organisation(usd="1"), f"bid:{number}", 5)
    _issue()
    _charge(builders.organisation(usd="1"), "bid:9", 5, now=ISSUED.replace(month=12))
    _issue(now=ISSUED.replace(year=2027, month=1))
    assert sorted(Invoice.objects.values_list("number", flat=True)) == [
        "2026-000001",
        "2026-000002",
        "2026-000003",
        "2027-000001",
    ]


def test_more_back_than_paid_is_a_credit_note_with_tax_below_zero(buyer: Organisation) -> None:
    _charge(buyer, "bid:1", 1_190_000)
    _issue()
    refund_charge(hold_reference="bid:1", amount_micros=1_190_000, reason="failed", now=ISSUED)
    _issue(now=ISSUED + timedelta(days=31))
    note, invoice = list_invoices(buyer)[0]
    assert (note.title, note.total_micros, note.tax_micros) == ("Credit note", -1_190_000, -190_000)
    assert (invoice.tax_micros, get_house_balances()[AccountKind.TAXES]) == (190_000, 0)


def test_a_released_hold_and_a_price_of_nothing_are_on_no_invoice(buyer: Organisation) -> None:
    builders.hold_funds(organisation=buyer, amount_micros=5, reference="bid:1", now=PAID)
    builders.settle_hold(hold_reference="bid:1", charge_micros=0, now=PAID)
    assert _issue() == 0
    assert not InvoiceSeries.objects.exists()


@pytest.mark.parametrize(
    ("country", "tax_id", "percent", "note"),
    [
        ("", "", "19", ""),
        ("DE", "DE123456789", "19", ""),
        ("FR", "", "20", ""),
        ("FR", "FR 12 345", "0", "Reverse charge: the buyer owes the tax."),
        ("CH", "", "8.1", ""),
        ("US", "", "0", ""),
        ("US", "US1234", "0", ""),
    ],
)
def test_the_tax_follows_from_the_buyers_country_and_tax_id(
    buyer: Organisation, country: str, tax_id: str, percent: str, note: str
) -> None:
    set_billing_details(
        organisation=buyer, legal_name="T", address="", country=country, tax_id=tax_id
    )
    _charge(buyer, "bid:1", 1_000_000)
    _issue()
    [invoice] = list_invoices(buyer)[0]
    assert (invoice.tax_percent, invoice.tax_note) == (percent, note)
    assert invoice.buyer_tax_id == tax_id.replace(" ", "")


@given(total=st.integers(-(10**15), 10**15), rate=st.integers(0, 100_000))
def test_net_with_tax_on_it_is_the_total_to_the_micro_dollar(total: int, rate: int) -> None:
    tax = Tax(rate).compute(total)
    net = total - tax
    assert abs(Decimal(net) * rate / 100_000 - tax) <= Decimal("1.5")
    assert tax * total >= 0
    assert Tax(rate).compute(-total) == -tax


def test_an_invoice_stays_as_it_was_issued(buyer: Organisation) -> None:
    _charge(buyer, "bid:1", 5)
    _issue()
    set_billing_details(organisation=buyer, legal_name="New", address="", country="FR", tax_id="")
    [invoice] = list_invoices(buyer)[0]
    assert invoice.buyer_name == "Tidewater"
    for change in (
        lambda: Invoice.objects.update(total_micros=1),
        lambda: InvoiceLine.objects.all().delete(),
        lambda: InvoicedEntry.objects.all().delete(),
    ):
        with pytest.raises(DatabaseError, match="Cannot"), transaction.atomic():
            change()


@pytest.mark.parametrize(
    ("given", "param"),
    [
        ({"legal_name": " "}, "legal_name"),
        ({"legal_name": "x" * 201}, "legal_name"),
        ({"legal_name": "a\0b"}, "legal_name"),
        ({"address": "x" * 501}, "address"),
        ({"country": "XX"}, "country"),
        ({"country": "", "tax_id": "DE123"}, "country"),
        ({"tax_id": "FR123"}, "tax_id"),
        ({"tax_id": "DE<b>"}, "tax_id"),
    ],
)
def test_wrong_details_are_refused_at_their_field(
    buyer: Organisation, given: dict[str, str], param: str
) -> None:
    terms = {"legal_name": "T", "address": "", "country": "DE", "tax_id": ""} | given
    with pytest.raises(UserError) as refused:
        set_billing_details(organisation=buyer, **terms)
    assert refused.value.param == param
    assert get_billing_details(buyer).legal_name == "Tidewater"


def test_an_invoice_of_another_organisation_is_not_found(buyer: Organisation) -> None:
    _charge(buyer, "bid:1", 5)
    _issue()
    with pytest.raises(NotFound):
        get_invoice(organisation=builders.organisation(), number="2026-000001")


@pytest.mark.parametrize("name", ["Žofie & <b>Sons</b>", "東京都 合同会社", "x" * 200])
def test_the_pdf_has_any_name_and_is_the_same_each_time(buyer: Organisation, name: str) -> None:
    set_billing_details(organisation=buyer, legal_name=name, address="a\nb", country="", tax_id="")
    for number in range(60):
        _charge(buyer, f"bid:{number}", 5 + number)
    _issue()
    [invoice] = list_invoices(buyer)[0]
    pdf = build_pdf(invoice)
    assert pdf.startswith(b"%PDF")
    assert pdf == build_pdf(invoice)
    assert pdf.count(b"/Type /Page\n") > 1


@pytest.mark.django_db(transaction=True)
def test_two_runs_at_once_issue_one(buyer: Organisation) -> None:
    for number in range(4):
        _charge(buyer, f"bid:{number}", 5)
    at_once([_issue] * 3)
    assert [invoice.total_micros for invoice in list_invoices(buyer)[0]] == [20]
    assert InvoiceSeries.objects.get().last_number == 1


@pytest.mark.parametrize("text", ["DE", "DE=x", "DE=-1", "DE=101", "de=19", "DE=1.00001", "D=1"])
def test_rates_that_cannot_be_are_refused_by_name(monkeypatch: Any, text: str) -> None:
    monkeypatch.setenv("TAX_RATES", text)
    with pytest.raises(ImproperlyConfigured, match="TAX_RATES"):
        environment.rates("TAX_RATES")


# By the gateway


@pytest.fixture
def stripe_tax(cards: GatewayControl, settings: Any) -> GatewayControl:
    settings.STRIPE_TAX = True
    return cards


@pytest.mark.parametrize(
    ("country", "postal_code", "tax_id", "percent", "tax_micros", "note"),
    [
        ("", "", "", "19", 1_600_000, ""),
        ("FR", "", "", "20", 1_670_000, ""),
        ("FR", "", "FR12345", "0", 0, "Reverse charge: the buyer owes the tax."),
        ("US", "94105", "", "8.875", 820_000, ""),
        ("BR", "", "", "0", 0, ""),
    ],
)
def test_the_gateway_says_what_part_of_a_total_is_tax(
    stripe_tax: GatewayControl,
    buyer: Organisation,
    country: str,
    postal_code: str,
    tax_id: str,
    percent: str,
    tax_micros: int,
    note: str,
) -> None:
    set_billing_details(
        organisation=buyer,
        legal_name="T",
        address="",
        country=country,
        postal_code=postal_code,
        tax_id=tax_id,
    )
    _charge(buyer, "bid:1", 10_004_000)
    assert [_issue(), _issue()] == [0, 0]
    make_calls(now=ISSUED)
    assert [_issue(), _issue()] == [1, 0]
    [invoice] = list_invoices(buyer)[0]
    assert (invoice.total_micros, invoice.tax_percent, invoice.tax_micros, invoice.tax_note) == (
        *(10_004_000, percent, tax_micros, note),
    )
    assert get_house_balances()[AccountKind.TAXES] == tax_micros
    # It stands in the gateway's reports once, whatever fails.
    stripe_tax.control("fail", when="drop", method="POST", path="/tax/transactions")
    for hours in range(3):
        make_calls(now=ISSUED + timedelta(hours=hours))
    [recorded] = stripe_tax.find("tax.transaction")
    assert recorded["reference"] == invoice.number


def test_an_invoice_waits_until_the_gateway_knows_where_the_buyer_is(
    stripe_tax: GatewayControl, buyer: Organisation
) -> None:
    asked = {"organisation": buyer, "legal_name": "T", "address": "", "tax_id": ""}
    set_billing_details(**asked, country="US")
    _charge(buyer, "bid:1", 1_000_000)
    for _ in range(2):
        assert _issue() == 0
        make_calls(now=ISSUED)
    refused = GatewayCall.objects.get()
    assert (refused.status, refused.error_message) == (
        *("refused", "The buyer's location is not recognised."),
    )
    set_billing_details(**asked, country="US", postal_code="94105")
    _issue()
    make_calls(now=ISSUED)
    assert _issue() == 1


def test_what_came_back_is_taxed_as_the_last_invoice_was(
    stripe_tax: GatewayControl, buyer: Organisation
) -> None:
    _charge(buyer, "bid:1", 10_000_000)
    _issue()
    make_calls(now=ISSUED)
    _issue()
    refund_charge(hold_reference="bid:1", amount_micros=1_190_000, reason="late", now=ISSUED)
    assert _issue(now=datetime(2026, 5, 1, 1, tzinfo=UTC)) == 1
    credit_note = list_invoices(buyer)[0][0]
    assert (credit_note.total_micros, credit_note.tax_micros) == (-1_190_000, -190_000)
