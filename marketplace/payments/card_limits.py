"""What cards may pay a day, and what may go back to them: less in an organisation's first days.

A card payment costs the house the gateway's fee, and the gateway keeps it when money goes back. So
these limits bound what somebody can cost the house on purpose.
"""

from __future__ import annotations

from datetime import datetime, timedelta

from django.conf import settings
from django.db.models import Sum

from marketplace.accounts.models import Organisation
from marketplace.common.errors import Conflict, UserError
from marketplace.common.locks import lock_until_commit
from marketplace.common.money import format_usd_exact
from marketplace.payments.models import MICROS_PER_CENT, CardPayment, CardRefund, PaymentStatus
from marketplace.payments.stripe_gateway import CARD_MAX_CENTS

DAY = timedelta(days=1)
#: Name of the advisory lock of what goes back to all cards.
CARD_REFUNDS = ("payments", "card_refunds")
#: Card payments of one organisation within a day, those given up left out.
PAYMENTS_A_DAY = 20
#: Refunds to the cards of one organisation within a day.
REFUNDS_A_DAY = 10


def check_card_amount(amount_cents: int, *, least_cents: int) -> None:
    """Refuse what card networks do not take, or what is less than ``least_cents``.

    Raises
    ------
    UserError
        ``amount_too_small`` or ``amount_too_large``.
    """
    if amount_cents < least_cents:
        raise UserError(
            "amount_too_small",
            f"Cards pay {_format(least_cents)} or more. Use the wallet for less.",
            param="usd",
        )
    most = min(CARD_MAX_CENTS, settings.CARD_DAY_CENTS)
    if amount_cents > most:
        raise UserError(
            "amount_too_large", f"Cards pay {_format(most)} or less at once.", param="usd"
        )


def check_payments_of_day(organisation: Organisation, amount_cents: int, *, now: datetime) -> None:
    """Refuse a payment above the day's limit. Call while holding the organisation's wallet.

    Raises
    ------
    Conflict
        ``card_limit``: with what its cards paid since yesterday it is too much.
    """
    since = CardPayment.objects.filter(organisation=organisation, created_at__gt=now - DAY)
    made = since.exclude(status=PaymentStatus.CANCELLED)
    paid = made.aggregate(total=Sum("amount_cents"))["total"] or 0
    most = get_day_limit(organisation, now=now)
    if paid + amount_cents > most:
        left = max(0, most - paid)
        raise Conflict(
            "card_limit",
            f"Cards pay {_format(most)} a day for {organisation.name}; {_format(left)} is left now."
            + _explain_first_days(organisation, now=now),
        )
    if made.count() >= PAYMENTS_A_DAY:
        raise Conflict(
            "card_limit", f"Cards pay {PAYMENTS_A_DAY} times a day at most. Pay more at once."
        )


def find_refund_problem(payment: CardPayment, amount_cents: int, *, now: datetime) -> str:
    """Why the day's limit lets no such amount go back to cards; empty: it does.

    Call while holding the organisation's wallet, and after any other lock: nobody else sends money
    back until the transaction ends, so that no two use up what is left for all.
    """
    lock_until_commit(*CARD_REFUNDS)
    organisation = payment.organisation
    since = CardRefund.objects.filter(asked_at__gt=now - DAY)
    own = since.filter(payment__organisation=organisation)
    is_first = is_new(organisation, now=now)
    most = settings.CARD_FIRST_BACK_CENTS if is_first else settings.CARD_BACK_CENTS
    left = most - (own.aggregate(total=Sum("amount_cents"))["total"] or 0)
    if amount_cents > left:
        return (
            f"{_format(most)} a day goes back to cards; {_format(max(0, left))} is left now."
            + _explain_first_days(organisation, now=now)
        )
    if own.count() >= REFUNDS_A_DAY:
        return f"Money goes back to cards {REFUNDS_A_DAY} times a day at most. Try tomorrow."
    gone = since.aggregate(total=Sum("amount_cents"))["total"] or 0
    if gone + amount_cents > settings.CARD_BACK_ALL_CENTS:
        return "Nothing more goes back to cards today. Try tomorrow, or write to the operator."
    return ""


def get_day_limit(organisation: Organisation, *, now: datetime) -> int:
    """The cents that an organisation's cards may pay a day."""
    return settings.CARD_FIRST_CENTS if is_new(organisation, now=now) else settings.CARD_DAY_CENTS


def is_new(organisation: Organisation, *, now: datetime) -> bool:
    """Whether an organisation is still in its first days."""
    return now - organisation.created_at < timedelta(days=settings.CARD_FIRST_DAYS)


def is_bank_asked(payment: CardPayment) -> bool:
    """Whether a card's bank is to ask its owner: for large payments, and until one was paid.

    The answer stays the same however often the payment is tried under one key.
    """
    if payment.amount_cents >= settings.CARD_ASK_BANK_CENTS:
        return True
    paid = CardPayment.objects.filter(status=PaymentStatus.PAID, ended_at__lt=payment.created_at)
    return not paid.filter(organisation=payment.organisation_id).exists()


def _explain_first_days(organisation: Organisation, *, now: datetime) -> str:
    days = f" It is more after its first {settings.CARD_FIRST_DAYS:g} days."
    return days * is_new(organisation, now=now)


def _format(cents: int) -> str:
    return format_usd_exact(cents * MICROS_PER_CENT)
