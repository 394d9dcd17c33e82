"""What providers and vendors are owed: shared out at completion, payable after a delay."""

from collections import defaultdict
from collections.abc import Iterable
from dataclasses import dataclass
from datetime import datetime, timedelta

from django.conf import settings
from django.db import transaction

from marketplace.common.errors import Conflict, NotFound
from marketplace.payments.ledger import Account, house, post_entry
from marketplace.payments.locks import WALLET_KINDS, lock_accounts, lock_hold
from marketplace.payments.models import (
    AccountKind,
    Earning,
    EarningKind,
    EntryKind,
    Hold,
    HoldStatus,
)


@dataclass(frozen=True, slots=True)
class Share:
    """Someone's part of a payment."""

    organisation_id: str
    amount_micros: int
    kind: EarningKind = EarningKind.PROVIDER


def distribute_charge(*, hold_reference: str, shares: Iterable[Share], now: datetime) -> Hold:
    """Shares a winner's payment out, once: the shares, and what is left to the house.

    What is left may be negative, when a job that was planned again cost more than its owner
    paid, or was refunded; the house bears that.

    Raises
    ------
    Conflict
        ``not_charged``: the hold was not charged.
    """
    totals: defaultdict[tuple[str, EarningKind], int] = defaultdict(int)
    for share in shares:
        if share.amount_micros < 0:
            raise ValueError(f"a share cannot be negative: {share}")
        totals[share.organisation_id, share.kind] += share.amount_micros
    totals_paid = {key: amount for key, amount in totals.items() if amount}
    organisation_id = (
        Hold.objects.filter(reference=hold_reference)
        .values_list("organisation_id", flat=True)
        .first()
    )
    if organisation_id is None:
        raise NotFound("hold_not_found", f"There is no hold named {hold_reference}.")
    with transaction.atomic():
        locked = lock_accounts(
            [(organisation_id, kind) for kind in WALLET_KINDS]
            + [(pk, AccountKind.EARNINGS_PENDING) for pk, _ in totals_paid]
        )
        hold = lock_hold(hold_reference)
        if hold.distributed_at is not None:
            return hold
        if hold.status != HoldStatus.CHARGED:
            raise Conflict("not_charged", "Nothing was charged, so nothing can be shared out.")
        amounts: defaultdict[Account, int] = defaultdict(int)
        for (pk, _), amount in totals_paid.items():
            amounts[Account(pk, AccountKind.EARNINGS_PENDING)] += amount
        kept_micros = hold.charged_micros - hold.refunded_micros
        amounts[house(AccountKind.CLEARING)] = -kept_micros
        amounts[house(AccountKind.REVENUE)] = kept_micros - sum(totals_paid.values())
        if any(amounts.values()):
            post_entry(
                kind=EntryKind.DISTRIBUTION,
                reference=hold_reference,
                amounts=amounts,
                locked=locked,
                now=now,
            )
        for (pk, kind), amount in totals_paid.items():
            _create_earning(
                organisation_id=pk,
                kind=kind,
                reference=hold_reference,
                amount_micros=amount,
                now=now,
            )
        hold.distributed_at = now
        hold.save(update_fields=["distributed_at"])
    return hold


def earnings_mature(*, now: datetime) -> int:
    """Moves earnings whose delay is over from pending to payable; returns how many."""
    due = Earning.objects.filter(matured_at=None, payable_at__lte=now)
    organisation_ids = due.order_by("organisation_id").values_list("organisation_id", flat=True)
    return sum(
        _mature_earnings_of(organisation_id=organisation_id, now=now)
        for organisation_id in list(organisation_ids.distinct())
    )


def _mature_earnings_of(*, organisation_id: str, now: datetime) -> int:
    pending = Account(organisation_id, AccountKind.EARNINGS_PENDING)
    payable = Account(organisation_id, AccountKind.EARNINGS_PAYABLE)
    with transaction.atomic():
        locked = lock_accounts([(organisation_id, pending.kind), (organisation_id, payable.kind)])
        earnings = list(
            Earning.objects.filter(
                organisation_id=organisation_id, matured_at=None, payable_at__lte=now
            ).order_by("pk")
        )
        if earnings:
            total = sum(earning.amount_micros for earning in earnings)
            post_entry(
                kind=EntryKind.MATURITY,
                # An earning matures once, so the first of them names the event.
                reference=earnings[0].pk,
                amounts={pending: -total, payable: total},
                locked=locked,
                now=now,
            )
            Earning.objects.filter(pk__in=[e.pk for e in earnings]).update(matured_at=now)
    return len(earnings)


def _create_earning(
    *, organisation_id: str, kind: EarningKind, reference: str, amount_micros: int, now: datetime
) -> Earning:
    return Earning.objects.create(
        organisation_id=organisation_id,
        kind=kind,
        reference=reference,
        amount_micros=amount_micros,
        accrued_at=now,
        payable_at=now + timedelta(days=settings.PAYOUT_DELAY_DAYS),
    )
