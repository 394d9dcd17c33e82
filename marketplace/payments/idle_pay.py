"""Pay of providers whose cells an owner gave back too late to be sold again."""

from __future__ import annotations

from collections.abc import Mapping
from datetime import datetime

from django.db import transaction
from django.db.models import QuerySet

from marketplace.payments.earnings import create_earning
from marketplace.payments.ledger import Account, house, post_entry
from marketplace.payments.locks import lock_accounts, lock_shares
from marketplace.payments.models import (
    IDLE_SUFFIX,
    AccountKind,
    Earning,
    EarningKind,
    Entry,
    EntryKind,
)
from marketplace.payments.selectors import get_buyer_id


def pay_for_idle_cells(
    *, hold_reference: str, amounts_micros: Mapping[str, int], now: datetime
) -> None:
    """Pay providers, once for each hold, out of what was kept of a job that its owner gave back.

    Parameters
    ----------
    amounts_micros
        By provider's organisation; above zero.
    """
    buyer_id, pending = get_buyer_id(hold_reference), AccountKind.EARNINGS_PENDING
    with transaction.atomic():
        locked = lock_shares(
            hold_reference=hold_reference, buyer_id=buyer_id, earner_ids=amounts_micros
        )
        paid = Entry.objects.filter(kind=EntryKind.IDLE_PAY, reference=hold_reference)
        if not amounts_micros or paid.exists():
            return
        post_entry(
            kind=EntryKind.IDLE_PAY,
            reference=hold_reference,
            hold_reference=hold_reference,
            amounts={
                house(AccountKind.CONGESTION): -sum(amounts_micros.values()),
                **{Account(pk, pending): amount for pk, amount in amounts_micros.items()},
            },
            locked=locked,
            now=now,
        )
        for pk, amount in amounts_micros.items():
            create_earning(
                organisation_id=pk,
                kind=EarningKind.IDLE,
                reference=hold_reference,
                amount_micros=amount,
                buyer_id=buyer_id,
                now=now,
            )


def return_idle_pay(*, hold_reference: str, now: datetime) -> None:
    """Put back, once, what is not paid out of pay for idle cells: its owner kept nothing up.

    All of the charge goes back, and with it what this pay came from.
    """
    pending = AccountKind.EARNINGS_PENDING
    with transaction.atomic():
        locked = lock_accounts([(pk, pending) for pk in list_idle_earners(hold_reference)])
        lines = list(list_unpaid_idle(hold_reference))
        if not lines:
            return
        post_entry(
            kind=EntryKind.PAY_RETURN,
            reference=hold_reference + IDLE_SUFFIX,
            hold_reference=hold_reference,
            amounts={
                house(AccountKind.CONGESTION): sum(line.amount_micros for line in lines),
                **{Account(line.organisation_id, pending): -line.amount_micros for line in lines},
            },
            locked=locked,
            now=now,
        )
        Earning.objects.filter(pk__in=[line.pk for line in lines]).update(returned_at=now)


def list_idle_earners(hold_reference: str) -> set[str]:
    """The organisations of which pay for idle cells could be put back."""
    return set(list_unpaid_idle(hold_reference).values_list("organisation_id", flat=True))


def list_unpaid_idle(hold_reference: str) -> QuerySet[Earning]:
    """Pay for idle cells that has not matured."""
    return Earning.objects.filter(
        kind=EarningKind.IDLE, reference=hold_reference, matured_at=None, returned_at=None
    )
