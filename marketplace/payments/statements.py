"""What an organisation earned and was paid in one month, by job: for a page, and as CSV."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from datetime import UTC, datetime

from django.db.models import Sum
from django.db.models.functions import Coalesce

from marketplace.accounts.models import Organisation
from marketplace.common.csv_rows import write_csv_row
from marketplace.common.errors import NotFound
from marketplace.common.money import from_micros
from marketplace.payments.models import Earning, Payout, PayoutStatus

COLUMNS = ("date", "kind", "reference", "amount_usd", "payable_from", "payout", "status")


@dataclass(frozen=True, slots=True)
class EarningsStatement:
    """One month, in UTC."""

    starts_at: datetime
    ends_at: datetime
    #: The first ones, where a limit was named.
    earnings: tuple[Earning, ...]
    earned_micros: int
    payouts: tuple[Payout, ...]

    @property
    def name(self) -> str:
        """``2026-03``."""
        return f"{self.starts_at:%Y-%m}"

    @property
    def paid_micros(self) -> int:
        """What banks got of it; a payout that failed or was returned is not counted."""
        return sum(
            payout.amount_micros for payout in self.payouts if payout.status == PayoutStatus.PAID
        )


def load_statement(
    *, organisation: Organisation, month: str, limit: int | None = None
) -> EarningsStatement:
    """The statement of ``2026-03``, with its first earnings or all.

    Raises
    ------
    NotFound
        ``unknown_month``.
    """
    starts_at, ends_at = read_month(month)
    earnings = Earning.objects.filter(
        organisation=organisation,
        returned_at=None,
        accrued_at__gte=starts_at,
        accrued_at__lt=ends_at,
    )
    payouts = Payout.objects.filter(
        organisation=organisation, made_at__gte=starts_at, made_at__lt=ends_at
    )
    return EarningsStatement(
        starts_at=starts_at,
        ends_at=ends_at,
        earnings=tuple(earnings.select_related("payout").order_by("accrued_at", "pk")[:limit]),
        earned_micros=earnings.aggregate(total=Coalesce(Sum("amount_micros"), 0))["total"],
        payouts=tuple(payouts.order_by("made_at")),
    )


def read_month(month: str) -> tuple[datetime, datetime]:
    """When ``2026-03`` begins and ends, in UTC.

    Raises
    ------
    NotFound
        ``unknown_month``.
    """
    try:
        starts_at = datetime.strptime(month, "%Y-%m").replace(tzinfo=UTC)
        december = starts_at.month == 12
        ends_at = starts_at.replace(
            year=starts_at.year + december, month=1 if december else starts_at.month + 1
        )
    except ValueError:
        raise NotFound("unknown_month", "Name a month like 2026-03.") from None
    return starts_at, ends_at


def write_csv(statement: EarningsStatement) -> Iterator[str]:
    """Lines of the statement as CSV, earnings first."""
    yield write_csv_row(COLUMNS)
    for line in statement.earnings:
        paid = line.payout
        yield write_csv_row(
            (
                line.accrued_at.isoformat(),
                line.kind,
                line.reference,
                from_micros(line.amount_micros),
                line.payable_at.isoformat(),
                "" if paid is None else paid.pk,
                "pending" if line.matured_at is None else paid.status if paid else "payable",
            )
        )
    for payout in statement.payouts:
        amount = from_micros(payout.amount_micros)
        made = payout.made_at.isoformat()
        yield write_csv_row((made, "payout", payout.pk, amount, "", payout.pk, payout.status))
