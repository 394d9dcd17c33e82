"""What the house gained and lost in one month, by zone: sums of the ledger's own postings.

An entry counts in its month, in UTC, and in the zone of its bid or machine. Card fees, taxes of
invoices and grants belong to no zone.

Entries that are sealed never change, so each is added up once: a report reads the sums and what no
sum has yet, and costs the same however much was sold.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Iterator
from dataclasses import dataclass
from datetime import UTC, datetime

from django.db import transaction
from django.db.models import CharField, F, Func, OuterRef, Q, QuerySet, Subquery, Sum, Value
from django.db.models.functions import Coalesce, TruncMonth

from marketplace.auction.models import Bid
from marketplace.common.csv_rows import write_csv_row
from marketplace.common.locks import advisory_lock
from marketplace.common.money import from_micros
from marketplace.payments.models import (
    AccountKind,
    EntryKind,
    LedgerSeal,
    Posting,
    UnsealedEntry,
)
from marketplace.payments.statements import read_month
from marketplace.tiers.models import Machine, ProfitCursor, ProfitSum, ZoneTiers

COLUMNS = ("zone", "line", "usd")
#: Seals that one run adds to the sums; the next takes the rest.
SEALS_OF_RUN = 20
#: Of what belongs to no zone.
NO_ZONE = "No zone"
#: The lines in their order, by the account of the house that they are sums of.
LINES = {
    AccountKind.HOUSE_FEES: "House fees for work that was done",
    AccountKind.REVENUE: "Congestion, and what is for cards and tax in prices",
    AccountKind.EARNINGS_PENDING: "Earned by the house's own nodes",
    AccountKind.TAXES: "Tax on invoices",
    AccountKind.GATEWAY_FEES: "Card fees",
    AccountKind.RENT: "Rent of machines",
    AccountKind.REFUNDS: "Refunds, and pay for work of refunded jobs",
    AccountKind.SLA_CREDITS: "Credits for missed deadlines",
    AccountKind.CHARGEBACKS: "Contested and unpaid card payments",
    AccountKind.GRANTS: "Granted balances",
    AccountKind.WRITE_OFFS: "Debts that were given up",
}
#: Entries that move earnings, but for what was earned.
_MOVES = (EntryKind.MATURITY, EntryKind.PAYOUT, EntryKind.REVERSAL)


@dataclass(frozen=True, slots=True)
class ProfitLine:
    text: str
    #: In the order of the report's zones.
    amounts_micros: tuple[int, ...]

    @property
    def total_micros(self) -> int:
        return sum(self.amounts_micros)


@dataclass(frozen=True, slots=True)
class ProfitReport:
    """One month, in UTC; what the house lost is below zero."""

    starts_at: datetime
    #: By name, what belongs to none last.
    zones: tuple[str, ...]
    lines: tuple[ProfitLine, ...]

    @property
    def name(self) -> str:
        """``2026-03``."""
        return f"{self.starts_at:%Y-%m}"

    @property
    def total(self) -> ProfitLine:
        sums = (
            sum(line.amounts_micros[number] for line in self.lines)
            for number in range(len(self.zones))
        )
        return ProfitLine("Profit", tuple(sums))


def list_profit_months() -> list[str]:
    """Months in which the house gained or lost something, the latest first."""
    months = set(ProfitSum.objects.values_list("month_at", flat=True).distinct())
    months |= {month for month, _, _ in _sum_lines(_list_unsummed())}
    return [f"{month:%Y-%m}" for month in sorted(months, reverse=True)]


def load_profit_report(*, month: str) -> ProfitReport:
    """The report of ``2026-03``.

    Raises
    ------
    NotFound
        ``unknown_month``.
    """
    starts_at, _ = read_month(month)
    sums, cursor = _read_sums(starts_at)
    while cursor != _read_cursor():
        # Entries went from the rest into the sums meanwhile.
        sums, cursor = _read_sums(starts_at)
    names = {zone_name for zone_name, _ in sums} - {NO_ZONE}
    zones = (*sorted(names), NO_ZONE)
    lines = tuple(
        ProfitLine(text, tuple(sums[zone_name, kind] for zone_name in zones))
        for kind, text in LINES.items()
        if any((zone_name, kind) in sums for zone_name in zones)
    )
    return ProfitReport(starts_at=starts_at, zones=zones, lines=lines)


def write_profit_csv(report: ProfitReport) -> Iterator[str]:
    """Lines of the report as CSV, one for each zone and line; the last of a zone is its sum."""
    yield write_csv_row(COLUMNS)
    for number, zone_name in enumerate(report.zones):
        for line in (*report.lines, report.total):
            yield write_csv_row((zone_name, line.text, from_micros(line.amounts_micros[number])))


def sum_profits() -> int:
    """Add the entries of new seals to the sums, once; how many seals."""
    with transaction.atomic(), advisory_lock("tiers", "profits", wait=False) as alone:
        if not alone:
            return 0
        cursor, _ = ProfitCursor.objects.get_or_create(pk=1)
        seals = LedgerSeal.objects.filter(number__gt=cursor.seal_number).order_by("number")
        new = list(seals[:SEALS_OF_RUN])
        added = _sum_lines([entry_id for seal in new for entry_id in seal.entry_ids])
        months = {month_at for month_at, _, _ in added}
        before = {
            (row.month_at, row.zone_name, row.kind): row.amount_micros
            for row in ProfitSum.objects.filter(month_at__in=months)
        }
        ProfitSum.objects.bulk_create(
            [
                ProfitSum(
                    month_at=month_at,
                    zone_name=zone_name,
                    kind=kind,
                    amount_micros=total + before.get((month_at, zone_name, kind), 0),
                )
                for (month_at, zone_name, kind), total in added.items()
            ],
            update_conflicts=True,
            unique_fields=["month_at", "zone_name", "kind"],
            update_fields=["amount_micros"],
        )
        if new:
            cursor.seal_number = new[-1].number
            cursor.save(update_fields=["seal_number"])
    return len(new)


def _read_sums(month_at: datetime) -> tuple[Counter[tuple[str, str]], int]:
    """By zone and line, a month's sums and what is in none yet, and how far they are summed."""
    cursor = _read_cursor()
    summed = ProfitSum.objects.filter(month_at=month_at)
    rows = summed.values_list("zone_name", "kind", "amount_micros")
    sums = Counter({(zone_name, kind): amount for zone_name, kind, amount in rows})
    for (at, zone_name, kind), total in _sum_lines(_list_unsummed()).items():
        if at == month_at:
            sums[zone_name, kind] += total
    return sums, cursor


