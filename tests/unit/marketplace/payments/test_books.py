"""Entries by two operators, closed months, and statements that anybody adds up again."""

from __future__ import annotations

import csv
from datetime import UTC, datetime, timedelta
from decimal import Decimal
from typing import Any

import pytest
from django.db import IntegrityError, connection, transaction
from django.test import Client

from marketplace.common.errors import Conflict, NotAllowed, PaymentRequired, UserError
from marketplace.payments.closed_months import (
    close_month,
    compute_month_digest,
    find_next_to_close,
    sum_accounts,
)
from marketplace.payments.earnings import Share, distribute_charge, pay_vendor
from marketplace.payments.ledger_checks import check_ledger
from marketplace.payments.manual_entries import (
    ManualTerms,
    book_proposed,
    decline_proposed,
    propose_entry,
)
from marketplace.payments.maturity import mature_earnings
from marketplace.payments.models import ClosedMonth, Entry, LedgerSeal, ManualEntry, ManualKind
from marketplace.payments.month_statements import (
    ALL_KINDS,
    EARNINGS,
    WALLET,
    load_account_months,
    load_month_statement,
    write_month_csv,
)
from marketplace.payments.seals import seal_ledger
from marketplace.payments.selectors import get_house_balances, get_wallet
from marketplace.payments.services import grant_money
from tests import builders
from tests.builders import NOW
from tests.pages import read_amounts, read_download, read_lists, read_text

pytestmark = pytest.mark.django_db

