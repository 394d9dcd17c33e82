"""Payments by card: what is asked of the gateway, and what its answers do to the ledger.

A payment's state is read from the gateway whenever something may have changed, and applied once:
by the call that made it, by the page that the card's owner returns to, or by a webhook, whichever
comes first. None of them trusts another.
"""

from __future__ import annotations

from dataclasses import dataclass
from datetime import datetime
from typing import Any

from django.db import transaction

from marketplace.accounts.models import Organisation, User
from marketplace.common.errors import Conflict, MarketFault, NotFound, UserError
from marketplace.common.money import format_usd_exact
from marketplace.payments import stripe_gateway as gateway
from marketplace.payments.card_limits import check_card_amount, check_payments_of_day
from marketplace.payments.freezes import check_not_frozen, freeze_organisation
from marketplace.payments.ledger import Account, house, post_entry
from marketplace.payments.locks import lock_hold, lock_payment, lock_wallet
from marketplace.payments.models import (
    MICROS_PER_CENT,
    PAYMENT_OVER,
    AccountKind,
    CallKind,
    CardPayment,
    Entry,
    EntryKind,
    GatewayCall,
    Hold,
    HoldStatus,
    PaymentPurpose,
    PaymentStatus,
    SavedCard,
)
from marketplace.payments.outbox import WantedCall, add_calls
from marketplace.payments.price_shares import find_least_cents
from marketplace.payments.stripe_gateway import Intent

_STATUSES = {
    "requires_payment_method": PaymentStatus.OPEN,
    "requires_confirmation": PaymentStatus.OPEN,
    "processing": PaymentStatus.OPEN,
    "requires_action": PaymentStatus.ACTION,
    "requires_capture": PaymentStatus.AUTHORISED,
    "succeeded": PaymentStatus.PAID,
    "canceled": PaymentStatus.CANCELLED,
}


@dataclass(frozen=True, slots=True)
class CardChoice:
    """The card that pays: one that is saved, or one that its owner gives on the page."""

    saved_card_id: str | None = None
    #: Whether a card that its owner gives is saved for later payments.
    is_to_be_saved: bool = False


def start_payment(
    *,
    organisation: Organisation,
    purpose: PaymentPurpose,
    amount_cents: int,
    created_by: User | None,
    key: str,
    now: datetime,
    card: CardChoice = CardChoice(),
    terms: dict[str, Any] | None = None,
) -> CardPayment:
    """Store a payment and the call that makes its PaymentIntent; the same key is the same payment.

    Raises
    ------
    UserError
        ``amount_too_small``, ``amount_too_large``: no card network takes it.
    NotFound
        ``unknown_card``: the organisation has no such card, or removed it.
    Conflict
        ``idempotency_key_reused``: the key belongs to another payment. ``card_limit``: above what
        the organisation's cards may pay a day.
    NotAllowed
        ``organisation_frozen``: what a card pays now may be contested, too.
    """
    check_card_amount(amount_cents, least_cents=find_least_cents())
    saved_card_id = card.saved_card_id
    saved_card = None if saved_card_id is None else find_card(organisation, saved_card_id)
    with transaction.atomic():
        # The wallet's lock keeps two payments at once from passing the limit together.
        lock_wallet(organisation.pk)
        made = CardPayment.objects.filter(organisation=organisation, key=key).first()
        if made is not None:
            if (made.purpose, made.amount_cents) != (purpose, amount_cents):
                raise Conflict(
                    "idempotency_key_reused", "This form was sent before with another amount."
                )
            return made
        is_bid = purpose == PaymentPurpose.BID
        check_not_frozen(organisation, refused="New bids" if is_bid else "New card payments")
        check_payments_of_day(organisation, amount_cents, now=now)
        payment = CardPayment.objects.create(
            organisation=organisation,
            key=key,
            purpose=purpose,
            amount_cents=amount_cents,
            created_by=created_by,
            saved_card=saved_card,
            saves_card=card.is_to_be_saved and saved_card is None,
            terms=terms,
            created_at=now,
        )
        add_calls([WantedCall(CallKind.INTENT, payment.pk)], now=now)
    return payment


def find_card(organisation: Organisation, card_id: str) -> SavedCard:
    """A saved card of an organisation.

    Raises
    ------
    NotFound
        ``unknown_card``: it has no such card, or removed it.
    """
    found = SavedCard.objects.filter(
        pk=card_id.replace("\0", ""), organisation=organisation, removed_at=None
    ).first()
    if found is None:
        raise NotFound("unknown_card", "There is no such card. Choose another.")
    return found


