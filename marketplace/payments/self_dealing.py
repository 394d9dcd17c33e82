"""Purchases from oneself: earned with a card's money, they are paid out once it is safe.

Who pays with a card for work of nodes of its own has the money back as a payout, for nothing, and
may contest the card payment for months. So what is earned where members or a card are the same on
both sides carries the time until which its card payments may be contested. It is not payable
before, waits longer while its buyer is frozen, and is taken back where a contested payment is lost.
"""

from __future__ import annotations

from datetime import datetime, timedelta

from django.conf import settings
from django.db.models import Max, QuerySet

from marketplace.accounts.selectors import share_members
from marketplace.payments.ledger import Account, house, post_entry
from marketplace.payments.locks import LockedAccounts
from marketplace.payments.models import (
    AccountKind,
    CardPayment,
    Chargeback,
    Earning,
    EntryKind,
    Freeze,
    Hold,
    PaymentStatus,
)

#: Of payments whose money may be the buyer's.
_FUNDED = (PaymentStatus.AUTHORISED, PaymentStatus.PAID, PaymentStatus.UNCOLLECTED)


def find_contestable_until(*, buyer_id: str, earner_id: str, now: datetime) -> datetime | None:
    """Until when a purchase from oneself may be contested; ``None`` where it is none.

    Money has no marks: any card payment of the buyer that may still be contested counts.
    """
    lasts = timedelta(days=settings.CARD_CONTESTED_DAYS)
    payments = CardPayment.objects.filter(
        organisation=buyer_id, status__in=_FUNDED, created_at__gt=now - lasts
    )
    latest = payments.aggregate(latest=Max("created_at"))["latest"]
    if latest is None or not _are_one(buyer_id, earner_id):
        return None
    return latest + lasts


def _are_one(buyer_id: str, earner_id: str) -> bool:
    """Whether two organisations share members, or have paid with the same card."""
    if share_members(buyer_id, earner_id):
        return True
    cards = CardPayment.objects.filter(organisation=buyer_id).exclude(card_fingerprint="")
    return CardPayment.objects.filter(
        organisation=earner_id, card_fingerprint__in=cards.values("card_fingerprint")
    ).exists()


def exclude_contested(earnings: QuerySet[Earning]) -> QuerySet[Earning]:
    """Leave out what was earned from oneself while its buyer is frozen."""
    frozen = Freeze.objects.filter(ended_at=None).values("organisation")
    bought = Hold.objects.filter(organisation__in=frozen).values("reference")
    return earnings.exclude(contestable_until_at__isnull=False, reference__in=bought)


def list_returnable(buyer_id: str) -> list[Earning]:
    """What a buyer's own organisations earned from it and were not paid, the latest first."""
    bought = Hold.objects.filter(organisation=buyer_id).values("reference")
    unpaid = Earning.objects.filter(
        contestable_until_at__isnull=False, matured_at=None, returned_at=None, reference__in=bought
    )
    return list(unpaid.order_by("-accrued_at", "pk"))


def take_back_earnings(
    chargeback: Chargeback, *, owed_micros: int, locked: LockedAccounts, now: datetime
) -> int:
    """Pay a lost chargeback with what the buyer earned from itself; what that came to.

    An earning goes back whole: what it is more than is owed goes to the buyer's wallet. Call while
    holding the wallet of the buyer and the accounts of who earned.
    """
    buyer_id = chargeback.payment.organisation_id
    paid = 0
    for earning in list_returnable(buyer_id):
        if paid >= owed_micros:
            break
        part = min(earning.amount_micros, owed_micros - paid)
        post_entry(
            kind=EntryKind.PAY_RETURN,
            reference=f"{chargeback.pk}:{earning.pk}",
            hold_reference=earning.reference,
            amounts={
                Account(earning.organisation_id, AccountKind.EARNINGS_PENDING): (
                    -earning.amount_micros
                ),
                house(AccountKind.CHARGEBACKS): part,
                Account(buyer_id, AccountKind.WALLET_AVAILABLE): earning.amount_micros - part,
            },
            locked=locked,
            now=now,
            memo="Earned with a card payment that was contested",
        )
        Earning.objects.filter(pk=earning.pk).update(returned_at=now)
        paid += part
    return paid
