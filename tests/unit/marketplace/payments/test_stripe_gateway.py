"""What the gateway answers, through the official client: the stand-in's word or Stripe's own."""

from typing import Any

import pytest

from marketplace.common.errors import NotFound, UserError
from marketplace.common.ids import new_id
from marketplace.payments import stripe_gateway as gateway
from marketplace.payments.stripe_client import GatewayFault, GatewayRefused
from marketplace.payments.stripe_events import read_event
from marketplace.payments.stripe_gateway import Intent
from tests.stand_in import GatewayControl

pytestmark = [pytest.mark.usefixtures("any_gateway"), pytest.mark.django_db]


def _customer() -> str:
    return gateway.create_customer(organisation_id=new_id("org"), name="Anna", key=new_id("key"))


def _pay(card: str, **more: Any) -> Intent:
    asked = {
        "payment_id": new_id("pay"),
        "amount_cents": 1200,
        "customer_id": _customer(),
        "is_captured_later": False,
        "saves_card": False,
        "card_id": card,
        "off_session": False,
        "return_url": "http://127.0.0.1/back",
        "description": "Bid",
    } | more
    key = asked.pop("key", new_id("key"))
    return gateway.create_intent(gateway.IntentRequest(**asked), key=key)


def test_an_authorised_amount_is_captured_in_part_and_once() -> None:
    made = _pay("pm_card_visa", is_captured_later=True)
    assert (made.status, made.received_cents, made.failure) == ("requires_capture", 0, "")
    captured = gateway.capture_intent(
        gateway_id=made.gateway_id, amount_cents=310, key=new_id("key")
    )
    assert (captured.status, captured.amount_cents, captured.received_cents) == (
        *("succeeded", 1200, 310),
    )
    with pytest.raises(GatewayRefused) as refused:
        gateway.capture_intent(gateway_id=made.gateway_id, amount_cents=1, key=new_id("key"))
    assert refused.value.code == "payment_intent_unexpected_state"


def test_the_same_key_is_one_payment_and_with_other_terms_it_is_refused() -> None:
    customer, payment, key = _customer(), new_id("pay"), new_id("key")
    terms = {"customer_id": customer, "payment_id": payment, "key": key}
    first, again = (_pay("pm_card_visa", **terms) for _ in range(2))
    assert first.gateway_id == again.gateway_id
    with pytest.raises(GatewayRefused):
        _pay("pm_card_visa", amount_cents=1300, **terms)
    found = gateway.find_intent(payment_id=payment, customer_id=customer)
    assert found is not None
    assert found.gateway_id == first.gateway_id


@pytest.mark.parametrize(
    ("card", "code"),
    [
        ("pm_card_chargeDeclined", "generic_decline"),
        ("pm_card_chargeDeclinedInsufficientFunds", "insufficient_funds"),
        ("pm_card_chargeDeclinedExpiredCard", "expired_card"),
    ],
)
def test_a_declined_card_says_why(card: str, code: str) -> None:
    with pytest.raises(GatewayRefused) as refused:
        _pay(card)
    assert refused.value.code == code
    assert refused.value.status == 402
    assert refused.value.message.endswith(".")


def test_a_bank_that_asks_gives_an_address_and_refuses_where_nobody_can_answer() -> None:
    asked = _pay("pm_card_authenticationRequired")
    assert asked.status == "requires_action"
    assert asked.action_url.startswith("http")
    with pytest.raises(GatewayRefused) as refused:
        _pay("pm_card_authenticationRequired", off_session=True)
    assert refused.value.code == "authentication_required"


@pytest.mark.parametrize(("cents", "code"), [(49, "amount_too_small"), (10**8, "amount_too_large")])
def test_amounts_that_no_card_takes_are_refused(cents: int, code: str) -> None:
    with pytest.raises(GatewayRefused) as refused:
        _pay("pm_card_visa", amount_cents=cents)
    assert refused.value.code == code


def test_what_is_unknown_is_not_found() -> None:
    with pytest.raises(NotFound):
        gateway.get_intent("pi_unknown")


def test_refunds_end_at_what_was_paid() -> None:
    made = _pay("pm_card_visa")

    def refund(refund_id: str, cents: int) -> None:
        gateway.create_refund(
            refund_id=refund_id, intent_id=made.gateway_id, amount_cents=cents, key=new_id("key")
        )

    refund("refund_1", 1000)
    with pytest.raises(GatewayRefused):
        refund("refund_2", 201)
    of = {"intent_id": made.gateway_id, "amount_cents": 1000}
    assert gateway.find_refund(refund_id="refund_1", **of)
    assert not gateway.find_refund(refund_id="refund_2", **of)


@pytest.mark.parametrize(
    ("fault", "is_kept"),
    [({"when": "before"}, True), ({"when": "drop"}, False), ({"status": 429}, False)],
)
def test_a_gateway_that_fails_is_a_fault_and_not_a_refusal(
    cards: GatewayControl, fault: dict[str, Any], is_kept: bool
) -> None:
    cards.control("fail", **({"when": "before", "method": "GET"} | fault))
    with pytest.raises(GatewayFault) as failed:
        gateway.get_intent("pi_1")
    assert failed.value.is_kept is is_kept


def test_a_webhook_is_believed_only_with_the_signature_of_its_very_bytes(
    cards: GatewayControl,
) -> None:
    _pay("pm_card_visa")
    [captured, succeeded] = cards.take_webhooks()
    event = read_event(body=succeeded[0].encode(), signature=succeeded[1])
    assert (event.kind, event.object_id[:3], event.account_id) == (
        *("payment_intent.succeeded", "pi_", ""),
    )
    forged = [
        (succeeded[0].replace("1200", "9900"), succeeded[1]),
        (succeeded[0], captured[1]),
        (succeeded[0], ""),
        (succeeded[0], succeeded[1].replace("v1=", "v0=")),
        ("\udcff", succeeded[1]),
    ]
    for body, signature in forged:
        with pytest.raises(UserError) as refused:
            read_event(body=body.encode(errors="surrogateescape"), signature=signature)
        assert refused.value.code == "invalid_signature"


def test_a_signature_of_long_ago_is_not_believed(cards: GatewayControl) -> None:
    _pay("pm_card_visa")
    [(body, signature), _] = cards.take_webhooks(at=1_600_000_000)
    with pytest.raises(UserError):
        read_event(body=body.encode(), signature=signature)
