"""Payments that a card's owner contests: the bank takes the money back until it has decided."""

from __future__ import annotations

from datetime import datetime

from django.db import transaction
from django.db.models import Q, Sum
from django.db.models.functions import Coalesce

from marketplace.common.money import format_usd_exact
from marketplace.payments.freezes import end_freeze, freeze_organisation
from marketplace.payments.ledger import Account, house, post_entry
from marketplace.payments.locks import WALLET_KINDS, lock_accounts, lock_payment, lock_wallet
from marketplace.payments.models import (
    MICROS_PER_CENT,
    AccountKind,
    CardPayment,
    Chargeback,
    EntryKind,
    Freeze,
    Posting,
)
from marketplace.payments.selectors import find_card_payment_of, measure_refundable
from marketplace.payments.self_dealing import list_returnable, take_back_earnings
from marketplace.payments.stripe_doubts import ChargebackState


def record_chargeback(state: ChargebackState, *, now: datetime) -> Chargeback | None:
    """Book a chargeback as it stands; saying it again changes nothing. Call in a transaction.

    While the bank decides, the market bears the amount and the organisation may not bid. A lost one
    is paid by the wallet as far as it goes; the organisation stays frozen for the rest, which
    ``collect_lost_payments`` takes of what comes into the wallet. An inquiry moves no money and
    books nothing, unless it becomes a chargeback later.
    """
    found = CardPayment.objects.filter(gateway_id=state.intent_id).values_list("pk", flat=True)
    payment_id = found.first()
    if payment_id is None:
        return None
    payment = lock_payment(payment_id)
    if state.is_inquiry and not Chargeback.objects.filter(gateway_id=state.gateway_id).exists():
        return None
    chargeback, is_new = Chargeback.objects.get_or_create(
        gateway_id=state.gateway_id,
        defaults={
            "payment": payment,
            "amount_cents": state.amount_cents,
            "reason": state.reason[:80],
            "opened_at": now,
        },
    )
    amount = chargeback.amount_cents * MICROS_PER_CENT
    if is_new:
        post_entry(
            kind=EntryKind.CHARGEBACK,
            reference=chargeback.pk,
            amounts={house(AccountKind.GATEWAY): amount, house(AccountKind.CHARGEBACKS): -amount},
            locked={},
            now=now,
        )
        freeze_organisation(
            organisation_id=payment.organisation_id,
            reference=chargeback.pk,
            reason=f"A card payment of {format_usd_exact(amount)} is contested at the bank.",
            now=now,
        )
    if state.won is not None and chargeback.closed_at is None:
        chargeback.won, chargeback.closed_at = state.won, now
        chargeback.save(update_fields=["won", "closed_at"])
        _close(chargeback, payment, amount, now=now)
    elif state.won and chargeback.won is False:
        chargeback.won, chargeback.closed_at = True, now
        chargeback.save(update_fields=["won", "closed_at"])
        _win_appeal(chargeback, payment, amount, now=now)
    return chargeback


def measure_repayable(*, hold_reference: str) -> int:
    """Micro-dollars of a charge that went back neither from the market nor from a card's bank."""
    payment = find_card_payment_of(hold_reference=hold_reference)
    contested = 0 if payment is None else measure_contested(payment)
    return max(0, measure_refundable(hold_reference=hold_reference) - contested)


def measure_contested(payment: CardPayment) -> int:
    """Micro-dollars of a payment that a bank took back and its organisation did not pay since.

    Whoever gets them back a second time has had the work for nothing, and the price beside it.
    """
    taken = payment.chargebacks.exclude(won=True)
    return sum(one.amount_cents * MICROS_PER_CENT - sum_collected(one) for one in taken)


def collect_lost_payments(*, now: datetime) -> int:
    """Pay lost chargebacks out of wallets into which money came since, such as refunds; how many.

    What is owed is taken for as long as the freeze for it lasts: an operator who lifts that lets
    the organisation have its money.
    """
    frozen = Freeze.objects.filter(ended_at=None)
    lost = Chargeback.objects.filter(won=False, pk__in=frozen.values("reference"))
    return sum(_collect(pk, now=now) for pk in lost.order_by("pk").values_list("pk", flat=True))