NEXT = datetime(NOW.year + NOW.month // 12, NOW.month % 12 + 1, 1, tzinfo=UTC)
MONTH = f"{NOW:%Y-%m}"


@pytest.fixture
def books():
    """An organisation that was granted ten dollars, and two operators."""
    return builders.organisation(usd="10"), builders.operator(), builders.operator()


def propose(kind: Any, operator: Any, *, usd: int = 4, **more: Any) -> ManualEntry:
    terms = ManualTerms(kind, usd * 1_000_000, "The grant was meant for another", **more)
    return propose_entry(terms=terms, proposed_by=operator, now=NOW)


def test_a_wrong_grant_is_taken_back_by_two_operators(books) -> None:
    owner, first, second = books
    terms: dict[str, Any] = {
        "source": "wallet_available",
        "target": "grants",
        "organisation": owner,
    }
    manual = propose(ManualKind.CORRECTION, first, **terms)
    with pytest.raises(NotAllowed) as refused:
        book_proposed(manual_id=manual.pk, booked_by=first, now=NOW)
    assert refused.value.code == "second_operator"
    assert get_wallet(organisation=owner).available_micros == 10_000_000

    booked = book_proposed(manual_id=manual.pk, booked_by=second, now=NOW)
    assert booked.entry is not None
    assert booked.entry.memo == "Correction: The grant was meant for another"
    assert get_wallet(organisation=owner).available_micros == 6_000_000
    assert get_house_balances()["grants"] == -6_000_000
    with pytest.raises(Conflict):
        book_proposed(manual_id=manual.pk, booked_by=second, now=NOW)
    assert check_ledger().balanced


@pytest.mark.parametrize(
    ("kind", "loses", "gains"),
    [
        (ManualKind.TAX_PAID, "taxes", "bank"),
        (ManualKind.RENT_PAID, "suppliers", "bank"),
        (ManualKind.WRITE_OFF, "write_offs", "disputes"),
    ],
)
def test_what_leaves_the_house_has_its_accounts(books, kind, loses: str, gains: str) -> None:
    _, first, second = books
    book_proposed(manual_id=propose(kind, first).pk, booked_by=second, now=NOW)
    balances = get_house_balances()
    assert (balances[loses], balances[gains]) == (-4_000_000, 4_000_000)
    assert check_ledger().balanced


def test_what_is_refused_books_nothing(books) -> None:
    owner, first, second = books
    for terms in (
        {"source": "clearing", "target": "revenue"},
        {"source": "revenue", "target": "revenue"},
        {"source": "revenue", "target": "grants", "organisation": owner},
        {"source": "wallet_available", "target": "grants"},
    ):
        with pytest.raises(UserError):
            propose(ManualKind.CORRECTION, first, **terms)
    with pytest.raises(UserError):
        propose(ManualKind.WRITE_OFF, first, usd=0)
    with pytest.raises(NotAllowed):
        propose(ManualKind.WRITE_OFF, builders.owner_of(owner))
    assert not ManualEntry.objects.exists()

    terms: dict[str, Any] = {
        "source": "wallet_available",
        "target": "grants",
        "organisation": owner,
    }
    manual = propose(ManualKind.CORRECTION, first, usd=11, **terms)
    with pytest.raises(PaymentRequired):
        book_proposed(manual_id=manual.pk, booked_by=second, now=NOW)
    decline_proposed(manual_id=manual.pk, declined_by=first, now=NOW)
    assert Entry.objects.count() == 1
    with pytest.raises(IntegrityError), transaction.atomic():
        ManualEntry.objects.update(decided_by=first, entry=Entry.objects.get())


def test_nothing_is_booked_into_a_closed_month(books) -> None:
    owner, operator, second = books
    with pytest.raises(Conflict) as early:
        close_month(month=MONTH, closed_by=operator, now=NEXT + timedelta(hours=23))
    assert early.value.code == "month_open"
    later = NEXT + timedelta(days=1)
    assert find_next_to_close(now=later) == MONTH
    with connection.cursor() as cursor:
        # As in the web server, which ends others after half a minute.
        cursor.execute("SET LOCAL statement_timeout = '20s'")
        closed = close_month(month=MONTH, closed_by=operator, now=later)
        cursor.execute("SHOW statement_timeout")
        assert cursor.fetchone() == ("0",)
    assert closed.sums == {"grants": -10_000_000, "wallet_available": 10_000_000}
    assert closed.sums == sum_accounts(until=MONTH)
    seal = LedgerSeal.objects.get(number=closed.seal)
    assert closed.digest == compute_month_digest(MONTH, closed.sums, seal.digest)
    assert find_next_to_close(now=later) is None

    manual = propose(ManualKind.WRITE_OFF, operator)
    with pytest.raises(IntegrityError, match="closed"), transaction.atomic():
        book_proposed(manual_id=manual.pk, booked_by=second, now=NEXT - timedelta(seconds=1))
    grant_money(
        organisation=owner, amount_micros=1_000_000, granted_by=operator, reference="n", now=NEXT
    )
    with pytest.raises(Conflict):
        close_month(month=MONTH, closed_by=operator, now=later)
    assert ClosedMonth.objects.count() == 1
    assert get_wallet(organisation=owner).available_micros == 11_000_000


def test_statements_go_on_from_month_to_month_and_add_up(books) -> None:
    owner, *_ = books
    builders.hold_funds(organisation=owner, amount_micros=3_000_000, reference="bid_1")
    builders.settle_hold(hold_reference="bid_1", charge_micros=1_250_000)
    first = load_month_statement(organisation=owner, kinds=WALLET, month=MONTH)
    # What only moves between available and held is no line.
    assert [(line.kind, line.amount_micros) for line in first.lines] == [
        ("Grant", 10_000_000),
        ("Charge", -1_250_000),
    ]
    assert (first.opening_micros, first.closing_micros) == (0, 8_750_000)
    after = load_month_statement(organisation=owner, kinds=WALLET, month=f"{NEXT:%Y-%m}")
    assert (after.opening_micros, after.lines, after.closing_micros) == (8_750_000, (), 8_750_000)
    rows = list(csv.DictReader(write_month_csv(first)))
    assert sum(Decimal(row["amount_usd"] or 0) for row in rows) == Decimal("8.75")
    assert Decimal(rows[-1]["after_usd"]) == Decimal("8.75")
    house = load_account_months(organisation=None, kinds=ALL_KINDS, month=MONTH)
    assert (house.closing_micros, house.months) == (0, (MONTH,))
    for amount, at in ((1_000, NOW), (20_000, NEXT)):
        builders.hold_funds(
            organisation=owner, amount_micros=amount, reference=f"bid_{amount}", now=at
        )
        # What is sealed counts as what is not.
        seal_ledger(now=at)
        builders.hold_funds(
            organisation=owner, amount_micros=2 * amount, reference=f"bid_{2 * amount}", now=at
        )
    later = load_account_months(organisation=owner, kinds=WALLET, month=f"{NEXT:%Y-%m}")
    assert later.months == (f"{NEXT:%Y-%m}", MONTH)
    assert [(of.opening_micros, of.change_micros) for of in later.accounts] == [
        (8_747_000, -60_000),
        (3_000, 60_000),
    ]
    earned = load_month_statement(organisation=owner, kinds=EARNINGS, month=MONTH)
    assert (earned.opening_micros, earned.lines) == (0, ())


def test_the_pages_add_up_as_they_are_read(books, client: Client) -> None:
    owner, operator, second = books
    builders.hold_funds(organisation=owner, amount_micros=3_000_000, reference="bid_1")
    builders.settle_hold(hold_reference="bid_1", charge_micros=1_250_000)
    client.force_login(builders.owner_of(owner))
    held = [0, 0, 0]
    available = [0, Decimal("8.75"), Decimal("8.75")]
    assert read_amounts(client.get(f"/wallet/months/{MONTH}")) == [
        available,
        held,
        [Decimal("8.75")],
    ]

    client.force_login(operator)
    asked = {"kind": "write_off", "usd": "2.50", "reason": "The buyer is insolvent"}
    client.post("/operator/money/entries", asked)
    manual = ManualEntry.objects.get()
    client.post(f"/operator/money/entries/{manual.pk}", {"do": "book"})
    assert ManualEntry.objects.get().entry is None
    client.force_login(second)
    client.post(f"/operator/money/entries/{manual.pk}", {"do": "book"})
    assert ManualEntry.objects.get().entry is not None
    *accounts, [total] = read_amounts(client.get(f"/operator/money/books/{MONTH}"))
    assert all(opening + change == closing for opening, change, closing in accounts)
    assert sum(closing for *_, closing in accounts) == total == 0
    shown = read_text(client.get(f"/operator/money/books/{MONTH}"))
    assert "Write-off $2.50 from Write Offs to Chargebacks: The buyer is insolvent" in shown


def test_the_statement_of_who_earns_adds_up_as_it_is_read(books, client: Client) -> None:
    owner, *_ = books
    earners = {kind: builders.provider_organisation() for kind in ("provider", "vendor")}
    builders.hold_funds(organisation=owner, amount_micros=3_000_000, reference="bid_1")
    builders.settle_hold(hold_reference="bid_1", charge_micros=1_250_000)
    pay_vendor(
        hold_reference="bid_1",
        organisation_id=earners["vendor"].pk,
        amount_micros=250_000,
        disputable_until=NOW,
        now=NOW,
    )
    split = builders.cost_split(Share(earners["provider"].pk, 900_000))
    distribute_charge(hold_reference="bid_1", split=split, now=NOW)
    mature_earnings(now=NEXT + timedelta(days=30))
    for kind, earned in (("provider", Decimal("0.9")), ("vendor", Decimal("0.25"))):
        client.force_login(builders.owner_of(earners[kind]))
        reply = client.get(f"/nodes/payouts/{MONTH}")
        # Each earning, then what is owed: at the beginning, the change, at the end.
        assert read_amounts(reply) == [[earned], [0, earned, earned], [earned]]
        assert read_lists(reply) == [[earned, 0]]
        entries = read_download(client.get(f"/nodes/payouts/{MONTH}/csv?entries=1")).decode()
        owed = [Decimal(row["after_usd"]) for row in csv.DictReader(entries.splitlines())]
        assert owed == [0, earned]
