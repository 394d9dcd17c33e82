"""Money back to a card: of a bid that the card paid, or of a top-up that was not spent."""

from __future__ import annotations

from datetime import datetime

from django.db import transaction

from marketplace.common.errors import Conflict, UserError
from marketplace.common.money import format_usd_exact
from marketplace.payments import stripe_gateway as gateway
from marketplace.payments.card_limits import find_refund_problem
from marketplace.payments.freezes import list_freezes
from marketplace.payments.ledger import Account, house, post_entry
from marketplace.payments.locks import LockedAccounts, lock_payment, lock_refund, lock_wallet
from marketplace.payments.models import (
    PAYMENT_OVER,
    AccountKind,
    CallKind,
    CardPayment,
    CardRefund,
    EntryKind,
    GatewayCall,
    PaymentPurpose,
    PaymentStatus,
    RefundStatus,
)
from marketplace.payments.outbox import WantedCall, add_calls
from marketplace.payments.restores import check_gateway_is_free
from marketplace.payments.stripe_client import GatewayFault, GatewayRefused


def return_to_card(
    *, payment_id: str, amount_cents: int, reference: str, now: datetime
) -> CardRefund:
    """Send unspent money of a wallet back to the card of a top-up, once for each reference.

    The gateway keeps its fee, so the wallet pays the amount and its share of the fee.

    Raises
    ------
    Conflict
        ``not_a_top_up``, ``fee_unknown``, ``refund_exceeds_charge``, ``card_limit``,
        ``payment_charged_back``, ``gateway_held``, or ``organisation_frozen``: what it has may be
        what it owes.
    PaymentRequired
        ``insufficient_funds``: it was spent.
    """
    with transaction.atomic():
        payment = lock_payment(payment_id)
        made = payment.refunds.filter(reference=f"{payment.pk}:{reference}").first()
        if made is not None:
            return made
        if payment.purpose == PaymentPurpose.BID or payment.status != PaymentStatus.PAID:
            raise Conflict("not_a_top_up", "Only a paid top-up can go back to its card.")
        if payment.chargebacks.exists():
            raise Conflict("payment_charged_back", "The bank decides about this payment.")
        if freezes := list_freezes([payment.organisation_id]):
            raise Conflict("organisation_frozen", f"Nothing goes back now: {freezes[0].reason}")
        if payment.fee_cents is None:
            raise Conflict("fee_unknown", "The gateway has not said yet what it kept. Try later.")
        if not 0 < amount_cents <= payment.returnable_cents:
            most = format_usd_exact(payment.returnable_micros)
            raise Conflict(
                "refund_exceeds_charge",
                f"Between $0.01 and {most} can go back: the gateway keeps its fee.",
            )
        check_gateway_is_free()
        locked = lock_wallet(payment.organisation_id)
        if problem := find_refund_problem(payment, amount_cents, now=now):
            raise Conflict("card_limit", problem)
        return book_return(
            payment,
            amount_cents=amount_cents,
            reference=f"{payment.pk}:{reference}",
            locked=locked,
            now=now,
        )


def book_return(
    payment: CardPayment,
    *,
    amount_cents: int,
    reference: str,
    locked: LockedAccounts,
    now: datetime,
    refund_id: str | None = None,
) -> CardRefund:
    """Take from a wallet what goes back to a card, and store the refund with its call.

    Call while holding the payment's lock and the wallet's, ``locked``. ``refund_id`` is the name
    that a market which was lost gave the refund.
    """
    refund = add_refund(
        payment,
        amount_cents=amount_cents,
        fee_cents=payment.compute_fee_share(amount_cents),
        reference=reference,
        refund_id=refund_id,
        now=now,
    )
    wallet = Account(payment.organisation_id, AccountKind.WALLET_AVAILABLE)
    post_entry(
        kind=EntryKind.CARD_RETURN,
        reference=refund.pk,
        amounts={
            wallet: -refund.amount_micros - refund.fee_micros,
            house(AccountKind.CARD_REFUNDS): refund.amount_micros,
            house(AccountKind.GATEWAY_FEES): refund.fee_micros,
        },
        locked=locked,
        now=now,
        memo=f"To card {payment.card}",
    )
    return refund


