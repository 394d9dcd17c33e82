"""What the outbox asks of the gateway for payments by card.

Each call has a second function, which finds what an earlier attempt did. All of them run outside
of transactions.
"""

from __future__ import annotations

from django.conf import settings

from marketplace.accounts.models import Organisation
from marketplace.payments import stripe_gateway as gateway
from marketplace.payments.card_limits import is_bank_asked
from marketplace.payments.models import (
    CallKind,
    CallStatus,
    CardCustomer,
    CardPayment,
    GatewayCall,
    PaymentPurpose,
)
from marketplace.payments.stripe_client import GatewayFault, GatewayRefused
from marketplace.payments.stripe_gateway import CARD_MIN_CENTS, Intent


def make_intent(call: GatewayCall) -> Intent:
    payment = CardPayment.objects.select_related("organisation", "saved_card").get(pk=call.subject)
    if GatewayCall.objects.filter(kind=CallKind.CANCEL, subject=payment.pk).exists():
        raise GatewayRefused("given_up", "The payment was given up before it was made.")
    customer_id = _ensure_customer(payment.organisation, call)
    is_automatic = payment.purpose == PaymentPurpose.AUTO_TOP_UP
    try:
        asked = gateway.IntentRequest(
            payment_id=payment.pk,
            amount_cents=payment.amount_cents,
            customer_id=customer_id,
            lost_terms={
                "organisation": payment.organisation_id,
                "key": payment.key,
                "purpose": payment.purpose,
            },
            description=PaymentPurpose(payment.purpose).label,
            is_captured_later=payment.purpose == PaymentPurpose.BID,
            saves_card=payment.saves_card,
            card_id=payment.saved_card and payment.saved_card.gateway_id,
            off_session=is_automatic,
            asks_bank=not is_automatic and is_bank_asked(payment),
            return_url=f"{settings.PUBLIC_URL}/wallet/payments/{payment.pk}",
        )
        return gateway.create_intent(asked, key=call.key)
    except GatewayRefused:
        # A declined card leaves the PaymentIntent open for another.
        found = gateway.find_intent(payment_id=payment.pk, customer_id=customer_id)
        if found is None:
            raise
        return found


def find_intent_of(call: GatewayCall) -> Intent | None:
    payment = CardPayment.objects.get(pk=call.subject)
    customer = CardCustomer.objects.filter(organisation=payment.organisation_id).first()
    if customer is None:
        # Without one, no attempt came as far as the PaymentIntent.
        return None
    found = gateway.find_intent(
        payment_id=payment.pk, customer_id=customer.gateway_id, key=payment.key
    )
    others = CardPayment.objects.exclude(pk=payment.pk)
    if found is None or others.filter(gateway_id=found.gateway_id).exists():
        return None
    return found


def make_capture(call: GatewayCall) -> Intent:
    payment = CardPayment.objects.get(pk=call.subject)
    amount_cents = call.arguments["amount_cents"]
    try:
        try:
            return gateway.capture_intent(
                gateway_id=payment.gateway_id or "", amount_cents=amount_cents, key=call.key
            )
        except GatewayRefused as error:
            if error.extra.get("code") != "amount_too_small":
                raise
            # The rest goes into the wallet.
            return gateway.capture_intent(
                gateway_id=payment.gateway_id or "",
                amount_cents=CARD_MIN_CENTS,
                key=f"{call.key}-least",
            )
    except GatewayRefused:
        found = find_captured(call)
        if found is None:
            raise
        return found


def find_captured(call: GatewayCall) -> Intent | None:
    payment = CardPayment.objects.get(pk=call.subject)
    intent = gateway.get_intent(payment.gateway_id or "")
    return intent if intent.status == "succeeded" else None


def make_cancel(call: GatewayCall) -> Intent | None:
    """The PaymentIntent, cancelled where it still could be; ``None``: none was made."""
    being_made = GatewayCall.objects.filter(
        kind=CallKind.INTENT, subject=call.subject, status=CallStatus.WAITING
    )
    if being_made.exists():
        raise GatewayFault("the payment is being made", is_kept=False)
    payment = CardPayment.objects.get(pk=call.subject)
    if payment.gateway_id is None:
        return None
    try:
        return gateway.cancel_intent(gateway_id=payment.gateway_id, key=call.key)
    except GatewayRefused:
        return gateway.get_intent(payment.gateway_id)


def _ensure_customer(organisation: Organisation, call: GatewayCall) -> str:
    known = CardCustomer.objects.filter(organisation=organisation).first()
    if known is not None:
        return known.gateway_id
    made = gateway.create_customer(
        organisation_id=organisation.pk, name=organisation.name, key=f"{call.key}-customer"
    )
    CardCustomer.objects.get_or_create(organisation=organisation, defaults={"gateway_id": made})
    return CardCustomer.objects.get(organisation=organisation).gateway_id
