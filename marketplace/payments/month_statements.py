"""One month of an account, from its postings alone: what it began with, each entry, how it ended.

Anybody with the ledger adds the same up again: closing is opening and the lines, and the closing of
one month is the opening of the next.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator
from dataclasses import dataclass
from datetime import UTC, datetime

from django.db.models import QuerySet, Sum
from django.db.models.functions import Coalesce

from marketplace.accounts.models import Organisation
from marketplace.common.csv_rows import write_csv_row
from marketplace.common.money import from_micros
from marketplace.payments.models import HOUSE_KINDS, AccountKind, EntryKind, Posting
from marketplace.payments.statements import read_month

COLUMNS = ("date", "kind", "reference", "memo", "amount_usd", "after_usd")
HOUSE_COLUMNS = ("account", "opening_usd", "change_usd", "closing_usd")
#: An owner's wallet, and what a provider or vendor earned and was not paid yet.
WALLET = (AccountKind.WALLET_AVAILABLE, AccountKind.WALLET_HELD)
EARNINGS = (AccountKind.EARNINGS_PENDING, AccountKind.EARNINGS_PAYABLE)
MONTHS_LISTED = 36


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
    """One account of the house in a month."""

    label: str
    opening_micros: int
    change_micros: int

    @property
    def closing_micros(self) -> int:
        return self.opening_micros + self.change_micros


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
    postings = Posting.objects.filter(account__organisation=organisation, account__kind__in=kinds)
    opening = after = _sum(postings.filter(entry__booked_at__lt=starts_at))
    entries = (
        postings.filter(entry__booked_at__gte=starts_at, entry__booked_at__lt=ends_at)
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


def load_house_month(*, month: str) -> list[AccountMonth]:
    """Every account of the house in ``2026-03``, and the organisations' by kind; sums are zero.

    Raises
    ------
    NotFound
        ``unknown_month``.
    """
    starts_at, ends_at = read_month(month)
    before = _sum_by_kind(Posting.objects.filter(entry__booked_at__lt=starts_at))
    within = _sum_by_kind(
        Posting.objects.filter(entry__booked_at__gte=starts_at, entry__booked_at__lt=ends_at)
    )
    kinds = (*WALLET, *EARNINGS, *HOUSE_KINDS)
    return [
        AccountMonth(AccountKind(kind).label, before.get(kind, 0), within.get(kind, 0))
        for kind in kinds
        if kind in before or kind in within
    ]


def list_statement_months(
    *, organisation: Organisation | None, kinds: Collection[AccountKind]
) -> list[str]:
    """Months with entries, the latest first; without an organisation those of all."""
    postings = Posting.objects.filter(account__kind__in=kinds)
    if organisation is not None:
        postings = postings.filter(account__organisation=organisation)
    months = postings.datetimes("entry__booked_at", "month", order="DESC", tzinfo=UTC)
    return [f"{month:%Y-%m}" for month in months[:MONTHS_LISTED]]


def write_month_csv(statement: MonthStatement) -> Iterator[str]:
    yield write_csv_row(COLUMNS)
    opening = from_micros(statement.opening_micros)
    yield write_csv_row((statement.starts_at.isoformat(), "opening", "", "", "", opening))
    for line in statement.lines:
        words = (line.at.isoformat(), line.kind, line.reference, line.memo)
        yield write_csv_row(
            (*words, from_micros(line.amount_micros), from_micros(line.after_micros))
        )


def write_house_csv(accounts: Collection[AccountMonth]) -> Iterator[str]:
    yield write_csv_row(HOUSE_COLUMNS)
    for account in accounts:
        amounts = (account.opening_micros, account.change_micros, account.closing_micros)
        yield write_csv_row((account.label, *map(from_micros, amounts)))


def _sum(postings: QuerySet[Posting]) -> int:
    return postings.aggregate(total=Coalesce(Sum("amount_micros"), 0))["total"]


def _sum_by_kind(postings: QuerySet[Posting]) -> dict[str, int]:
    rows = postings.values_list("account__kind").annotate(total=Sum("amount_micros")).order_by()
    return dict(rows)
