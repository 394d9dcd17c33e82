"""Every kind of call that the market makes to the gateway, with what is read off the answers."""

from __future__ import annotations

import time
from collections.abc import Callable
from datetime import UTC, datetime, timedelta
from typing import Any
from uuid import uuid4

import pytest

from marketplace.payments import stripe_accounts, stripe_doubts, stripe_tax
from marketplace.payments import stripe_gateway as gateway
from marketplace.payments.gateway_endpoints import create_endpoints
from marketplace.payments.gateway_setup import load_connection, try_test_payment
from marketplace.payments.models import GatewayCall, GatewayEndpoint
from marketplace.payments.stripe_client import get_client
from marketplace.payments.stripe_events import list_events
from tests import builders


def new_key() -> str:
    return uuid4().hex


def _customer() -> str:
    return gateway.create_customer(organisation_id="org_1", name="Anna", key=new_key())


def _pay(card: str = "pm_card_visa", **more: Any) -> gateway.Intent:
    asked = {
        "payment_id": "pay_1",
        "amount_cents": 1200,
        "customer_id": _customer(),
        "card_id": card,
        "return_url": "https://market.example/back",
        "description": "Bid",
    }
    return gateway.create_intent(gateway.IntentRequest(**(asked | more)), key=new_key())


def open_payment() -> None:
    customer = _customer()
    made = _pay(card_id=None, customer_id=customer)
    assert (made.status, made.amount_cents) == ("requires_payment_method", 1200)
    found = gateway.find_intent(payment_id="pay_1", customer_id=customer)
    assert found is not None
    assert (found.gateway_id, found.payment_id) == (made.gateway_id, "pay_1")


def authorise_and_capture() -> None:
    made = _pay(is_captured_later=True, asks_bank=True)
    assert (made.status, made.received_cents) == ("requires_capture", 0)
    taken = gateway.capture_intent(gateway_id=made.gateway_id, amount_cents=310, key=new_key())
    assert (taken.status, taken.received_cents) == ("succeeded", 310)
    assert taken.card is not None
    assert taken.card.last4 == "4242"
    assert taken.card.fingerprint


def authorise_and_cancel() -> None:
    made = _pay(is_captured_later=True)
    assert gateway.cancel_intent(gateway_id=made.gateway_id, key=new_key()).status == "canceled"


def save_and_forget_a_card() -> None:
    made = _pay(saves_card=True)
    assert made.card is not None
    gateway.remove_card(made.card.gateway_id, key=new_key())


def decline_a_card() -> None:
    with pytest.raises(gateway.GatewayRefused) as refused:
        _pay("pm_card_chargeDeclined")
    assert refused.value.code == "generic_decline"


def ask_the_bank() -> None:
    made = _pay("pm_card_authenticationRequired")
    assert made.status == "requires_action"
    assert made.action_url.startswith("http")


def send_money_back() -> None:
    made = _pay()
    sent = {"refund_id": "refund_1", "intent_id": made.gateway_id, "amount_cents": 500}
    gateway.create_refund(**sent, key=new_key())
    assert gateway.find_refund(**sent)
    listed = get_client().v1.refunds.list({"payment_intent": made.gateway_id, "limit": 100})
    state = gateway.get_refund(listed.data[0].id)
    assert (state.refund_id, state.has_failed) == ("refund_1", False)


def look_at_a_dispute() -> None:
    made = _pay("pm_card_createDispute")
    asked: Any = {"payment_intent": made.gateway_id, "limit": 100}
    while not (found := get_client().v1.disputes.list(asked).data):
        # Stripe opens it within seconds; the stand-in has it at once.
        time.sleep(1)
    state = stripe_doubts.get_chargeback(found[0].id)
    assert (state.intent_id, state.amount_cents) == (made.gateway_id, 1200)
    assert (state.won, state.is_inquiry) == (None, False)


def list_movements() -> None:
    made = _pay("pm_card_bypassPending")
    since = datetime.now(UTC) - timedelta(minutes=2)
    charges = {moved.source_id: moved for moved in gateway.list_movements(since=since)}
    moved = charges[made.charge_id]
    assert (moved.kind, moved.amount_cents, moved.currency) == ("charge", 1200, "usd")
    assert moved.net_cents == 1200 - moved.fee_cents
    list_events(since=since, account_id="")


def connect() -> None:
    assert load_connection().account_id.startswith("acct_")
    made = create_endpoints(created_by=builders.operator(), now=builders.NOW)
    GatewayEndpoint.objects.all().delete()
    # Made once more: the ones whose secrets are lost are removed.
    create_endpoints(created_by=builders.operator(), now=builders.NOW)
    for endpoint in GatewayEndpoint.objects.all():
        assert endpoint.gateway_id not in {before.gateway_id for before in made}
        get_client().v1.webhook_endpoints.delete(endpoint.gateway_id)


def try_the_connection() -> None:
    now = builders.NOW + timedelta(seconds=GatewayCall.objects.count())
    try_test_payment(asked_by=builders.operator(), now=now)


def open_an_account() -> None:
    made = stripe_accounts.create_account(organisation_id="org_1", country="DE", key=new_key())
    link = stripe_accounts.create_onboarding_link(
        account_id=made, return_url="https://market.example/back"
    )
    assert link.startswith("http")
    state = stripe_accounts.get_account(made)
    assert (state.gateway_id, state.is_ready, bool(state.needs)) == (made, False, True)


def pay_an_earner_out(account: str) -> None:
    _pay("pm_card_bypassPending", amount_cents=5000)
    sent: dict[str, Any] = {"transfer_id": "transfer_1", "group": "bid_1"}
    made = stripe_accounts.create_transfer(
        **sent, amount_cents=2000, currency="usd", account_id=account, key=new_key()
    )
    assert stripe_accounts.find_transfer(**sent) == made
    assert not stripe_accounts.is_reversed(made)
    stripe_accounts.create_reversal(transfer_gateway_id=made, amount_cents=500, key=new_key())
    assert stripe_accounts.is_reversed(made)
    asked: dict[str, Any] = {"payout_id": "payout_1:1", "account_id": account}
    assert stripe_accounts.get_available_cents(account, currency="usd") >= 100
    paid = stripe_accounts.create_payout(**asked, amount_cents=100, currency="usd", key=new_key())
    assert stripe_accounts.find_payout(**asked) == paid
    found = stripe_accounts.get_payout(paid.gateway_id, account_id=account)
    assert found.payout_id == "payout_1:1"


def work_out_a_tax() -> None:
    found = stripe_tax.calculate_tax(
        total_cents=1200,
        country="FR",
        postal_code="75001",
        tax_id="",
        reference="2026-03",
        key=new_key(),
    )
    assert found.gateway_id
    stripe_tax.record_tax(calculation_id=found.gateway_id, reference=new_key(), key=new_key())


CALLS: dict[str, Callable[..., None]] = {
    each.__name__: each
    for each in (
        *(open_payment, authorise_and_capture, authorise_and_cancel, save_and_forget_a_card),
        *(decline_a_card, ask_the_bank, send_money_back, look_at_a_dispute, list_movements),
        *(connect, try_the_connection, open_an_account, pay_an_earner_out, work_out_a_tax),
    )
}
