"""Filling a wallet by card, by hand or when it runs low, and saying so when it does."""

from __future__ import annotations

import logging
from datetime import datetime, timedelta

from django.conf import settings
from django.core.mail import send_mail
from django.db import transaction

from marketplace.accounts.models import PAYERS, Organisation, User
from marketplace.common.errors import UserError
from marketplace.common.money import format_usd
from marketplace.payments import stripe_gateway as gateway
from marketplace.payments.card_limits import check_card_amount
from marketplace.payments.card_payments import CardChoice, cancel_payment, find_card, start_payment
from marketplace.payments.freezes import list_freezes
from marketplace.payments.locks import lock_wallet_rules
from marketplace.payments.models import (
    MICROS_PER_CENT,
    PAYMENT_OVER,
    AccountKind,
    CallKind,
    CardPayment,
    GatewayCall,
    LedgerAccount,
    PaymentPurpose,
    PaymentStatus,
    SavedCard,
    WalletRules,
)
from marketplace.payments.outbox import WantedCall, add_calls

log = logging.getLogger(__name__)

#: Automatic top-ups of one wallet within a day; then its owners are asked. Who spends what a card
#: fills up, with a key that was stolen or by a loop, finds an end.
AUTO_TOP_UPS_A_DAY = 10


def list_cards(organisation: Organisation) -> list[SavedCard]:
    """Cards an organisation may pay with again, the latest first."""
    kept = SavedCard.objects.filter(organisation=organisation, removed_at=None)
    return list(kept.order_by("-saved_at"))


def remove_card(*, organisation: Organisation, card_id: str, now: datetime) -> None:
    """Forget a card; automatic top-ups with it end."""
    card = find_card(organisation, card_id)
    with transaction.atomic():
        WalletRules.objects.filter(auto_card=card).update(
            auto_card=None, auto_below_micros=0, auto_amount_cents=0
        )
        if SavedCard.objects.filter(pk=card.pk, removed_at=None).update(removed_at=now):
            add_calls([WantedCall(CallKind.DETACH, card.pk)], now=now)


# What the outbox does about cards.


def make_detach(call: GatewayCall) -> bool:
    gateway.remove_card(SavedCard.objects.get(pk=call.subject).gateway_id, key=call.key)
    return True


def set_wallet_rules(
    *,
    organisation: Organisation,
    notice_below_micros: int | None,
    auto_card_id: str | None,
    auto_below_micros: int,
    auto_amount_cents: int,
) -> WalletRules:
    """When the organisation hears of a low wallet, and whether a card fills it up.

    Raises
    ------
    UserError
        ``invalid_amount``, or what ``check_card_amount`` refuses.
    """
    auto_card = None if auto_card_id is None else find_card(organisation, auto_card_id)
    if auto_card is not None:
        check_card_amount(auto_amount_cents, least_cents=settings.CARD_LEAST_CENTS)
        if auto_below_micros <= 0:
            raise UserError(
                "invalid_amount", "Say below which amount the card pays.", param="auto_below"
            )
    rules, _ = WalletRules.objects.get_or_create(organisation=organisation)
    rules.notice_below_micros = notice_below_micros or None
    rules.noticed_at = None
    rules.auto_card = auto_card
    rules.auto_below_micros = auto_below_micros if auto_card else 0
    rules.auto_amount_cents = auto_amount_cents if auto_card else 0
    rules.auto_stopped = ""
    # The count is not written: a concurrent top-up must not get the same name.
    rules.save(
        update_fields=[
            "notice_below_micros",
            "noticed_at",
            "auto_card",
            "auto_below_micros",
            "auto_amount_cents",
            "auto_stopped",
        ]
    )
    return rules


def start_top_up(
    *,
    organisation: Organisation,
    amount_micros: int,
    asked_by: User,
    key: str,
    card_id: str | None,
    saves_card: bool,
    now: datetime,
) -> CardPayment:
    """Ask a card for money; the wallet has it once the gateway has.

    Raises
    ------
    UserError
        ``whole_cents``; ``amount_too_small``: the gateway's fee would be a large part of it; or as
        ``start_payment``.
    """
    if amount_micros % MICROS_PER_CENT:
        raise UserError("whole_cents", "Cards pay whole cents.", param="usd")
    amount_cents = amount_micros // MICROS_PER_CENT
    check_card_amount(amount_cents, least_cents=settings.CARD_LEAST_CENTS)
    return start_payment(
        organisation=organisation,
        purpose=PaymentPurpose.TOP_UP,
        amount_cents=amount_cents,
        created_by=asked_by,
        key=key,
        card=CardChoice(card_id, is_to_be_saved=saves_card),
        now=now,
    )


