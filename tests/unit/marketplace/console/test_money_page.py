"""The operator's page of money, and the comparison with the gateway."""

from __future__ import annotations

from datetime import timedelta
from io import StringIO
from typing import Any

import pytest
from django.core.management import CommandError, call_command
from django.test import Client

from marketplace.payments import stripe_gateway as gateway
from marketplace.payments.card_payments import refresh_payment
from marketplace.payments.freezes import Freeze
from marketplace.payments.gateway_calls import ATTEMPTS_ALERT
from marketplace.payments.models import GatewayCall, Payout
from marketplace.payments.top_ups import start_top_up
from tests import builders
from tests.builders import NOW
from tests.durable_work import make_calls
from tests.pages import read_text
from tests.stand_in import GatewayControl

pytestmark = pytest.mark.django_db


@pytest.fixture
def operator(client: Client) -> Client:
    client.force_login(builders.operator())
    return client


def _top_up(cards: GatewayControl, usd: int = 10) -> None:
    buyer = builders.organisation(name="Tidewater")
    payment = start_top_up(
        organisation=buyer,
        amount_micros=usd * 1_000_000,
        asked_by=builders.owner_of(buyer),
        key="form-1",
        card_id=None,
        saves_card=False,
        now=NOW,
    )
    make_calls(now=NOW)
    payment.refresh_from_db()
    assert payment.gateway_id is not None
    cards.confirm(payment.gateway_id, gateway.get_intent(payment.gateway_id).client_secret)
    refresh_payment(payment=payment, now=NOW)


def _reconcile() -> str:
    out = StringIO()
    call_command("reconcile_stripe", stdout=out)
    return out.getvalue()


def test_ledger_and_gateway_agree_after_a_top_up(cards: GatewayControl, operator: Client) -> None:
    assert _reconcile() == "0 movements; both say $0.00.\n"
    _top_up(cards)
    told = _reconcile()
    assert told.startswith("1 movements; both say $")
    assert "The gateway agrees: 1 movement" in read_text(operator.get("/operator/money?compare=1"))


def test_what_one_side_lacks_is_named(cards: GatewayControl, operator: Client) -> None:
    made = gateway.create_intent(
        gateway.IntentRequest(
            payment_id="pay_unknown",
            amount_cents=700,
            customer_id=gateway.create_customer(
                organisation_id="org_1", name="Buyer", key="customer-1"
            ),
            card_id="pm_card_visa",
        ),
        key="unknown",
    )
    assert made.charge_id
    with pytest.raises(CommandError, match=r"The ledger says \$0.00, the gateway \$"):
        _reconcile()
    text = read_text(operator.get("/operator/money?compare=1"))
    assert f"{made.charge_id} not in the ledger: ledger $0.00, gateway $7.00" in text


def test_a_gateway_that_is_down_is_said(cards: GatewayControl, operator: Client) -> None:
    cards.control("fail", when="before", times=9)
    answer = operator.get("/operator/money?compare=1")
    assert answer.status_code == 200
    text = read_text(answer)
    assert "The books balance" in text
    assert "The gateway agrees" not in text


def test_without_a_gateway_the_command_says_so(settings: Any) -> None:
    settings.STRIPE_SECRET_KEY = ""
    with pytest.raises(CommandError, match="STRIPE_SECRET_KEY is not set"):
        _reconcile()


def test_what_is_stuck_is_listed_with_its_reason(operator: Client, settings: Any) -> None:
    settings.STRIPE_SECRET_KEY = ""
    buyer = builders.organisation(name="Tidewater")
    reason = "A payment is disputed."
    Freeze.objects.create(organisation=buyer, reference="dp_1", reason=reason, since_at=NOW)
    Payout.objects.create(
        organisation=buyer,
        amount_cents=500,
        status="failed",
        failure="Account closed.",
        made_at=NOW,
        retry_at=NOW + timedelta(days=1),
    )
    GatewayCall.objects.create(
        kind="transfer",
        subject="trf_1",
        arguments={},
        made_at=NOW,
        attempts=ATTEMPTS_ALERT,
        error_message="No answer.",
    )
    text = read_text(operator.get("/operator/money"))
    for words in ("Tidewater A payment is disputed.", "Account closed.", "trf_1"):
        assert words in text
    freeze = Freeze.objects.get()
    assert operator.post(f"/operator/money/freezes/{freeze.pk}").status_code == 302
    freeze.refresh_from_db()
    assert freeze.ended_at is not None


def test_only_operators_see_it(client: Client) -> None:
    client.force_login(builders.user())
    assert client.get("/operator/money").status_code == 403