def _read_cursor() -> int:
    return ProfitCursor.objects.values_list("seal_number", flat=True).first() or 0


def _list_unsummed() -> set[str]:
    """Entries that are in no sum: not sealed, or in a seal of the last minutes."""
    # Read in this order, none is missed that is sealed meanwhile.
    unsealed = set(UnsealedEntry.objects.values_list("pk", flat=True))
    seals = LedgerSeal.objects.filter(number__gt=_read_cursor())
    return unsealed.union(*seals.values_list("entry_ids", flat=True))


def _sum_lines(entry_ids: Collection[str]) -> dict[tuple[datetime, str, str], int]:
    """By month, zone and line, what these entries gained the house."""
    sums: Counter[tuple[datetime, str, str]] = Counter()
    if not entry_ids:
        return sums
    rows = (
        _list_postings()
        .filter(entry__in=entry_ids)
        .annotate(month_at=TruncMonth("entry__booked_at", tzinfo=UTC))
        .annotate(bid_id=_split_reference())
        .annotate(zone_name=_find_zone())
        .values_list("month_at", "zone_name", "account__kind", "entry__kind")
        .annotate(total=Sum("amount_micros"))
        .order_by()
    )
    for month_at, zone_name, account, entry, total in rows:
        # An invoice's tax comes out of the revenue.
        kind = AccountKind.TAXES if entry == EntryKind.TAX else account
        sums[month_at, zone_name, kind] += total
    return sums


def _list_postings() -> QuerySet[Posting]:
    """Postings that the house gains or loses by."""
    own = Q(account__organisation__in=ZoneTiers.objects.values("provider__organisation"))
    earned = Q(account__kind=AccountKind.EARNINGS_PENDING) & own & ~Q(entry__kind__in=_MOVES)
    # The account of taxes is what the house owes; the tax leaves its revenue.
    kinds = LINES.keys() - {AccountKind.EARNINGS_PENDING, AccountKind.TAXES}
    return Posting.objects.filter(Q(account__kind__in=kinds) | earned)


def _split_reference() -> Func:
    return Func(
        F("entry__reference"), Value(":"), Value(2), function="split_part", output_field=CharField()
    )


def _find_zone() -> Coalesce:
    """The zone of the bid, ``bid:ID`` or ``bid:ID:why``, or of the machine an entry is named by."""
    bids = Bid.objects.filter(pk=OuterRef("bid_id")).values("zone__name")
    machines = Machine.objects.filter(pk=OuterRef("entry__reference")).values("zone__name")
    return Coalesce(
        Subquery(bids[:1]), Subquery(machines[:1]), Value(NO_ZONE), output_field=CharField()
    )
