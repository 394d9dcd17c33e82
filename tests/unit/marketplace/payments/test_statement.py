import json
from datetime import timedelta
from io import StringIO

import pytest
from django.core.management import CommandError, call_command
from django.db import connection, transaction

from marketplace.payments.ledger_checks import check_ledger
from marketplace.payments.selectors import Wallet, get_earnings, get_wallet, list_wallet_rows
from marketplace.payments.services import refund_charge, release_hold
from tests import builders
from tests.builders import NOW

pytestmark = pytest.mark.django_db


def busy_wallet():
    made = builders.organisation(usd="10")
    steps = [
        lambda at: builders.hold_funds(
            organisation=made, amount_micros=8_000_000, reference="bid_1", now=at
        ),
        lambda at: builders.settle_hold(hold_reference="bid_1", charge_micros=3_000_000, now=at),
        lambda at: refund_charge(
            hold_reference="bid_1", amount_micros=500_000, reason="late", now=at
        ),
        lambda at: builders.hold_funds(
            organisation=made, amount_micros=7_500_000, reference="bid_2", now=at
        ),
        lambda at: release_hold(hold_reference="bid_2", now=at),
    ]
    for minute, step in enumerate(steps, start=1):
        step(NOW + timedelta(minutes=minute))
    return made


def test_a_statement_tells_what_happened_newest_first_with_the_balance_after() -> None:
    made = busy_wallet()
    builders.organisation(usd="99")
    rows = list_wallet_rows(organisation=made)
    assert [
        (
            r.kind,
            r.reference,
            r.available_change_micros,
            r.held_change_micros,
            r.available_after_micros,
        )
        for r in rows[:-1]
    ] == [
        ("release", "bid_2", 7_500_000, -7_500_000, 7_500_000),
        ("hold", "bid_2", -7_500_000, 7_500_000, 0),
        ("refund", "bid_1:late", 500_000, 0, 7_500_000),
        ("charge", "bid_1", 5_000_000, -8_000_000, 7_000_000),
        ("hold", "bid_1", -8_000_000, 8_000_000, 2_000_000),
    ]
    assert (rows[-1].kind, rows[-1].available_after_micros) == ("grant", 10_000_000)
    assert rows[0].at == NOW + timedelta(minutes=5)
    assert get_wallet(organisation=made).available_micros == rows[0].available_after_micros


def test_a_charge_of_the_whole_hold_is_on_the_statement() -> None:
    made = builders.organisation(usd="10")
    builders.hold_funds(organisation=made, amount_micros=8_000_000, reference="bid_1")
    builders.settle_hold(hold_reference="bid_1", charge_micros=8_000_000)
    (charge, _, _) = list_wallet_rows(organisation=made)
    assert (charge.kind, charge.available_change_micros, charge.held_change_micros) == (
        "charge",
        0,
        -8_000_000,
    )
    assert charge.available_after_micros == 2_000_000


def test_pages_of_a_statement_join_without_a_gap() -> None:
    made = busy_wallet()
    whole = list_wallet_rows(organisation=made)
    paged, before = [], None
    while page := list_wallet_rows(organisation=made, limit=2, before=before):
        assert len(page) <= 2
        paged += page
        before = page[-1].cursor
    assert paged == whole


def test_an_organisation_without_entries_has_an_empty_wallet_and_statement() -> None:
    made = builders.organisation()
    assert get_wallet(organisation=made) == Wallet(available_micros=0, held_micros=0)
    assert get_earnings(organisation=made).payable_micros == 0
    assert list_wallet_rows(organisation=made) == []


def test_the_check_counts_and_balances() -> None:
    busy_wallet()
    check = check_ledger()
    assert check.balanced
    assert (check.imbalance_micros, check.entries, check.postings) == (0, 6, 13)
    out = StringIO()
    call_command("ledger_check", "--json", stdout=out)
    assert json.loads(out.getvalue())["balanced"] is True


@pytest.fixture
def forged(db):
    """A busy wallet after someone with the keys to the database had been at it."""
    with transaction.atomic():
        made = busy_wallet()
        with connection.cursor() as cursor:
            cursor.execute("SET LOCAL session_replication_role = replica")
            cursor.execute(
                "UPDATE payments_ledgeraccount SET balance_micros = balance_micros + 1"
                " WHERE organisation_id = %s AND kind = 'wallet_available'",
                [made.pk],
            )
            cursor.execute(
                "UPDATE payments_posting SET amount_micros = amount_micros - 7 WHERE entry_id ="
                " (SELECT id FROM payments_entry WHERE kind = 'refund') AND amount_micros < 0"
            )
            cursor.execute(
                "UPDATE payments_hold SET status = 'held', ended_at = NULL"
                " WHERE reference = 'bid_2'"
            )
            cursor.execute("SET LOCAL session_replication_role = origin")
        yield made
        transaction.set_rollback(True)


@pytest.mark.parametrize("options", [[], ["--whole"]])
def test_the_check_finds_what_was_forged(forged, options: list[str]) -> None:
    check = check_ledger()
    assert not check.balanced
    assert check.imbalance_micros == -7
    assert len(check.unbalanced_entries) == 1
    assert len(check.wrong_balances) == 1
    assert check.wrong_holds == (forged.pk,)
    assert check.clearing_surplus_micros == -7
    assert check.wrong_charges == ("bid_1",)
    with pytest.raises(CommandError, match="do not balance"):
        call_command("ledger_check", *options, stdout=StringIO())


def test_an_operator_grants_from_the_command_line_once_per_reference() -> None:
    made, operator = builders.organisation(), builders.operator()
    for _ in range(2):
        call_command(
            "wallet_grant",
            made.slug,
            "12.50",
            operator=operator.email.upper(),
            reference="spring",
            stdout=StringIO(),
        )
    assert get_wallet(organisation=made).available_micros == 12_500_000


@pytest.mark.parametrize(
    ("organisation", "dollars", "email", "says"),
    [
        ("nobody", "1", "operator", "no organisation"),
        (None, "-1", "operator", "negative"),
        (None, "NaN", "operator", "finite"),
        (None, "1", "stranger@example.com", "no person"),
        (None, "1", "person", "operator may grant"),
    ],
)
def test_a_grant_that_cannot_be_made_says_why(organisation, dollars, email, says) -> None:
    made = builders.organisation()
    emails = {"operator": builders.operator().email, "person": builders.user().email}
    with pytest.raises(CommandError, match=says):
        call_command(
            "wallet_grant",
            organisation or made.pk,
            dollars,
            operator=emails.get(email, email),
            reference="spring",
            stdout=StringIO(),
        )
    assert get_wallet(organisation=made).available_micros == 0
