"""What rented machines cost against what they earned, by job, in one month of the ledger.

Rent is booked when a machine ends, earnings when a job is settled: each counts in the month of its
entry. A machine's rent is shared between the jobs that its node worked on, in proportion to the
work units of each; so the lines add up to the ledger, to the micro-dollar.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, replace
from datetime import UTC, datetime

from django.db.models import QuerySet

from marketplace.auction.models import WorkShare, hold_reference
from marketplace.common.csv_rows import write_csv_row
from marketplace.common.money import from_micros, split_micros
from marketplace.jobs.models import Job
from marketplace.payments.models import AccountKind, Earning, EarningKind, EntryKind, Posting
from marketplace.payments.statements import read_month
from marketplace.tiers.models import Machine, ZoneTiers

COLUMNS = ("job", "name", "rent_usd", "earned_usd", "difference_usd")
#: Lines that are no job's.
IDLE = "Machines that no job worked on"
UNSETTLED = "Machines with jobs that are not settled yet"
OWN_NODES = "Nodes of the same provider that are not rented"
OTHER_WORK = "Answers of models and spot checks"


@dataclass(frozen=True, slots=True)
class RentLine:
    """What one job cost in rent, and what it earned on rented machines."""

    #: Its bid; empty for what is no job's.
    bid_id: str
    text: str
    rent_micros: int = 0
    earned_micros: int = 0

    @property
    def gain_micros(self) -> int:
        """Below zero where the rent was above what was earned."""
        return self.earned_micros - self.rent_micros


@dataclass(frozen=True, slots=True)
class RentReport:
    """One month, in UTC."""

    starts_at: datetime
    #: Jobs by their first entry, then what is no job's.
    lines: tuple[RentLine, ...]
    #: The same sums as the ledger has them.
    rent_micros: int
    earned_micros: int

    @property
    def name(self) -> str:
        """``2026-03``."""
        return f"{self.starts_at:%Y-%m}"

    @property
    def gain_micros(self) -> int:
        return self.earned_micros - self.rent_micros


def list_rent_months() -> list[str]:
    """Months in which rent was booked, the latest first."""
    months = _list_rents().datetimes("entry__booked_at", "month", order="DESC", tzinfo=UTC)
    return [f"{month:%Y-%m}" for month in months]


def load_rent_report(*, month: str) -> RentReport:
    """The report of ``2026-03``.

    Raises
    ------
    NotFound
        ``unknown_month``.
    """
    starts_at, ends_at = read_month(month)
    rents = _list_rents().filter(entry__booked_at__gte=starts_at, entry__booked_at__lt=ends_at)
    rent_of = dict(rents.order_by("pk").values_list("entry__reference", "amount_micros"))
    earnings = Earning.objects.filter(
        organisation__in=ZoneTiers.objects.values("provider__organisation"),
        kind=EarningKind.PROVIDER,
        accrued_at__gte=starts_at,
        accrued_at__lt=ends_at,
    ).order_by("accrued_at", "pk")
    lines: defaultdict[tuple[str, str], RentLine] = defaultdict(lambda: RentLine("", ""))
    for line in (*_share_rents(rent_of), *_share_earnings(earnings)):
        found = lines[line.bid_id, line.text]
        lines[line.bid_id, line.text] = replace(
            line,
            rent_micros=found.rent_micros + line.rent_micros,
            earned_micros=found.earned_micros + line.earned_micros,
        )
    return RentReport(
        starts_at=starts_at,
        lines=tuple(_name_lines(lines.values())),
        rent_micros=sum(rent_of.values()),
        earned_micros=sum(earning.amount_micros for earning in earnings),
    )


def _list_rents() -> QuerySet[Posting]:
    return Posting.objects.filter(entry__kind=EntryKind.RENT, account__kind=AccountKind.SUPPLIERS)


def _share_rents(rent_of: dict[str, int]) -> Iterator[RentLine]:
    """Each machine's rent by the work that its node did for jobs."""
    machines = Machine.objects.filter(pk__in=rent_of).values_list("pk", "join_token__node")
    node_of = dict(machines)
    shares: defaultdict[str, list[tuple[str, int]]] = defaultdict(list)
    worked = WorkShare.objects.filter(node__in=[node for node in node_of.values() if node])
    for node_id, bid_id, units in worked.order_by("pk").values_list("node", "bid", "units"):
        if units:
            shares[node_id].append((bid_id, units))
    unsettled = set(
        Job.objects.filter(settled_at=None, slices__node__in=list(node_of.values()))
        .values_list("slices__node", flat=True)
        .distinct()
    )
    for machine_id, rent in rent_of.items():
        node_id = node_of.get(machine_id)
        jobs = shares.get(node_id or "", [])
        if node_id in unsettled or not jobs:
            yield RentLine("", UNSETTLED if node_id in unsettled else IDLE, rent_micros=rent)
            continue
        for (bid_id, _), part in zip(
            jobs, split_micros(rent, [units for _, units in jobs]), strict=True
        ):
            yield RentLine(bid_id, "", rent_micros=part)


def _share_earnings(earnings: Iterable[Earning]) -> Iterator[RentLine]:
    """What was earned by jobs, on rented machines and on the same provider's other nodes."""
    paid: defaultdict[tuple[str, str], list[tuple[str, str, int]]] = defaultdict(list)
    prefix = hold_reference("")
    rows = WorkShare.objects.filter(
        bid__in=[earning.reference.removeprefix(prefix) for earning in earnings], paid_micros__gt=0
    )
    for bid_id, organisation_id, node_id, amount in rows.order_by("pk").values_list(
        "bid", "organisation", "node", "paid_micros"
    ):
        paid[hold_reference(bid_id), organisation_id].append((bid_id, node_id, amount))
    rented = set(
        Machine.objects.filter(join_token__node__isnull=False).values_list(
            "join_token__node", flat=True
        )
    )
    for earning in earnings:
        nodes = paid.get((earning.reference, earning.organisation_id), [])
        if not nodes:
            yield RentLine("", OTHER_WORK, earned_micros=earning.amount_micros)
            continue
        parts = split_micros(earning.amount_micros, [amount for _, _, amount in nodes])
        for (bid_id, node_id, _), part in zip(nodes, parts, strict=True):
            if node_id in rented:
                yield RentLine(bid_id, "", earned_micros=part)
            else:
                yield RentLine("", OWN_NODES, earned_micros=part)


def _name_lines(lines: Iterable[RentLine]) -> Iterator[RentLine]:
    """Jobs with their names; what is no job's comes after them."""
    of_jobs = [line for line in lines if line.bid_id]
    names = dict(
        Job.objects.filter(bid_id__in=[line.bid_id for line in of_jobs]).values_list(
            "bid_id", "name"
        )
    )
    for line in of_jobs:
        yield replace(line, text=names.get(line.bid_id, ""))
    yield from (line for line in lines if not line.bid_id)


def write_rent_csv(report: RentReport) -> Iterator[str]:
    """Lines of the report as CSV; the last has the sums."""
    yield write_csv_row(COLUMNS)
    total = RentLine("", "Total", report.rent_micros, report.earned_micros)
    for line in (*report.lines, total):
        amounts = (line.rent_micros, line.earned_micros, line.gain_micros)
        yield write_csv_row((line.bid_id, line.text, *map(from_micros, amounts)))
