"""Payments that a card's owner contests: the bank takes the money back until it has decided."""

from __future__ import annotations

from datetime import datetime

from marketplace.common.money import format_usd_exact
from marketplace.payments.freezes import end_freeze, freeze_organisation
from marketplace.payments.gateway_models import MICROS_PER_CENT, CardPayment, Dispute
from marketplace.payments.ledger import Account, house, post_entry
from marketplace.payments.locks import lock_payment, lock_wallet
from marketplace.payments.models import AccountKind, EntryKind
from marketplace.payments.stripe_gateway import DisputeState


def record_dispute(state: DisputeState, *, now: datetime) -> Dispute | None:
    """Book a dispute as it stands; saying it again changes nothing. Call in a transaction.

    While the bank decides, the house bears the amount and the organisation may not bid. A lost one
    is paid by the wallet as far as it goes; the organisation stays frozen for the rest.
    """
    found = CardPayment.objects.filter(gateway_id=state.intent_id).values_list("pk", flat=True)
    payment_id = found.first()
    if payment_id is None:
        return None
    payment = lock_payment(payment_id)
    dispute, is_new = Dispute.objects.get_or_create(
        gateway_id=state.gateway_id,
        defaults={
            "payment": payment,
            "amount_cents": state.amount_cents,
            "reason": state.reason[:80],
            "opened_at": now,
        },
    )
    amount = dispute.amount_cents * MICROS_PER_CENT
    if is_new:
        post_entry(
            kind=EntryKind.DISPUTE,
            reference=dispute.pk,
            amounts={house(AccountKind.GATEWAY): amount, house(AccountKind.DISPUTES): -amount},
            locked={},
            now=now,
        )
        freeze_organisation(
            organisation_id=payment.organisation_id,
            reference=dispute.pk,
            reason=f"A card payment of {format_usd_exact(amount)} is disputed at the bank.",
            now=now,
        )
    if state.won is not None and dispute.closed_at is None:
        dispute.won, dispute.closed_at = state.won, now
        dispute.save(update_fields=["won", "closed_at"])
        _close(dispute, payment, amount, now=now)
    return dispute


def _close(dispute: Dispute, payment: CardPayment, amount: int, *, now: datetime) -> None:
    wallet = Account(payment.organisation_id, AccountKind.WALLET_AVAILABLE)
    locked = lock_wallet(payment.organisation_id)
    available = locked[wallet.organisation_id, wallet.kind].balance_micros
    source = house(AccountKind.GATEWAY) if dispute.won else wallet
    paid = amount if dispute.won else min(amount, available)
    if paid:
        post_entry(
            kind=EntryKind.DISPUTE_CLOSED,
            reference=dispute.pk,
            amounts={source: -paid, house(AccountKind.DISPUTES): paid},
            locked=locked,
            now=now,
            memo="The bank decided for the market" if dispute.won else "Taken back by the bank",
        )
    if paid == amount:
        end_freeze(reference=dispute.pk, now=now)
