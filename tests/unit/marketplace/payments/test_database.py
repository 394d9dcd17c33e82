"""What the database refuses, whoever asks."""

from collections.abc import Iterator
from contextlib import contextmanager

import pytest
from django.db import IntegrityError, ProgrammingError, connection, transaction

from marketplace.config.database_roles import find_excess_rights
from marketplace.embedded.servers import MARKET_ROLE
from marketplace.payments.ledger_checks import check_ledger
from marketplace.payments.models import AccountKind, Entry, Hold, LedgerAccount, Posting
from marketplace.payments.selectors import get_wallet
from tests import builders
from tests.builders import NOW

pytestmark = pytest.mark.django_db


@pytest.fixture
def funded():
    """An organisation with seven of its ten dollars available and three held."""
    made = builders.organisation(usd="10")
    builders.hold_funds(organisation=made, amount_micros=3_000_000, reference="bid_1")
    return made


def run(sql: str) -> None:
    with transaction.atomic(), connection.cursor() as cursor:
        cursor.execute(sql)


@contextmanager
def committed() -> Iterator[None]:
    """A savepoint that ends with the checks the database makes at a commit."""
    with transaction.atomic():
        yield
        with connection.cursor() as cursor:
            cursor.execute("SET CONSTRAINTS ALL IMMEDIATE")
            cursor.execute("SET CONSTRAINTS ALL DEFERRED")


@pytest.mark.parametrize(
    "sql",
    [
        "UPDATE payments_posting SET amount_micros = amount_micros * 2",
        "UPDATE payments_posting SET account_id = gen_random_uuid()",
        "DELETE FROM payments_posting",
        "UPDATE payments_entry SET reference = reference || 'x'",
        "UPDATE payments_entry SET booked_at = booked_at - interval '1 day'",
        "DELETE FROM payments_entry",
        "DELETE FROM payments_ledgeraccount",
        "UPDATE payments_ledgeraccount SET kind = 'grants'",
        "DELETE FROM payments_hold",
        "UPDATE payments_hold SET amount_micros = 1",
        "UPDATE payments_hold SET organisation_id = 'org_x'",
    ],
)
def test_what_is_written_cannot_be_changed_or_taken_away(funded, sql: str) -> None:
    with pytest.raises(ProgrammingError, match="pgtrigger"):
        run(sql)
    assert get_wallet(organisation=funded).available_micros == 7_000_000
    assert check_ledger().balanced


def test_a_balance_cannot_be_set_by_hand(funded) -> None:
    with pytest.raises(IntegrityError, match="through postings only"):
        run("UPDATE payments_ledgeraccount SET balance_micros = balance_micros + 1")
    with pytest.raises(IntegrityError, match="starts at zero"), transaction.atomic():
        LedgerAccount.objects.create(
            kind=AccountKind.EARNINGS_PENDING, organisation=funded, balance_micros=1
        )


def test_an_entry_that_does_not_sum_to_zero_is_not_committed(funded) -> None:
    account = LedgerAccount.objects.get(kind=AccountKind.WALLET_AVAILABLE, organisation=funded)
    clearing = LedgerAccount.objects.get(kind=AccountKind.CLEARING)

    def write() -> None:
        with committed():
            entry = Entry.objects.create(kind="grant", reference="forged", booked_at=NOW)
            Posting.objects.create(entry=entry, account=account, amount_micros=1_000_000)
            Posting.objects.create(entry=entry, account=clearing, amount_micros=-999_999)

    with pytest.raises(IntegrityError, match="do not sum to zero"):
        write()
    assert get_wallet(organisation=funded).available_micros == 7_000_000
    assert not Entry.objects.filter(reference="forged").exists()


def test_postings_added_to_an_old_entry_must_sum_to_zero_too(funded) -> None:
    old = Entry.objects.get(kind="hold")
    account = LedgerAccount.objects.create(
        kind=AccountKind.EARNINGS_PENDING, organisation=funded, balance_micros=0
    )
    with pytest.raises(IntegrityError, match="do not sum to zero"), committed():
        Posting.objects.create(entry=old, account=account, amount_micros=5)


@pytest.mark.parametrize("postings", [0, 1])
def test_an_entry_needs_two_postings(funded, postings: int) -> None:

    def write() -> None:
        with committed():
            entry = Entry.objects.create(kind="grant", reference="lonely", booked_at=NOW)
            for account in LedgerAccount.objects.filter(organisation=funded)[:postings]:
                Posting.objects.create(entry=entry, account=account, amount_micros=1)

    with pytest.raises(IntegrityError, match=r"two postings|sum to zero"):
        write()
    assert not Entry.objects.filter(reference="lonely").exists()


def test_no_wallet_falls_below_zero_whoever_posts(funded) -> None:
    held = LedgerAccount.objects.get(kind=AccountKind.WALLET_HELD, organisation=funded)
    available = LedgerAccount.objects.get(kind=AccountKind.WALLET_AVAILABLE, organisation=funded)

    def write() -> None:
        with committed():
            entry = Entry.objects.create(kind="release", reference="forged", booked_at=NOW)
            Posting.objects.create(entry=entry, account=available, amount_micros=3_000_001)
            Posting.objects.create(entry=entry, account=held, amount_micros=-3_000_001)

    with pytest.raises(IntegrityError, match="not_below_zero"):
        write()
    assert check_ledger().balanced