def watch_wallets(*, now: datetime) -> None:
    """Send notices of low wallets and start automatic top-ups; safe to run twice at once."""
    for organisation_id in list(WalletRules.objects.values_list("organisation", flat=True)):
        try:
            _watch_wallet(organisation_id, now=now)
        except Exception:
            # A failure here must not stop the top-ups of other wallets.
            log.exception("the wallet of %s could not be watched", organisation_id)


def _watch_wallet(organisation_id: str, *, now: datetime) -> None:
    with transaction.atomic():
        rules = lock_wallet_rules(organisation_id)
        wallet = LedgerAccount.objects.filter(
            organisation=organisation_id, kind=AccountKind.WALLET_AVAILABLE
        )
        available = wallet.values_list("balance_micros", flat=True).first() or 0
        _notice(rules, available, now=now)
        _top_up(rules, available, now=now)


def _notice(rules: WalletRules, available: int, *, now: datetime) -> None:
    below = rules.notice_below_micros
    if below is None or available >= below:
        if rules.noticed_at is not None:
            rules.noticed_at = None
            rules.save(update_fields=["noticed_at"])
        return
    if rules.noticed_at is None:
        rules.noticed_at = now
        rules.save(update_fields=["noticed_at"])
        _mail(
            rules.organisation,
            subject="Your wallet runs low",
            text=f"{rules.organisation.name} has {format_usd(available)} left to bid with,"
            f" less than {format_usd(below)}.",
        )


def _top_up(rules: WalletRules, available: int, *, now: datetime) -> None:
    if rules.auto_card is None or rules.auto_stopped or list_freezes([rules.organisation_id]):
        return
    made = CardPayment.objects.filter(
        organisation=rules.organisation, purpose=PaymentPurpose.AUTO_TOP_UP
    )
    latest = made.order_by("-created_at").first()
    if latest is not None and latest.status not in PAYMENT_OVER:
        _stop_if_failed(rules, latest, now=now)
        return
    if available >= rules.auto_below_micros:
        return
    if made.filter(created_at__gt=now - timedelta(days=1)).count() >= AUTO_TOP_UPS_A_DAY:
        why = f"It paid {AUTO_TOP_UPS_A_DAY} times within a day. Is it you who spends so much?"
        _stop(rules, why)
    else:
        rules.auto_count += 1
        rules.save(update_fields=["auto_count"])
        try:
            start_payment(
                organisation=rules.organisation,
                purpose=PaymentPurpose.AUTO_TOP_UP,
                amount_cents=rules.auto_amount_cents,
                created_by=None,
                key=f"auto-{rules.auto_count}",
                card=CardChoice(rules.auto_card.pk),
                now=now,
            )
        except UserError as error:
            _stop(rules, f"It may not pay: {error.message}")


def _stop_if_failed(rules: WalletRules, payment: CardPayment, *, now: datetime) -> None:
    """A card that was declined, or that wants its owner, is not tried again and again."""
    refused = GatewayCall.objects.filter(
        kind=CallKind.INTENT, subject=payment.pk, status="refused"
    ).first()
    failed = payment.status in (PaymentStatus.OPEN, PaymentStatus.ACTION) or refused is not None
    if not failed:
        return
    why = payment.failure or (refused and refused.error_message) or "Your bank asks for you."
    if payment.gateway_id is None:
        CardPayment.objects.filter(pk=payment.pk).update(
            status=PaymentStatus.CANCELLED, failure=str(why)[:300], ended_at=now
        )
    else:
        cancel_payment(payment_id=payment.pk, now=now)
    _stop(rules, f"It did not pay: {why}")


def _stop(rules: WalletRules, why: str) -> None:
    """No more automatic top-ups until the rules are saved again."""
    rules.auto_stopped = why[:300]
    rules.save(update_fields=["auto_stopped"])
    _mail(
        rules.organisation,
        subject="Automatic top-up stopped",
        text=f"{rules.auto_card} is not asked any more. {rules.auto_stopped} Save the rules again,"
        " with this card or another, or fill the wallet by hand.",
    )


def _mail(organisation: Organisation, *, subject: str, text: str) -> None:
    """To those who look after the organisation's money, once the transaction commits."""
    payers = organisation.memberships.filter(role__in=PAYERS, user__is_active=True)
    to = list(payers.values_list("user__email", flat=True))
    body = f"{text}\n\n{settings.PUBLIC_URL}/wallet\n"
    transaction.on_commit(lambda: send_mail(f"[Finetender] {subject}", body, None, to), robust=True)
