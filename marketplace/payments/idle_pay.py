"""Pay of providers whose cells an owner gave back too late to be sold again."""

from __future__ import annotations

from collections.abc import Mapping
from datetime import datetime

from django.db import transaction

from marketplace.payments.earnings import create_earning
from marketplace.payments.ledger import Account, house, post_entry
from marketplace.payments.locks import lock_shares
from marketplace.payments.models import IDLE_SUFFIX, AccountKind, EarningKind, Entry, EntryKind
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
    reference = hold_reference + IDLE_SUFFIX
    buyer_id, pending = get_buyer_id(hold_reference), AccountKind.EARNINGS_PENDING
    with transaction.atomic():
        locked = lock_shares(
            hold_reference=hold_reference, buyer_id=buyer_id, earner_ids=amounts_micros
        )
        paid = Entry.objects.filter(kind=EntryKind.IDLE_PAY, reference=reference)
        if not amounts_micros or paid.exists():
            return
        post_entry(
            kind=EntryKind.IDLE_PAY,
            reference=reference,
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
                reference=reference,
                amount_micros=amount,
                buyer_id=buyer_id,
                now=now,
            )