@pytest.mark.parametrize(
    "sql",
    [
        "UPDATE payments_hold SET charged_micros = amount_micros + 1, status = 'charged',"
        " ended_at = now()",
        "UPDATE payments_hold SET charged_micros = 1",
        "UPDATE payments_hold SET refunded_micros = 1",
        "UPDATE payments_hold SET status = 'charged'",
        "UPDATE payments_hold SET distributed_at = now()",
    ],
)
def test_a_hold_cannot_contradict_itself(funded, sql: str) -> None:
    with pytest.raises(IntegrityError):
        run(sql)


def test_an_ended_hold_stays_ended(funded) -> None:
    builders.settle_hold(hold_reference="bid_1", charge_micros=1)
    with pytest.raises(ProgrammingError, match="pgtrigger"):
        run("UPDATE payments_hold SET status = 'held', ended_at = NULL, charged_micros = 0")
    assert Hold.objects.get().status == "charged"


@pytest.mark.parametrize(
    ("kind", "of_organisation", "rule"),
    [
        (AccountKind.GRANTS, False, "ledger_account_once"),
        (AccountKind.WALLET_HELD, True, "ledger_account_once"),
        (AccountKind.CLEARING, True, "house_or_organisation"),
        (AccountKind.WALLET_HELD, False, "house_or_organisation"),
    ],
)
def test_there_is_one_account_of_a_kind_and_owner(funded, kind, of_organisation, rule) -> None:
    with pytest.raises(IntegrityError, match=rule), transaction.atomic():
        LedgerAccount.objects.create(
            kind=kind,
            organisation=funded if of_organisation else None,
            balance_micros=0 if of_organisation else None,
        )


def test_postings_of_one_statement_move_each_balance_by_their_sum(funded) -> None:
    before = get_wallet(organisation=funded)
    accounts = LedgerAccount.objects.filter(organisation=funded)
    held, available = (accounts.get(kind=kind).pk for kind in ("wallet_held", "wallet_available"))
    clearing = LedgerAccount.objects.get(kind=AccountKind.CLEARING).pk

    def write(amounts: list[dict[str, int]]) -> None:
        with committed():
            entries = [
                Entry.objects.create(kind="release", reference=f"many-{n}", booked_at=NOW)
                for n in range(len(amounts))
            ]
            Posting.objects.bulk_create(
                Posting(entry=entry, account_id=account, amount_micros=amount)
                for entry, of in zip(entries, amounts, strict=True)
                for account, amount in of.items()
            )

    with pytest.raises(IntegrityError, match="not_below_zero"):
        write([{held: -3_000_000, available: 3_000_000}, {held: -1, clearing: 1}])
    assert get_wallet(organisation=funded) == before
    assert not Entry.objects.filter(reference__startswith="many").exists()

    there_and_back = {held: -2, available: 2}, {held: 2, available: -2}
    write([{held: -5, available: 5}, *there_and_back])
    after = get_wallet(organisation=funded)
    assert after.held_micros == before.held_micros - 5
    assert after.available_micros == before.available_micros + 5
    assert LedgerAccount.objects.get(pk=clearing).balance_micros is None
    # Only the hold does not know of it: this was no release of its own.
    assert not check_ledger().wrong_balances


@pytest.mark.django_db(transaction=True)
def test_entries_of_other_transactions_get_no_postings_and_no_table_is_emptied():
    """Two that cancel each other out would keep every sum right and rewrite what happened."""
    builders.organisation(usd="10")
    entry = Entry.objects.get()
    accounts = LedgerAccount.objects.filter(kind__in=["revenue", "gateway_fees"]).order_by("kind")
    with (
        pytest.raises(IntegrityError, match="written with their entry"),
        transaction.atomic(),
    ):
        Posting.objects.bulk_create(
            Posting(entry=entry, account=row, amount_micros=amount)
            for row, amount in zip(accounts, (7, -7), strict=True)
        )
    for table in ("payments_posting", "payments_entry"):
        with pytest.raises(ProgrammingError, match=f"Cannot truncate {table}"):
            run(f"TRUNCATE {table} CASCADE")
    assert entry.postings.count() == 2


@contextmanager
def as_the_market() -> Iterator[None]:
    """Act as the role that the market's processes have."""
    with transaction.atomic():
        with connection.cursor() as cursor:
            # A database that is copied has the tables' rights, and not its own.
            cursor.execute(
                f"REVOKE TEMPORARY ON DATABASE {cursor.db.settings_dict['NAME']} FROM PUBLIC"
            )
            cursor.execute(f"SET LOCAL ROLE {MARKET_ROLE}")
        yield


@pytest.mark.parametrize(
    "sql",
    [
        "UPDATE payments_posting SET amount_micros = amount_micros",
        "DELETE FROM payments_entry",
        "TRUNCATE payments_posting",
        "TRUNCATE payments_freeze CASCADE",
        "UPDATE payments_ledgeraccount SET balance_micros = balance_micros",
        "DELETE FROM payments_freeze",
        "ALTER TABLE payments_posting DISABLE TRIGGER ALL",
        "DROP TABLE payments_posting",
        "SET session_replication_role = replica",
        "CREATE TABLE mine ()",
        "CREATE TEMPORARY TABLE mine ()",
        "CREATE FUNCTION mine() RETURNS void LANGUAGE sql AS ''",
        "CREATE ROLE mine",
    ],
)
def test_the_markets_own_role_may_not_even_ask(funded, sql: str) -> None:
    with pytest.raises(ProgrammingError, match=r"permission denied|must be owner"), as_the_market():
        run(sql)


def test_the_markets_own_role_moves_money_and_owns_nothing(funded) -> None:
    assert find_excess_rights() != []
    with as_the_market():
        assert find_excess_rights() == []
        builders.settle_hold(hold_reference="bid_1", charge_micros=1_000_000)
        assert get_wallet(organisation=funded).available_micros == 9_000_000
