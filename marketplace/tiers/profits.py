"""What the house gained and lost in one month, by zone: sums of the ledger's own postings.

An entry counts in its month, in UTC, and in the zone of its bid or machine. Card fees, taxes of
invoices and grants belong to no zone.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator
from dataclasses import dataclass
from datetime import UTC, datetime

from django.db.models import CharField, F, Func, OuterRef, Q, QuerySet, Subquery, Sum, Value
from django.db.models.functions import Coalesce

from marketplace.auction.models import Bid
from marketplace.common.csv_rows import write_csv_row
from marketplace.common.money import from_micros
from marketplace.payments.models import AccountKind, EntryKind, Posting
from marketplace.payments.statements import read_month
from marketplace.tiers.models import Machine, ZoneTiers

COLUMNS = ("zone", "line", "usd")
MONTHS_LISTED = 36
#: Of what belongs to no zone.
NO_ZONE = "No zone"
#: The lines in their order, by the account of the house that they are sums of.
LINES = {
    AccountKind.HOUSE_FEES: "House fees for work that was done",
    AccountKind.REVENUE: "Congestion, and what is for cards and tax in prices",
    AccountKind.RESERVATION_FEES: "Reservation fees",
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
    months = _list_postings().datetimes("entry__booked_at", "month", order="DESC", tzinfo=UTC)
    return [f"{month:%Y-%m}" for month in months[:MONTHS_LISTED]]


def load_profit_report(*, month: str) -> ProfitReport:
    """The report of ``2026-03``.

    Raises
    ------
    NotFound
        ``unknown_month``.
    """
    starts_at, ends_at = read_month(month)
    sums: defaultdict[tuple[str, str], int] = defaultdict(int)
    rows = (
        _list_postings()
        .filter(entry__booked_at__gte=starts_at, entry__booked_at__lt=ends_at)
        .annotate(bid_id=_split_reference())
        .annotate(zone_name=_find_zone())
        .values_list("zone_name", "account__kind", "entry__kind")
        .annotate(total=Sum("amount_micros"))
        .order_by()
    )
    for zone_name, account, entry, total in rows:
        # An invoice's tax comes out of the revenue.
        kind = AccountKind.TAXES if entry == EntryKind.TAX else account
        sums[zone_name, kind] += total
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