def _collect(chargeback_id: str, *, now: datetime) -> bool:
    with transaction.atomic():
        payment = lock_payment(Chargeback.objects.get(pk=chargeback_id).payment_id)
        # Its appeal may have been won, or the freeze lifted.
        chargeback = Chargeback.objects.get(pk=chargeback_id)
        is_frozen = Freeze.objects.filter(reference=chargeback_id, ended_at=None).exists()
        if chargeback.won is not False or not is_frozen:
            return False
        wallet = Account(payment.organisation_id, AccountKind.WALLET_AVAILABLE)
        locked = lock_wallet(payment.organisation_id)
        collected = sum_collected(chargeback)
        owed = chargeback.amount_cents * MICROS_PER_CENT - collected
        part = min(owed, locked[wallet.organisation_id, wallet.kind].balance_micros)
        if part <= 0:
            return False
        post_entry(
            kind=EntryKind.CHARGEBACK_CLOSED,
            reference=f"{chargeback.pk}:{collected}",
            amounts={wallet: -part, house(AccountKind.CHARGEBACKS): part},
            locked=locked,
            now=now,
            memo="Taken back by the bank",
        )
        if part == owed:
            end_freeze(reference=chargeback.pk, now=now)
    return True


def sum_collected(chargeback: Chargeback) -> int:
    """Micro-dollars that were paid for a chargeback: by the wallet, and by own earnings."""
    name = chargeback.pk
    later = Q(
        entry__kind__in=(EntryKind.CHARGEBACK_CLOSED, EntryKind.PAY_RETURN),
        entry__reference__startswith=f"{name}:",
    )
    paid = Posting.objects.filter(
        Q(entry__kind=EntryKind.CHARGEBACK_CLOSED, entry__reference=name) | later,
        account__kind=AccountKind.CHARGEBACKS,
    )
    return paid.aggregate(total=Coalesce(Sum("amount_micros"), 0))["total"]


def _win_appeal(
    chargeback: Chargeback, payment: CardPayment, amount: int, *, now: datetime
) -> None:
    """What the bank took comes back: to the wallet what was paid for it, the rest to the market.

    What the buyer had earned from itself comes back as its money, as the part that it did not owe.
    """
    paid = sum_collected(chargeback)
    post_entry(
        kind=EntryKind.CHARGEBACK_CLOSED,
        reference=f"{chargeback.pk}:appeal",
        amounts={
            house(AccountKind.GATEWAY): -amount,
            Account(payment.organisation_id, AccountKind.WALLET_AVAILABLE): paid,
            house(AccountKind.CHARGEBACKS): amount - paid,
        },
        locked=lock_wallet(payment.organisation_id),
        now=now,
        memo="The bank decided for the market after an appeal",
    )
    end_freeze(reference=chargeback.pk, now=now)


def _close(chargeback: Chargeback, payment: CardPayment, amount: int, *, now: datetime) -> None:
    wallet = Account(payment.organisation_id, AccountKind.WALLET_AVAILABLE)
    earners = {earning.organisation_id for earning in list_returnable(payment.organisation_id)}
    locked = lock_accounts(
        [(payment.organisation_id, kind) for kind in WALLET_KINDS]
        + [(earner_id, AccountKind.EARNINGS_PENDING) for earner_id in sorted(earners)]
    )
    available = locked[wallet.organisation_id, wallet.kind].balance_micros
    source = house(AccountKind.GATEWAY) if chargeback.won else wallet
    paid = amount if chargeback.won else min(amount, available)
    if paid:
        post_entry(
            kind=EntryKind.CHARGEBACK_CLOSED,
            reference=chargeback.pk,
            amounts={source: -paid, house(AccountKind.CHARGEBACKS): paid},
            locked=locked,
            now=now,
            memo="The bank decided for the market" if chargeback.won else "Taken back by the bank",
        )
    if paid < amount:
        paid += take_back_earnings(chargeback, owed_micros=amount - paid, locked=locked, now=now)
    if paid == amount:
        end_freeze(reference=chargeback.pk, now=now)
