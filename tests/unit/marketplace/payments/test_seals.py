"""Seals: a chain over the ledger's entries that shows each later change."""

from __future__ import annotations

from contextlib import contextmanager

import pytest
from django.db import connection, transaction

from marketplace.payments import seal_chain, seals
from marketplace.payments.account_sums import sum_by_month
from marketplace.payments.ledger_checks import check_ledger, check_recent
from marketplace.payments.models import (
    Entry,
    LedgerAccount,
    LedgerSeal,
    SealedKindSum,
    SealedSum,
    UnsealedEntry,
)
from marketplace.payments.seals import seal_ledger
from marketplace.payments.selectors import get_house_balances, get_wallet
from tests import builders
from tests.builders import NOW

pytestmark = pytest.mark.django_db


@pytest.fixture
def sealed():
    """An organisation with a settled bid, all of it in the first seal."""
    made = builders.organisation(usd="10")
    builders.hold_funds(organisation=made, amount_micros=3_000_000, reference="bid_1")
    builders.settle_hold(hold_reference="bid_1", charge_micros=1_000_000)
    assert seal_ledger(now=NOW) == 1
    return made


@contextmanager
def as_the_owner():
    """Change what is written as only the owner of the tables can."""
    with transaction.atomic(), connection.cursor() as cursor:
        cursor.execute("SET LOCAL session_replication_role = replica")
        yield cursor
        cursor.execute("SET LOCAL session_replication_role = DEFAULT")


def test_a_seal_takes_what_none_covers_and_keeps_the_sums(sealed) -> None:
    first = LedgerSeal.objects.get()
    assert (first.number, first.entries, first.postings) == (1, 3, 7)
    assert first.entry_ids == sorted(Entry.objects.values_list("pk", flat=True))
    assert not UnsealedEntry.objects.exists()
    assert seal_ledger(now=NOW) == 0
    balances = get_house_balances()
    assert (balances["clearing"], balances["grants"]) == (1_000_000, -10_000_000)

    builders.organisation(usd="5")
    assert UnsealedEntry.objects.count() == 1
    assert get_house_balances()["grants"] == -15_000_000
    recent = check_recent()
    assert recent == check_ledger()
    assert (recent.balanced, recent.entries, recent.postings) == (True, 4, 9)
    assert seal_ledger(now=NOW) == 1
    assert check_recent() == check_ledger()
    [grants] = SealedSum.objects.filter(account__kind="grants")
    assert (grants.month, grants.amount_micros) == (NOW.date().replace(day=1), -15_000_000)


def test_sums_of_kinds_are_those_of_their_accounts_sealed_or_not() -> None:
    for usd in ("10", "7"):
        builders.organisation(usd=usd)
    month = f"{NOW:%Y-%m}"
    wanted = {("grants", month): -17_000_000, ("wallet_available", month): 17_000_000}
    assert sum_by_month() == wanted
    assert seal_ledger(now=NOW) == 1
    assert sum_by_month() == sum_by_month(LedgerAccount.objects.all()) == wanted
    assert SealedKindSum.objects.count() == 2
    # One part sealed, one not, and then both.
    builders.organisation(usd="3")
    wanted = {("grants", month): -20_000_000, ("wallet_available", month): 20_000_000}
    for made in (1, 0):
        assert sum_by_month() == sum_by_month(LedgerAccount.objects.all()) == wanted
        assert seal_ledger(now=NOW) == made
    assert check_ledger().balanced


@pytest.mark.parametrize(
    ("sql", "problem"),
    [
        (
            "UPDATE payments_posting SET amount_micros = amount_micros * 2",
            "the entries of seal 1 are not what was sealed",
        ),
        (
            "UPDATE payments_entry SET booked_at = booked_at - interval '1 day'",
            "the entries of seal 1 are not what was sealed",
        ),
        (
            "UPDATE payments_entry SET memo = 'another' WHERE kind = 'grant'",
            "the entries of seal 1 are not what was sealed",
        ),
        (
            "UPDATE payments_sealedsum SET amount_micros = amount_micros + 1",
            "the sealed sums are not those of the sealed entries",
        ),
        (
            "UPDATE payments_sealedkindsum SET amount_micros = amount_micros + 1",
            "the sealed sums by kind are not those of the sealed entries",
        ),
        (
            "UPDATE payments_ledgerseal SET number = 7",
            "seal 1 is missing",
        ),
        (
            "INSERT INTO payments_entry (id, kind, reference, booked_at, memo)"
            " VALUES (gen_random_uuid(), 'grant', 'hidden', now(), '')",
            "1 entries are in no seal and wait for none",
        ),
    ],
)
def test_what_the_owner_changes_behind_a_seal_is_found(sealed, sql: str, problem: str) -> None:
    with as_the_owner() as cursor:
        cursor.execute(sql)
    assert problem in check_ledger().broken_seals
    assert not check_ledger().balanced


def test_wrong_books_are_not_sealed_so_that_the_next_check_finds_them_too(sealed) -> None:
    builders.hold_funds(organisation=sealed, amount_micros=2_000_000, reference="bid_2")
    with as_the_owner() as cursor:
        cursor.execute("UPDATE payments_ledgeraccount SET balance_micros = balance_micros + 5")
    assert not check_recent().balanced
    assert seal_ledger(now=NOW) == 0
    assert UnsealedEntry.objects.count() == 1
    assert check_recent().wrong_balances == check_ledger().wrong_balances != ()
    assert get_wallet(organisation=sealed).held_micros == 2_000_005


def test_what_is_written_during_the_check_waits_for_the_next_seal(sealed, monkeypatch) -> None:
    builders.organisation(usd="5")
    checked = UnsealedEntry.objects.values_list("pk", flat=True).get()

    def check():
        found = check_recent()
        builders.organisation(usd="7")
        return found

    monkeypatch.setattr(seals, "check_recent", check)
    assert seal_ledger(now=NOW) == 1
    assert LedgerSeal.objects.get(number=2).entry_ids == [checked]
    assert UnsealedEntry.objects.count() == 1


def test_a_seal_that_is_made_during_the_whole_check_is_no_fault(sealed, monkeypatch) -> None:
    builders.organisation(usd="5")

    def read(entry_ids):
        monkeypatch.undo()
        assert seal_ledger(now=NOW) == 1
        return seal_chain.read_entries(entry_ids)

    monkeypatch.setattr(seal_chain, "read_entries", read)
    assert seal_chain.find_broken_seals() == []
    assert LedgerSeal.objects.count() == 2


def test_the_check_of_what_came_after_asks_no_more_of_a_long_ledger(
    sealed, django_assert_num_queries
) -> None:
    with django_assert_num_queries(18):
        check_recent()
    for number in range(20):
        builders.hold_funds(
            organisation=sealed, amount_micros=1_000, reference=f"bid_more_{number}"
        )
    seal_ledger(now=NOW)
    with django_assert_num_queries(18):
        assert check_recent().entries == 23
