"""Earnings become payable once their delay is over and nothing holds them."""

from __future__ import annotations

from datetime import datetime

from django.db import transaction
from django.db.models import QuerySet

from marketplace.payments.ledger import Account, post_entry
from marketplace.payments.locks import lock_accounts
from marketplace.payments.models import AccountKind, Earning, EntryKind
from marketplace.payments.self_dealing import exclude_contested


def mature_earnings(*, now: datetime) -> int:
    """Move earnings whose delay is over from pending to payable; the number moved."""
    due = _list_due(now)
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
        earnings = list(_list_due(now).filter(organisation=organisation_id).order_by("pk"))
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


def _list_due(now: datetime) -> QuerySet[Earning]:
    return exclude_contested(
        Earning.objects.filter(matured_at=None, withheld_at=None, payable_at__lte=now)
    )
