"""One month of accounts, from their postings alone: what it began with, entries, how it ended.

Anybody with the ledger adds the same up again: closing is opening and the lines, and the closing of
one month is the opening of the next.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Collection, Iterator
from dataclasses import dataclass
from datetime import datetime

from django.db.models import Sum

from marketplace.accounts.models import Organisation
from marketplace.common.csv_rows import write_csv_row
from marketplace.common.money import count_decimals, from_micros
from marketplace.payments.account_sums import sum_by_month
from marketplace.payments.models import (
    HOUSE_KINDS,
    AccountKind,
    EntryKind,
    LedgerAccount,
    Posting,
)
from marketplace.payments.statements import read_month

COLUMNS = ("date", "kind", "reference", "memo", "amount_usd", "after_usd")
HOUSE_COLUMNS = ("account", "opening_usd", "change_usd", "closing_usd")
#: An owner's wallet, and what a provider or vendor earned and was not paid yet.
WALLET = (AccountKind.WALLET_AVAILABLE, AccountKind.WALLET_HELD)
EARNINGS = (AccountKind.EARNINGS_PENDING, AccountKind.EARNINGS_PAYABLE)
ALL_KINDS = (*WALLET, *EARNINGS, *HOUSE_KINDS)


@dataclass(frozen=True, slots=True)
class MonthLine:
    """What one entry did to the account."""

    at: datetime
    kind: str
    reference: str
    memo: str
    amount_micros: int
    #: The balance after it.
    after_micros: int


@dataclass(frozen=True, slots=True)
class MonthStatement:
    """One month in UTC."""

    starts_at: datetime
    opening_micros: int
    lines: tuple[MonthLine, ...]

    @property
    def name(self) -> str:
        """``2026-03``."""
        return f"{self.starts_at:%Y-%m}"

    @property
    def closing_micros(self) -> int:
        return self.lines[-1].after_micros if self.lines else self.opening_micros


@dataclass(frozen=True, slots=True)
class AccountMonth:
    """One account in a month; of organisations' accounts without one, all of the kind."""

    label: str
    opening_micros: int
    change_micros: int

    @property
    def closing_micros(self) -> int:
        return self.opening_micros + self.change_micros


@dataclass(frozen=True, slots=True)
class AccountMonths:
    """Accounts in one of the months in which something was booked to them."""

    #: ``2026-03``.
    name: str
    accounts: tuple[AccountMonth, ...]
    #: The latest first.
    months: tuple[str, ...]

    @property
    def closing_micros(self) -> int:
        return sum(account.closing_micros for account in self.accounts)

    @property
    def decimals(self) -> int:
        """Those that each amount needs to be shown whole."""
        return count_decimals(
            amount
            for account in self.accounts
            for amount in (account.opening_micros, account.change_micros, account.closing_micros)
        )


def load_account_months(
    *, organisation: Organisation | None, kinds: Collection[AccountKind], month: str
) -> AccountMonths:
    """Accounts of an organisation in ``2026-03``, or all of these kinds; sums, and no entries.

    Raises
    ------
    NotFound
        ``unknown_month``.
    """
    read_month(month)
    if organisation is None:
        sums = {key: amount for key, amount in sum_by_month().items() if key[0] in kinds}
    else:
        own = LedgerAccount.objects.filter(kind__in=kinds, organisation=organisation)
        sums = sum_by_month(own)
    before: defaultdict[str, int] = defaultdict(int)
    for (kind, booked_in), amount in sums.items():
        if booked_in < month:
            before[kind] += amount
    shown = (
        AccountMonth(AccountKind(kind).label, before.get(kind, 0), sums.get((kind, month), 0))
        for kind in kinds
        if kind in before or (kind, month) in sums
    )
    months = sorted({booked_in for _, booked_in in sums}, reverse=True)
    return AccountMonths(month, tuple(shown), tuple(months))


def load_month_statement(
    *, organisation: Organisation, kinds: Collection[AccountKind], month: str
) -> MonthStatement:
    """The statement of ``2026-03``; what only moves between these accounts is no line.

    Raises
    ------
    NotFound
        ``unknown_month``.
    """
    starts_at, ends_at = read_month(month)
    accounts = LedgerAccount.objects.filter(organisation=organisation, kind__in=kinds)
    sums = sum_by_month(accounts)
    opening = after = sum(amount for (_, booked_in), amount in sums.items() if booked_in < month)
    entries = (
        Posting.objects.filter(
            account__in=accounts, entry__booked_at__gte=starts_at, entry__booked_at__lt=ends_at
        )
        .values_list("entry__booked_at", "entry__kind", "entry__reference", "entry__memo")
        .annotate(total=Sum("amount_micros"))
        .exclude(total=0)
        .order_by("entry__booked_at", "entry")
    )
    lines: list[MonthLine] = []
    for at, kind, reference, memo, total in entries:
        after += total
        lines.append(MonthLine(at, EntryKind(kind).label, reference, memo, total, after))
    return MonthStatement(starts_at, opening, tuple(lines))


def write_month_csv(statement: MonthStatement) -> Iterator[str]:
    yield write_csv_row(COLUMNS)
    opening = from_micros(statement.opening_micros)
    yield write_csv_row((statement.starts_at.isoformat(), "opening", "", "", "", opening))
    for line in statement.lines:
        words = (line.at.isoformat(), line.kind, line.reference, line.memo)
        yield write_csv_row(
            (*words, from_micros(line.amount_micros), from_micros(line.after_micros))
        )


def write_accounts_csv(accounts: Collection[AccountMonth]) -> Iterator[str]:
    yield write_csv_row(HOUSE_COLUMNS)
    for account in accounts:
        amounts = (account.opening_micros, account.change_micros, account.closing_micros)
        yield write_csv_row((account.label, *map(from_micros, amounts)))
