"""Providers' pay while a result is disputed, and after it was found wanting."""

from __future__ import annotations

from datetime import datetime

from django.db import transaction
from django.db.models import QuerySet, Sum
from django.db.models.functions import Coalesce

from marketplace.payments.ledger import Account, house, post_entry
from marketplace.payments.locks import lock_accounts
from marketplace.payments.models import AccountKind, Earning, EarningKind, EntryKind


def withhold_pay(*, hold_reference: str, now: datetime) -> None:
    """Keep what providers earned with a job from maturing; what matured before stays theirs."""
    with transaction.atomic():
        pay = _list_unpaid(hold_reference, EarningKind.PROVIDER, EarningKind.IDLE)
        owners = sorted(set(pay.values_list("organisation_id", flat=True)))
        lock_accounts([(owner, AccountKind.EARNINGS_PENDING) for owner in owners])
        pay.update(withheld_at=now)


def release_pay(*, hold_reference: str) -> None:
    """Let providers' pay mature that a dispute kept back; twice changes nothing."""
    pay = _list_unpaid(hold_reference, EarningKind.PROVIDER, EarningKind.IDLE)
    pay.update(withheld_at=None)


def list_unpaid_references(*, organisation_id: str) -> list[str]:
    """Holds whose pay the provider has earned and could not have been paid yet."""
    unpaid = Earning.objects.filter(
        organisation=organisation_id,
        kind=EarningKind.PROVIDER,
        matured_at=None,
        returned_at=None,
    )
    return list(unpaid.order_by("pk").values_list("reference", flat=True))


def return_pay(*, hold_reference: str, organisation_id: str, now: datetime) -> int:
    """Take back what a provider earned with a job and was not paid yet, once.

    It goes to the market, and ``refund_charge`` gives it to the owner.

    Returns
    -------
    int
        Micro-dollars; 0 the second time, or where it matured before.
    """
    pending = AccountKind.EARNINGS_PENDING
    with transaction.atomic():
        locked = lock_accounts([(organisation_id, pending)])
        of_work = _list_unpaid(hold_reference, EarningKind.PROVIDER)
        unpaid = of_work.filter(organisation=organisation_id)
        amount = unpaid.aggregate(total=Coalesce(Sum("amount_micros"), 0))["total"]
        if amount:
            post_entry(
                kind=EntryKind.PAY_RETURN,
                reference=f"{hold_reference}:{organisation_id}",
                hold_reference=hold_reference,
                amounts={
                    Account(organisation_id, pending): -amount,
                    house(AccountKind.REFUNDS): amount,
                },
                locked=locked,
                now=now,
            )
            unpaid.update(returned_at=now)
    return amount


def _list_unpaid(hold_reference: str, *kinds: EarningKind) -> QuerySet[Earning]:
    return Earning.objects.filter(
        kind__in=kinds, reference=hold_reference, matured_at=None, returned_at=None
    )