def add_refund(
    payment: CardPayment,
    *,
    amount_cents: int,
    reference: str,
    now: datetime,
    fee_cents: int = 0,
    refund_id: str | None = None,
) -> CardRefund:
    """Store a refund and its call; the caller books it. Call while holding the payment's lock."""
    refund = CardRefund.objects.create(
        **({"id": refund_id} if refund_id else {}),
        payment=payment,
        reference=reference[:220],
        amount_cents=amount_cents,
        fee_cents=fee_cents,
        asked_at=now,
    )
    payment.refunded_cents += amount_cents
    payment.save(update_fields=["refunded_cents"])
    add_calls([WantedCall(CallKind.REFUND, refund.pk)], now=now)
    return refund


# What the outbox does about refunds.


def make_refund(call: GatewayCall) -> str:
    refund = CardRefund.objects.select_related("payment").get(pk=call.subject)
    payment = refund.payment
    if payment.status not in PAYMENT_OVER:
        raise GatewayFault("the payment is not captured yet", is_kept=False)
    if payment.status != PaymentStatus.PAID:
        raise GatewayRefused("not_paid", "The card never paid.")
    return gateway.create_refund(
        refund_id=refund.pk,
        intent_id=payment.gateway_id or "",
        amount_cents=refund.amount_cents,
        key=call.key,
        reference=refund.reference,
    )


def find_refund(call: GatewayCall) -> str | None:
    refund = CardRefund.objects.select_related("payment").get(pk=call.subject)
    return gateway.find_refund(
        refund_id=refund.pk,
        intent_id=refund.payment.gateway_id or "",
        amount_cents=refund.amount_cents,
        reference=refund.reference,
    )


def conclude_refund(call: GatewayCall, *, answer: str, now: datetime) -> None:
    refund = _lock(call.subject)
    post_entry(
        kind=EntryKind.CARD_REFUND,
        reference=refund.pk,
        amounts={
            house(AccountKind.CARD_REFUNDS): -refund.amount_micros,
            house(AccountKind.GATEWAY): refund.amount_micros,
        },
        locked={},
        now=now,
    )
    refund.status, refund.gateway_id, refund.ended_at = RefundStatus.DONE, answer, now
    refund.save(update_fields=["status", "gateway_id", "ended_at"])


def return_to_wallet(call: GatewayCall, *, error: UserError, now: datetime) -> None:
    """The card takes nothing back: the wallet does, unless the card had paid nothing."""
    refund = _lock(call.subject)
    _give_to_wallet(
        refund, AccountKind.CARD_REFUNDS, reference=refund.pk, why=error.message, now=now
    )


def take_refund_back(*, refund_id: str, why: str, now: datetime) -> None:
    """A refund failed after it was made: its money is the wallet's again, once.

    Call in a transaction.
    """
    refund = _lock(refund_id)
    if refund.status == RefundStatus.DONE:
        _give_to_wallet(
            refund, AccountKind.GATEWAY, reference=f"{refund.pk}:failed", why=why, now=now
        )


def _give_to_wallet(
    refund: CardRefund, source: AccountKind, *, reference: str, why: str, now: datetime
) -> None:
    payment = refund.payment
    wallet = Account(payment.organisation_id, AccountKind.WALLET_AVAILABLE)
    unpaid = payment.status == PaymentStatus.UNCOLLECTED
    post_entry(
        kind=EntryKind.CARD_REFUND,
        reference=reference,
        amounts={
            house(source): -refund.amount_micros,
            house(AccountKind.GATEWAY_FEES): -refund.fee_micros,
            house(AccountKind.CHARGEBACKS) if unpaid else wallet: (
                refund.amount_micros + refund.fee_micros
            ),
        },
        locked=lock_wallet(payment.organisation_id),
        now=now,
        memo=f"The card could not take it: {why}",
    )
    refund.status, refund.ended_at = RefundStatus.REFUSED, now
    refund.save(update_fields=["status", "ended_at"])


def _lock(refund_id: str) -> CardRefund:
    refund = CardRefund.objects.only("payment_id").get(pk=refund_id)
    payment = lock_payment(refund.payment_id)
    locked = lock_refund(refund_id)
    locked.payment = payment
    return locked