def find_payment(organisation: Organisation, payment_id: str) -> CardPayment:
    """A card payment of an organisation.

    Raises
    ------
    NotFound
        ``unknown_payment``.
    """
    found = CardPayment.objects.select_related("organisation", "created_by").filter(
        pk=payment_id.replace("\0", ""), organisation=organisation
    )
    if (payment := found.first()) is None:
        raise NotFound("unknown_payment", f"{organisation.name} has no such payment.")
    return payment


def to_cents(micros: int) -> int:
    """Whole cents, rounded up: what a card has to pay for an amount."""
    return -(-micros // MICROS_PER_CENT)


def refresh_payment(*, payment: CardPayment, now: datetime) -> tuple[CardPayment, Intent | None]:
    """The payment after the gateway was asked how it stands; call outside of any transaction."""
    if payment.gateway_id is None:
        return payment, None
    intent = gateway.get_intent(payment.gateway_id)
    with transaction.atomic():
        record_intent(intent, payment_id=payment.pk, now=now)
    return CardPayment.objects.get(pk=payment.pk), intent


def apply_intent(call: GatewayCall, *, answer: Intent, now: datetime) -> None:
    record_intent(answer, payment_id=call.subject, now=now)


def conclude_cancel(call: GatewayCall, *, answer: Intent | None, now: datetime) -> None:
    """Book how a payment that was given up stands; without an answer it was never made."""
    if answer is not None:
        record_intent(answer, payment_id=call.subject, now=now)
        return
    payment = lock_payment(call.subject)
    if payment.status == PaymentStatus.STARTED:
        payment.status, payment.ended_at = PaymentStatus.CANCELLED, now
        payment.save(update_fields=["status", "ended_at"])


def record_intent(intent: Intent, *, payment_id: str, now: datetime) -> CardPayment:
    """Book what a PaymentIntent says; saying it again changes nothing. Call in a transaction."""
    payment = lock_payment(payment_id)
    if payment.gateway_id not in (None, intent.gateway_id):
        raise MarketFault(f"{payment.pk} has another PaymentIntent than {intent.gateway_id}")
    if intent.amount_cents != payment.amount_cents:
        raise MarketFault(f"{intent.gateway_id} is for another amount than {payment.pk}")
    payment.gateway_id = intent.gateway_id
    payment.charge_id = intent.charge_id or payment.charge_id
    # Why a bid was not placed stands beside what the gateway says.
    payment.failure = intent.failure[:300] or payment.failure * bool(payment.terms)
    if intent.card is not None:
        payment.card = f"{intent.card.brand} {intent.card.last4}"
        payment.card_fingerprint = intent.card.fingerprint[:60]
    if payment.status not in PAYMENT_OVER:
        status = _STATUSES[intent.status]
        if status == PaymentStatus.PAID:
            _book_received(payment, intent, now=now)
        elif status == PaymentStatus.CANCELLED and _is_hold_open(payment):
            # The bid is in flight: whether it is collected shows when its price is captured.
            payment.failure = "The authorisation has expired."
        elif payment.status != PaymentStatus.AUTHORISED or status == PaymentStatus.CANCELLED:
            # Of two looks the earlier may arrive last: what is authorised stays so.
            payment.status = status
        if payment.status in PAYMENT_OVER:
            payment.ended_at = now
        if payment.saves_card and status in (PaymentStatus.PAID, PaymentStatus.AUTHORISED):
            _save_card(payment, intent, now=now)
    if intent.fee_cents is not None and payment.status == PaymentStatus.PAID:
        payment.fee_cents = intent.fee_cents
        book_fee(reference=intent.charge_id, fee_cents=intent.fee_cents, now=now)
    payment.save()
    return payment


def _is_hold_open(payment: CardPayment) -> bool:
    holds = Hold.objects.filter(card_payment=payment)
    return holds.exclude(status=HoldStatus.RELEASED).exists()


def _book_received(payment: CardPayment, intent: Intent, *, now: datetime) -> None:
    """Money arrived: a top-up fills the wallet, a capture pays a bid."""
    hold = Hold.objects.filter(card_payment=payment).first()
    if hold is not None and hold.status == HoldStatus.HELD:
        # Captured before the bid was decided, by somebody else: booked once it is.
        return
    received = intent.received_cents * MICROS_PER_CENT
    owed = 0 if hold is None else hold.charged_micros
    wallet = Account(payment.organisation_id, AccountKind.WALLET_AVAILABLE)
    post_entry(
        kind=EntryKind.TOP_UP if hold is None else EntryKind.CAPTURE,
        reference=payment.pk,
        hold_reference="" if hold is None else hold.reference,
        amounts={
            house(AccountKind.GATEWAY): -received,
            house(AccountKind.AUTHORISED): owed,
            # The part of a cent that no card can pay comes back here.
            wallet: max(0, received - owed),
            house(AccountKind.CHARGEBACKS): min(0, received - owed),
        },
        locked=lock_wallet(payment.organisation_id),
        now=now,
        memo=f"Card {payment.card}" if payment.card else "",
        actor=payment.created_by,
    )
    payment.status = PaymentStatus.PAID
    payment.received_cents = intent.received_cents


def book_fee(*, reference: str, fee_cents: int, now: datetime) -> None:
    """What the gateway kept for itself, once for each charge or movement. Call in a transaction."""
    booked = Entry.objects.filter(kind=EntryKind.GATEWAY_FEE, reference=reference)
    if not fee_cents or booked.exists():
        return
    fee = fee_cents * MICROS_PER_CENT
    post_entry(
        kind=EntryKind.GATEWAY_FEE,
        reference=reference,
        amounts={house(AccountKind.GATEWAY): fee, house(AccountKind.GATEWAY_FEES): -fee},
        locked={},
        now=now,
    )


def _save_card(payment: CardPayment, intent: Intent, *, now: datetime) -> None:
    if intent.card is None:
        return
    payment.saved_card, _ = SavedCard.objects.get_or_create(
        gateway_id=intent.card.gateway_id,
        defaults={
            "organisation_id": payment.organisation_id,
            "brand": intent.card.brand,
            "last4": intent.card.last4,
            "exp_month": intent.card.exp_month,
            "exp_year": intent.card.exp_year,
            "saved_at": now,
        },
    )


def cancel_payment(*, payment_id: str, now: datetime) -> None:
    """Give a payment up that nothing is held for; what is authorised goes back to the card.

    One that the gateway has not made yet is made no more; where it is being made at this moment, it
    is cancelled after that.
    """
    with transaction.atomic():
        payment = lock_payment(payment_id)
        # Holds are placed under the wallet's lock: none begins after this.
        lock_wallet(payment.organisation_id)
        if payment.status in PAYMENT_OVER or _is_hold_open(payment):
            return
        if payment.terms and not payment.failure:
            payment.failure = "The authorisation was given back to the card."
            payment.save(update_fields=["failure"])
        add_calls([WantedCall(CallKind.CANCEL, payment.pk)], now=now)


def fail_authorised(*, payment_id: str, reason: str, now: datetime) -> None:
    """The bid of an authorised payment is not placed: say why, and give the amount back."""
    with transaction.atomic():
        payment = lock_payment(payment_id)
        if not _is_hold_open(payment):
            payment.failure = reason[:300]
            payment.save(update_fields=["failure"])
    cancel_payment(payment_id=payment_id, now=now)


def conclude_uncollected(call: GatewayCall, *, error: UserError, now: datetime) -> None:
    """A won bid's price cannot be captured: the wallet pays what it can, the market the rest.

    The organisation may not bid until the operator has settled it.
    """
    payment = lock_payment(call.subject)
    if payment.status in PAYMENT_OVER:
        return
    locked = lock_wallet(payment.organisation_id)
    hold = lock_hold(Hold.objects.values_list("reference", flat=True).get(card_payment=payment))
    wallet = Account(payment.organisation_id, AccountKind.WALLET_AVAILABLE)
    owed = hold.charged_micros
    paid = min(owed, locked[wallet.organisation_id, wallet.kind].balance_micros)
    post_entry(
        kind=EntryKind.UNCOLLECTED,
        reference=payment.pk,
        hold_reference=hold.reference,
        amounts={
            house(AccountKind.AUTHORISED): owed,
            wallet: -paid,
            house(AccountKind.CHARGEBACKS): paid - owed,
        },
        locked=locked,
        now=now,
        memo="The card's authorisation had expired",
    )
    payment.status, payment.ended_at = PaymentStatus.UNCOLLECTED, now
    payment.failure = error.message[:300]
    payment.save(update_fields=["status", "ended_at", "failure"])
    if paid < owed:
        freeze_organisation(
            organisation_id=payment.organisation_id,
            reference=payment.pk,
            reason=f"The price of a won bid, {format_usd_exact(owed - paid)}, could not be taken"
            " from the card that it was authorised on.",
            now=now,
        )
