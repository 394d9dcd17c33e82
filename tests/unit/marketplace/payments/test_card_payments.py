"""Cards fill wallets and pay bids: each amount once, whatever fails on the way."""

from concurrent.futures import Future
from dataclasses import replace
from datetime import datetime, timedelta
from typing import Any

import pytest

from marketplace.accounts.models import Organisation
from marketplace.common.errors import Conflict, NotAllowed, NotFound, PaymentRequired, UserError
from marketplace.common.models import DurableWork
from marketplace.payments import card_refunds, stripe_doubts
from marketplace.payments import stripe_gateway as gateway
from marketplace.payments.card_limits import PAYMENTS_A_DAY, REFUNDS_A_DAY
from marketplace.payments.card_payments import cancel_payment, refresh_payment, start_payment
from marketplace.payments.card_refunds import return_to_card
from marketplace.payments.chargebacks import (
    collect_lost_payments,
    measure_repayable,
    record_chargeback,
)
from marketplace.payments.freezes import freeze_organisation, lift_freeze
from marketplace.payments.gateway_calls import run_call
from marketplace.payments.holds import HoldRequest, place_holds
from marketplace.payments.ledger_checks import check_ledger
from marketplace.payments.models import (
    AccountKind,
    CardPayment,
    CardRefund,
    Chargeback,
    Entry,
    EntryKind,
    Freeze,
    GatewayCall,
    Hold,
    PaymentPurpose,
    SavedCard,
    WebhookEvent,
)
from marketplace.payments.reconciliation import compare_with_gateway, reconcile
from marketplace.payments.selectors import Wallet, get_house_balances, get_wallet
from marketplace.payments.services import refund_charge, release_hold
from marketplace.payments.top_ups import (
    AUTO_TOP_UPS_A_DAY,
    list_cards,
    remove_card,
    set_wallet_rules,
    start_top_up,
    watch_wallets,
)
from marketplace.payments.webhooks import APPLY_EVENT, fetch_missed_events, receive_webhook
from tests import builders
from tests.builders import NOW
from tests.durable_work import apply_events, make_calls
from tests.stand_in import GatewayControl
from tests.unit.marketplace.common.threads import in_between

pytestmark = pytest.mark.django_db

LATER = NOW + timedelta(hours=2)


class Killed(BaseException):
    """The process died here."""


@pytest.fixture(autouse=True)
def books_balance(db: None) -> Any:
    yield
    check = check_ledger()
    assert check.balanced, check


@pytest.fixture
def buyer(cards: GatewayControl) -> Organisation:
    return builders.organisation()


def _top_up(buyer: Organisation, *, usd: int = 10, key: str = "form-1", **more: Any) -> CardPayment:
    asked = {"card_id": None, "saves_card": False} | more
    return start_top_up(
        organisation=buyer,
        amount_micros=usd * 1_000_000,
        asked_by=builders.owner_of(buyer),
        key=key,
        now=NOW,
        **asked,
    )


def _confirm(cards: GatewayControl, payment: CardPayment, card: str = "pm_card_visa") -> None:
    """Make the PaymentIntent, and confirm it as the page does."""
    make_calls(now=NOW)
    payment.refresh_from_db()
    assert payment.gateway_id is not None
    secret = gateway.get_intent(payment.gateway_id).client_secret
    cards.confirm(payment.gateway_id, secret, card)


def _pay(cards: GatewayControl, payment: CardPayment, card: str = "pm_card_visa") -> CardPayment:
    _confirm(cards, payment, card)
    return refresh_payment(payment=payment, now=NOW)[0]


def _authorise(
    cards: GatewayControl, buyer: Organisation, *, cents: int, micros: int | None = None
) -> CardPayment:
    """A bid's amount set aside on a card, and held for the bid."""
    payment = start_payment(
        organisation=buyer,
        purpose=PaymentPurpose.BID,
        amount_cents=cents,
        created_by=builders.owner_of(buyer),
        key="bid-1",
        terms={},
        now=NOW,
    )
    payment = _pay(cards, payment)
    assert payment.status == "authorised"
    request = HoldRequest(buyer.pk, micros or cents * 10_000, "bid_1", payment.pk)
    [hold] = place_holds(wanted=[request], now=NOW)
    assert isinstance(hold, Hold)
    return payment


def _receive(cards: GatewayControl) -> list[WebhookEvent]:
    return [
        receive_webhook(body=body.encode(), signature=signature, now=NOW)
        for body, signature in cards.take_webhooks()
    ]


def _house(**kinds: int) -> dict[str, int]:
    return {kind: get_house_balances()[kind] for kind in kinds} if kinds else {}


# Top-ups


def test_a_top_up_is_in_the_wallet_once_its_card_has_paid(
    cards: GatewayControl, buyer: Organisation
) -> None:
    payment = _top_up(buyer)
    assert _top_up(buyer).pk == payment.pk
    _confirm(cards, payment)
    assert get_wallet(organisation=buyer) == Wallet(0, 0)
    for _ in range(2):
        payment, _intent = refresh_payment(payment=payment, now=NOW)
        _receive(cards)
        apply_events(now=NOW)
    assert (payment.status, payment.received_cents, payment.card) == ("paid", 1000, "visa 4242")
    assert get_wallet(organisation=buyer) == Wallet(10_000_000, 0)
    assert Entry.objects.filter(kind=EntryKind.TOP_UP).count() == 1
    # 2.9 % and 30 cents stay with the gateway.
    house = get_house_balances()
    assert (house[AccountKind.GATEWAY], house[AccountKind.GATEWAY_FEES]) == (-9_410_000, -590_000)


def test_a_declined_card_moves_nothing_and_another_may_pay(
    cards: GatewayControl, buyer: Organisation
) -> None:
    payment = _pay(cards, _top_up(buyer), "pm_card_chargeDeclinedInsufficientFunds")
    assert (payment.status, payment.failure) == ("open", "Your card has insufficient funds.")
    assert get_wallet(organisation=buyer) == Wallet(0, 0)
    assert _pay(cards, payment).status == "paid"
    assert get_wallet(organisation=buyer) == Wallet(10_000_000, 0)


def test_a_bank_that_asks_is_waited_for(cards: GatewayControl, buyer: Organisation) -> None:
    payment = _top_up(buyer)
    _confirm(cards, payment, "pm_card_authenticationRequired")
    payment, intent = refresh_payment(payment=payment, now=NOW)
    assert payment.status == "action"
    assert intent is not None
    assert intent.action_url.startswith(cards.url)
    assert get_wallet(organisation=buyer) == Wallet(0, 0)


@pytest.mark.parametrize("micros", [0, 499_999, 490_000, 1_000_001, 10**15])
def test_amounts_that_no_card_can_pay_are_refused_before_anything_is_stored(
    buyer: Organisation, micros: int
) -> None:
    with pytest.raises(UserError):
        start_top_up(
            organisation=buyer,
            amount_micros=micros,
            asked_by=builders.owner_of(buyer),
            key="form-1",
            card_id=None,
            saves_card=False,
            now=NOW,
        )
    assert not CardPayment.objects.exists()
    assert not GatewayCall.objects.exists()


def test_one_form_with_two_amounts_is_a_conflict(buyer: Organisation) -> None:
    _top_up(buyer)
    with pytest.raises(Conflict) as refused:
        _top_up(buyer, usd=20)
    assert refused.value.code == "idempotency_key_reused"


def test_a_saved_card_pays_again_for_its_own_organisation_alone(
    cards: GatewayControl, buyer: Organisation
) -> None:
    _pay(cards, _top_up(buyer, saves_card=True))
    [card] = list_cards(buyer)
    assert str(card) == "Visa ending in 4242"
    again = _top_up(buyer, usd=5, key="form-2", card_id=card.pk)
    make_calls(now=NOW)
    again.refresh_from_db()
    assert again.status == "paid"
    assert get_wallet(organisation=buyer) == Wallet(15_000_000, 0)
    with pytest.raises(NotFound):
        _top_up(builders.organisation(), key="form-3", card_id=card.pk)
    with pytest.raises(NotFound):
        remove_card(organisation=builders.organisation(), card_id=card.pk, now=NOW)
    remove_card(organisation=buyer, card_id=card.pk, now=NOW)
    make_calls(now=NOW)
    assert list_cards(buyer) == []
    with pytest.raises(NotFound):
        _top_up(buyer, key="form-4", card_id=card.pk)


# When the process or the gateway dies


@pytest.mark.parametrize(
    ("fault", "dies"),
    [
        ({"when": "before"}, False),
        ({"when": "after"}, False),
        ({"when": "drop"}, False),
        ({"when": "before", "status": 429}, False),
        (None, True),
    ],
    ids=["fails first", "fails after acting", "answer lost", "too many calls", "process killed"],
)
def test_a_payment_is_made_once_whatever_fails_on_the_way(
    cards: GatewayControl,
    buyer: Organisation,
    monkeypatch: pytest.MonkeyPatch,
    fault: dict[str, Any] | None,
    dies: bool,
) -> None:
    _pay(cards, _top_up(buyer, saves_card=True))
    payment = _top_up(buyer, key="form-2", card_id=list_cards(buyer)[0].pk)
    call = GatewayCall.objects.get(kind="intent", subject=payment.pk)
    if fault is not None:
        cards.control("fail", method="POST", path="/payment_intents", **fault)
        run_call(call_id=call.pk, now=NOW)
    if dies:
        with monkeypatch.context() as patched:
            patched.setattr("marketplace.common.durable.run._apply", _die)
            with pytest.raises(Killed):
                run_call(call_id=call.pk, now=NOW)
        # Its claim has not run out: nobody makes the call twice at once.
        run_call(call_id=call.pk, now=NOW)
        call.refresh_from_db()
        assert call.attempts == 1
    payment.refresh_from_db()
    assert payment.status == "started"
    make_calls(now=LATER)
    payment.refresh_from_db()
    assert payment.status == "paid"
    assert get_wallet(organisation=buyer) == Wallet(20_000_000, 0)
    taken = cards.control("take")
    assert sum('"payment_intent.succeeded"' in body for body, _ in taken) == 2
    assert GatewayCall.objects.get(pk=call.pk).attempts == 2


def _die(*_arguments: object, **_named: object) -> None:
    raise Killed


def test_a_payment_whose_process_died_is_known_by_its_webhook(
    cards: GatewayControl, buyer: Organisation, monkeypatch: pytest.MonkeyPatch
) -> None:
    payment = _top_up(buyer)
    with monkeypatch.context() as patched:
        patched.setattr("marketplace.common.durable.run._apply", _die)
        with pytest.raises(Killed):
            make_calls(now=NOW)
    customer = payment.organisation.card_customer.gateway_id
    intent = gateway.find_intent(payment_id=payment.pk, customer_id=customer)
    assert intent is not None
    cards.confirm(intent.gateway_id, intent.client_secret)
    _receive(cards)
    apply_events(now=NOW)
    assert get_wallet(organisation=buyer) == Wallet(10_000_000, 0)
    make_calls(now=LATER)
    assert get_wallet(organisation=buyer) == Wallet(10_000_000, 0)


# Webhooks


@pytest.mark.parametrize("order", ["as sent", "reversed"])
def test_webhooks_may_come_in_any_order_and_twice(
    cards: GatewayControl, buyer: Organisation, order: str
) -> None:
    payment = _top_up(buyer)
    _confirm(cards, payment)
    events = cards.take_webhooks()
    for body, signature in [*(events if order == "as sent" else reversed(events)), *events]:
        receive_webhook(body=body.encode(), signature=signature, now=NOW)
        apply_events(now=NOW)
    assert WebhookEvent.objects.count() == len(events)
    assert set(WebhookEvent.objects.values_list("outcome", flat=True)) == {
        *("applied", "nothing to do"),
    }
    assert get_wallet(organisation=buyer) == Wallet(10_000_000, 0)


def test_a_forged_webhook_is_refused_and_leaves_no_trace(cards: GatewayControl) -> None:
    with pytest.raises(UserError) as refused:
        receive_webhook(body=b'{"id": "evt_1"}', signature="t=1,v1=00", now=NOW)
    assert refused.value.code == "invalid_signature"
    assert not WebhookEvent.objects.exists()


def test_events_about_objects_that_are_not_ours_change_nothing(
    cards: GatewayControl, buyer: Organisation
) -> None:
    intent = gateway.create_intent(
        gateway.IntentRequest(
            payment_id="pay_of_another_market",
            amount_cents=5_000,
            customer_id=gateway.create_customer(
                organisation_id="org_other", name="Other", key="customer-1"
            ),
            card_id="pm_card_createDispute",
        ),
        key="other",
    )
    assert intent.status == "succeeded"
    _receive(cards)
    cards.control("reset")
    apply_events(now=NOW)
    outcomes = dict(WebhookEvent.objects.values_list("kind", "outcome"))
    assert outcomes["payment_intent.succeeded"] == "the gateway knows no such object"
    assert not Entry.objects.exists()


def test_an_event_waits_while_the_gateway_is_down(
    cards: GatewayControl, buyer: Organisation
) -> None:
    payment = _top_up(buyer)
    _confirm(cards, payment)
    _receive(cards)
    cards.control("fail", when="before", method="GET", path="/payment_intents")
    apply_events(now=NOW)
    assert get_wallet(organisation=buyer) == Wallet(0, 0)
    assert set(DurableWork.objects.values_list("kind", "attempts")) == {(APPLY_EVENT, 1)}
    apply_events(now=LATER)
    assert get_wallet(organisation=buyer) == Wallet(10_000_000, 0)


def test_events_that_no_webhook_brought_are_fetched_once(
    cards: GatewayControl, buyer: Organisation
) -> None:
    payment = _top_up(buyer)
    _confirm(cards, payment)
    cards.control("dispute", payment_intent=payment.gateway_id)
    lost = cards.take_webhooks()
    cards.control("fail", when="before", method="GET", path="/events")
    assert fetch_missed_events(now=NOW) == 0
    assert [fetch_missed_events(now=NOW) for _ in range(2)] == [len(lost), 0]
    apply_events(now=NOW)
    # The top-up is booked, and then taken back by the bank.
    assert get_wallet(organisation=buyer) == Wallet(10_000_000, 0)
    assert get_house_balances()[AccountKind.CHARGEBACKS] == -10_000_000
    for body, signature in lost:
        receive_webhook(body=body.encode(), signature=signature, now=NOW)
    apply_events(now=NOW)
    assert get_house_balances()[AccountKind.CHARGEBACKS] == -10_000_000


def test_a_chargeback_is_booked_though_the_payments_process_died(
    cards: GatewayControl, buyer: Organisation, monkeypatch: pytest.MonkeyPatch
) -> None:
    _pay(cards, _top_up(buyer, saves_card=True))
    cards.take_webhooks()
    payment = _top_up(buyer, key="form-2", card_id=list_cards(buyer)[0].pk)
    with monkeypatch.context() as patched:
        patched.setattr("marketplace.common.durable.run._apply", _die)
        with pytest.raises(Killed):
            make_calls(now=NOW)
    customer = buyer.card_customer.gateway_id
    intent = gateway.find_intent(payment_id=payment.pk, customer_id=customer)
    assert intent is not None
    cards.control("dispute", payment_intent=intent.gateway_id)
    # The chargeback's own event is the first that is heard of it.
    for body, signature in cards.take_webhooks()[-1:]:
        receive_webhook(body=body.encode(), signature=signature, now=NOW)
    apply_events(now=NOW)
    assert get_wallet(organisation=buyer) == Wallet(20_000_000, 0)
    assert get_house_balances()[AccountKind.CHARGEBACKS] == -10_000_000


# Bids by card


@pytest.mark.parametrize(
    ("price", "received_cents", "fraction"),
    # The gateway takes nothing below 50 cents: what is beyond the price comes back here.
    [(3_104_523, 311, 5_477), (12_000_000, 1200, 0), (1, 50, 499_999), (4_990_001, 500, 9_999)],
)
def test_a_won_bid_captures_its_price_and_the_part_of_a_cent_comes_back(
    cards: GatewayControl, buyer: Organisation, price: int, received_cents: int, fraction: int
) -> None:
    payment = _authorise(cards, buyer, cents=1200)
    assert get_wallet(organisation=buyer) == Wallet(0, 12_000_000)
    builders.settle_hold(hold_reference="bid_1", charge_micros=price)
    assert get_wallet(organisation=buyer) == Wallet(0, 0)
    assert get_house_balances()[AccountKind.AUTHORISED] == -price
    assert check_ledger().balanced
    make_calls(now=NOW)
    payment.refresh_from_db()
    assert (payment.status, payment.received_cents) == ("paid", received_cents)
    assert get_wallet(organisation=buyer) == Wallet(fraction, 0)
    house = get_house_balances()
    assert (house[AccountKind.AUTHORISED], house[AccountKind.CLEARING]) == (0, price)


def test_a_card_pays_no_less_than_what_prices_pay_the_gateway_for(
    cards: GatewayControl, buyer: Organisation, settings: Any
) -> None:
    settings.CARD_FEE_SHARE, settings.CARD_FEE_CENTS, settings.CARD_LEAST_CENTS = 0.029, 30, 500
    payment = _authorise(cards, buyer, cents=1200)
    builders.settle_hold(hold_reference="bid_1", charge_micros=20_000)
    make_calls(now=NOW)
    payment.refresh_from_db()
    assert (payment.status, payment.received_cents) == ("paid", 500)
    assert get_wallet(organisation=buyer) == Wallet(4_980_000, 0)
    assert get_house_balances()[AccountKind.CLEARING] == 20_000
    with pytest.raises(UserError) as caught:
        _authorise(cards, buyer, cents=499)
    assert caught.value.code == "amount_too_small"


def test_a_bid_that_is_not_whole_cents_is_held_to_the_micro_dollar(
    cards: GatewayControl, buyer: Organisation
) -> None:
    _authorise(cards, buyer, cents=1201, micros=12_000_001)
    assert get_wallet(organisation=buyer) == Wallet(0, 12_000_001)
    builders.settle_hold(hold_reference="bid_1", charge_micros=12_000_001)
    make_calls(now=NOW)
    assert get_wallet(organisation=buyer) == Wallet(9_999, 0)


def test_a_refused_bid_gives_its_authorisation_back(
    cards: GatewayControl, buyer: Organisation
) -> None:
    payment = _authorise(cards, buyer, cents=1200)
    release_hold(hold_reference="bid_1", now=NOW)
    release_hold(hold_reference="bid_1", now=NOW)
    make_calls(now=NOW)
    payment.refresh_from_db()
    assert (payment.status, payment.received_cents) == ("cancelled", 0)
    assert gateway.get_intent(payment.gateway_id or "").status == "canceled"
    assert get_wallet(organisation=buyer) == Wallet(0, 0)
    assert get_house_balances()[AccountKind.AUTHORISED] == 0


def test_two_captures_that_race_take_the_price_once(
    cards: GatewayControl, buyer: Organisation
) -> None:
    payment = _authorise(cards, buyer, cents=1200)
    builders.settle_hold(hold_reference="bid_1", charge_micros=5_000_000)
    # Somebody captures it on the gateway's own pages; ours is refused and finds that out.
    gateway.capture_intent(gateway_id=payment.gateway_id or "", amount_cents=500, key="by hand")
    make_calls(now=NOW)
    payment.refresh_from_db()
    assert (payment.status, payment.received_cents) == ("paid", 500)
    assert get_wallet(organisation=buyer) == Wallet(0, 0)


def test_an_amount_captured_before_the_decision_is_booked_after_it(
    cards: GatewayControl, buyer: Organisation
) -> None:
    payment = _authorise(cards, buyer, cents=1200)
    gateway.capture_intent(gateway_id=payment.gateway_id or "", amount_cents=1200, key="by hand")
    _receive(cards)
    apply_events(now=NOW)
    assert get_wallet(organisation=buyer) == Wallet(0, 12_000_000)
    release_hold(hold_reference="bid_1", now=NOW)
    make_calls(now=NOW)
    assert get_wallet(organisation=buyer) == Wallet(12_000_000, 0)


def test_an_expired_authorisation_is_paid_by_the_wallet_and_then_by_the_house(
    cards: GatewayControl, buyer: Organisation
) -> None:
    builders.fund_wallet(buyer, usd="2")
    payment = _authorise(cards, buyer, cents=1200)
    cards.control("advance", seconds=8 * 24 * 3600)
    builders.settle_hold(hold_reference="bid_1", charge_micros=5_000_000)
    make_calls(now=NOW)
    payment.refresh_from_db()
    assert payment.status == "uncollected"
    assert get_wallet(organisation=buyer) == Wallet(0, 0)
    house = get_house_balances()
    assert (house[AccountKind.AUTHORISED], house[AccountKind.CHARGEBACKS]) == (0, -3_000_000)
    # The debt stops new bids until an operator has settled it.
    builders.fund_wallet(buyer, usd="5")
    with pytest.raises(NotAllowed) as refused:
        builders.hold_funds(organisation=buyer, amount_micros=1, reference="bid_2")
    assert refused.value.code == "organisation_frozen"
    assert "$3.00" in refused.value.message
    lift_freeze(freeze_id=Freeze.objects.get().pk, lifted_by=builders.operator(), now=NOW)
    builders.hold_funds(organisation=buyer, amount_micros=1, reference="bid_2")
    # The house fails the job: nothing was ever paid, so the debt is forgiven.
    refund_charge(hold_reference="bid_1", amount_micros=3_000_000, reason="failed", now=NOW)
    make_calls(now=NOW)
    assert get_house_balances()[AccountKind.CHARGEBACKS] == 0


@pytest.mark.parametrize("is_captured", [True, False])
def test_a_failed_job_is_refunded_to_its_card_also_before_the_capture(
    cards: GatewayControl, buyer: Organisation, is_captured: bool
) -> None:
    payment = _authorise(cards, buyer, cents=1200)
    builders.settle_hold(hold_reference="bid_1", charge_micros=5_000_123)
    if is_captured:
        make_calls(now=NOW)
    else:
        cards.control("fail", when="before", method="POST", path="/capture")
    for _ in range(2):
        refund_charge(hold_reference="bid_1", amount_micros=5_000_123, reason="failed", now=NOW)
    make_calls(now=NOW)
    assert check_ledger().balanced
    make_calls(now=LATER)
    payment.refresh_from_db()
    assert (payment.status, payment.refunded_cents) == ("paid", 500)
    assert CardRefund.objects.get().status == "done"
    # What is no whole cent: of the capture, and of the refund.
    assert get_wallet(organisation=buyer) == Wallet(9_877 + 123, 0)
    assert get_house_balances()[AccountKind.CARD_REFUNDS] == 0


def test_a_card_pays_nothing_for_who_is_frozen(cards: GatewayControl, buyer: Organisation) -> None:
    earlier = _top_up(buyer)
    freeze_organisation(organisation_id=buyer.pk, reference="cb_1", reason="Why.", now=NOW)
    with pytest.raises(NotAllowed, match=r"New card payments are refused: Why\."):
        _top_up(buyer, key="form-2")
    assert _top_up(buyer) == earlier == CardPayment.objects.get()


def test_a_payment_nobody_confirms_can_be_given_up_but_not_one_that_holds_a_bid(
    cards: GatewayControl, buyer: Organisation
) -> None:
    left = _top_up(buyer)
    make_calls(now=NOW)
    cancel_payment(payment_id=left.pk, now=NOW)
    bid = _authorise(cards, buyer, cents=100)
    cancel_payment(payment_id=bid.pk, now=NOW)
    make_calls(now=NOW)
    left.refresh_from_db()
    bid.refresh_from_db()
    assert (left.status, bid.status) == ("cancelled", "authorised")


def test_a_payment_that_is_given_up_before_the_gateway_knows_it_is_never_made(
    cards: GatewayControl, buyer: Organisation
) -> None:
    payment = _top_up(buyer)
    cancel_payment(payment_id=payment.pk, now=NOW)
    make_calls(now=NOW)
    payment.refresh_from_db()
    assert (payment.status, payment.ended_at) == ("cancelled", NOW)
    assert cards.find("payment_intent") == []


def test_a_payment_that_is_given_up_while_it_is_made_is_cancelled_at_the_gateway(
    cards: GatewayControl, buyer: Organisation
) -> None:
    payment = _top_up(buyer)
    # The gateway acts, and its answer is lost.
    cards.control("fail", path="payment_intents", method="POST", when="after")
    make_calls(now=NOW)
    cancel_payment(payment_id=payment.pk, now=NOW)
    for hours in range(1, 3):
        make_calls(now=NOW + timedelta(hours=hours))
    payment.refresh_from_db()
    assert payment.status == "cancelled"
    assert [intent["status"] for intent in cards.find("payment_intent")] == ["canceled"]


# Back to the card


def test_unspent_money_goes_back_to_its_card_once_and_never_more_than_was_paid(
    cards: GatewayControl, buyer: Organisation
) -> None:
    payment = _pay(cards, _top_up(buyer))
    for _ in range(2):
        return_to_card(payment_id=payment.pk, amount_cents=400, reference="a", now=NOW)
    # The gateway kept 59 cents of 1,000: 400 of the 941 that can go back bear 26 of them.
    assert get_wallet(organisation=buyer) == Wallet(5_740_000, 0)
    for cents in (542, 0, -5, 10**18):
        with pytest.raises(Conflict) as refused:
            return_to_card(payment_id=payment.pk, amount_cents=cents, reference="b", now=NOW)
        assert refused.value.code == "refund_exceeds_charge"
    builders.hold_funds(organisation=buyer, amount_micros=5_000_000, reference="bid_1")
    with pytest.raises(PaymentRequired):
        return_to_card(payment_id=payment.pk, amount_cents=541, reference="b", now=NOW)
    make_calls(now=NOW)
    assert list(CardRefund.objects.values_list("amount_cents", "status")) == [(400, "done")]


def test_sending_everything_back_costs_the_house_nothing(
    cards: GatewayControl, buyer: Organisation
) -> None:
    payment = _pay(cards, _top_up(buyer))
    assert get_house_balances()[AccountKind.GATEWAY_FEES] == -590_000
    for number in range(3):
        return_to_card(payment_id=payment.pk, amount_cents=1, reference=f"{number}", now=NOW)
    payment.refresh_from_db()
    assert (payment.returnable_cents, payment.returnable_fee_micros) == (938, 580_000)
    return_to_card(payment_id=payment.pk, amount_cents=938, reference="rest", now=NOW)
    make_calls(now=NOW)
    assert get_wallet(organisation=buyer) == Wallet(0, 0)
    assert get_house_balances()[AccountKind.GATEWAY_FEES] == 0
    assert reconcile(now=NOW).is_right


def test_nothing_goes_back_before_the_gateway_has_said_what_it_kept(
    cards: GatewayControl, buyer: Organisation
) -> None:
    payment = _pay(cards, _top_up(buyer))
    CardPayment.objects.update(fee_cents=None)
    with pytest.raises(Conflict) as refused:
        return_to_card(payment_id=payment.pk, amount_cents=400, reference="a", now=NOW)
    assert refused.value.code == "fee_unknown"
    compare_with_gateway(now=NOW)
    return_to_card(payment_id=payment.pk, amount_cents=400, reference="a", now=NOW)
    assert get_wallet(organisation=buyer) == Wallet(5_740_000, 0)


def test_cards_pay_and_take_back_less_in_the_first_days(
    cards: GatewayControl, buyer: Organisation
) -> None:
    Organisation.objects.filter(pk=buyer.pk).update(created_at=NOW)
    buyer.refresh_from_db()
    with pytest.raises(UserError, match=r"Cards pay \$5.00 or more"):
        _top_up(buyer, usd=4)
    payment = _pay(cards, _top_up(buyer, usd=400))
    assert _top_up(buyer, usd=400).pk == payment.pk
    with pytest.raises(Conflict, match=r"\$100.00 is left now. It is more after its first 30 days"):
        _top_up(buyer, usd=101, key="form-2")
    return_to_card(payment_id=payment.pk, amount_cents=15_000, reference="a", now=NOW)
    with pytest.raises(Conflict, match=r"\$50.00 is left now"):
        return_to_card(payment_id=payment.pk, amount_cents=5_001, reference="b", now=NOW)
    assert CardPayment.objects.count() == CardRefund.objects.count() == 1
    next_day = NOW + timedelta(days=1)
    return_to_card(payment_id=payment.pk, amount_cents=5_001, reference="b", now=next_day)
    Organisation.objects.filter(pk=buyer.pk).update(created_at=NOW - timedelta(days=30))
    buyer.refresh_from_db()
    assert _top_up(buyer, usd=9_600, key="form-2").amount_cents == 960_000
    with pytest.raises(Conflict, match=r"\$0.00 is left now.$"):
        _top_up(buyer, usd=5, key="form-3")


def test_cards_pay_and_take_back_so_often_a_day(cards: GatewayControl, buyer: Organisation) -> None:
    first = _pay(cards, _top_up(buyer, key="form-0"))
    for number in range(1, PAYMENTS_A_DAY):
        _top_up(buyer, usd=5, key=f"form-{number}")
    with pytest.raises(Conflict, match="20 times a day"):
        _top_up(buyer, usd=5, key="form-20")
    for number in range(REFUNDS_A_DAY):
        return_to_card(payment_id=first.pk, amount_cents=1, reference=f"{number}", now=NOW)
    with pytest.raises(Conflict, match="10 times a day"):
        return_to_card(payment_id=first.pk, amount_cents=1, reference="one more", now=NOW)


@pytest.mark.django_db(transaction=True)
def test_two_who_send_money_back_at_once_stay_within_the_days_limit_of_all(
    cards: GatewayControl, buyer: Organisation, settings: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    settings.CARD_BACK_ALL_CENTS = 700
    own, other = (
        _pay(cards, _top_up(each, key=f"form-{each.pk}"))
        for each in (buyer, builders.organisation())
    )
    find = card_refunds.find_refund_problem

    def send(payment: CardPayment) -> CardRefund:
        return return_to_card(payment_id=payment.pk, amount_cents=400, reference="a", now=NOW)

    with in_between(lambda: send(other)) as start:
        met: list[Future[CardRefund]] = []

        def find_then_meet(payment: CardPayment, amount_cents: int, *, now: datetime) -> str:
            problem = find(payment, amount_cents, now=now)
            if payment.pk == own.pk:
                met.append(start())
            return problem

        monkeypatch.setattr(card_refunds, "find_refund_problem", find_then_meet)
        send(own)
    with pytest.raises(Conflict, match="Nothing more goes back to cards today"):
        met[0].result()
    assert CardRefund.objects.get().payment == own


def test_a_refund_above_the_days_limit_goes_into_the_wallet(
    cards: GatewayControl, buyer: Organisation, settings: Any
) -> None:
    settings.CARD_FIRST_BACK_CENTS = 300
    _authorise(cards, buyer, cents=500)
    builders.settle_hold(hold_reference="bid_1", charge_micros=5_000_000)
    make_calls(now=NOW)
    refund_charge(hold_reference="bid_1", amount_micros=3_000_000, reason="first", now=NOW)
    refund_charge(hold_reference="bid_1", amount_micros=2_000_000, reason="second", now=NOW)
    make_calls(now=NOW)
    assert list(CardRefund.objects.values_list("amount_cents", "status")) == [(300, "done")]
    assert get_wallet(organisation=buyer) == Wallet(2_000_000, 0)


@pytest.mark.parametrize("is_collected", [True, False])
def test_a_refund_above_the_days_limit_waits_until_the_card_has_paid(
    cards: GatewayControl, buyer: Organisation, settings: Any, is_collected: bool
) -> None:
    """Else who ends a job before its price is captured would be bound by no limit."""
    settings.CARD_BACK_ALL_CENTS = 300
    payment = _authorise(cards, buyer, cents=500)
    builders.settle_hold(hold_reference="bid_1", charge_micros=5_000_000)

    def refund() -> None:
        refund_charge(hold_reference="bid_1", amount_micros=5_000_000, reason="ended", now=NOW)

    with pytest.raises(Conflict) as refused:
        refund()
    assert refused.value.code == "not_captured"
    assert not CardRefund.objects.exists()
    assert Hold.objects.get().refunded_micros == 0
    if not is_collected:
        gateway.cancel_intent(gateway_id=payment.gateway_id or "", key="expired")
    make_calls(now=NOW)
    refund()
    make_calls(now=NOW)
    # Of a price that no card paid nothing goes anywhere.
    assert get_wallet(organisation=buyer) == Wallet(5_000_000 if is_collected else 0, 0)
    assert CardRefund.objects.filter(status="done").count() == 0
    house = get_house_balances()
    assert (house[AccountKind.CARD_REFUNDS], house[AccountKind.CHARGEBACKS]) == (0, 0)
    assert check_ledger().balanced


def test_what_a_card_cannot_take_back_returns_to_the_wallet(
    cards: GatewayControl, buyer: Organisation
) -> None:
    payment = _pay(cards, _top_up(buyer))
    gateway.create_refund(
        refund_id="by hand", intent_id=payment.gateway_id or "", amount_cents=1000, key="by hand"
    )
    return_to_card(payment_id=payment.pk, amount_cents=941, reference="a", now=NOW)
    assert get_wallet(organisation=buyer) == Wallet(0, 0)
    make_calls(now=NOW)
    assert get_wallet(organisation=buyer) == Wallet(10_000_000, 0)
    assert CardRefund.objects.get().status == "refused"


# Disputes


@pytest.mark.parametrize("won", [True, False])
def test_a_chargeback_stops_new_bids_until_the_bank_has_decided(
    cards: GatewayControl, buyer: Organisation, won: bool
) -> None:
    payment = _pay(cards, _top_up(buyer))
    other = _pay(cards, _top_up(buyer, usd=5, key="form-2"))
    builders.hold_funds(organisation=buyer, amount_micros=6_000_000, reference="bid_1")
    opened = cards.control("dispute", payment_intent=payment.gateway_id)
    _receive(cards)
    apply_events(now=NOW)
    assert get_house_balances()[AccountKind.CHARGEBACKS] == -10_000_000
    with pytest.raises(NotAllowed) as refused:
        builders.hold_funds(organisation=buyer, amount_micros=1, reference="bid_2")
    assert "$10.00 is contested" in refused.value.message
    # Nor does what is left leave by another payment's card.
    with pytest.raises(Conflict, match="is contested"):
        return_to_card(payment_id=other.pk, amount_cents=100, reference="a", now=NOW)
    assert not CardRefund.objects.exists()
    # What is in flight is finished.
    builders.settle_hold(hold_reference="bid_1", charge_micros=6_000_000)
    cards.control("close_dispute", id=opened["id"], won=won)
    for _ in range(2):
        record_chargeback(stripe_doubts.get_chargeback(opened["id"]), now=NOW)
    house = get_house_balances()
    if won:
        assert house[AccountKind.CHARGEBACKS] == 0
        assert get_wallet(organisation=buyer) == Wallet(9_000_000, 0)
        builders.hold_funds(organisation=buyer, amount_micros=1, reference="bid_2")
    else:
        # The wallet pays what it has; for the rest it stays frozen.
        assert house[AccountKind.CHARGEBACKS] == -1_000_000
        assert get_wallet(organisation=buyer) == Wallet(0, 0)
        assert Freeze.objects.get().ended_at is None


@pytest.mark.parametrize("is_lost_first", [True, False])
@pytest.mark.parametrize("is_lifted", [True, False])
def test_a_refund_of_what_the_bank_took_back_pays_for_that(
    cards: GatewayControl, buyer: Organisation, is_lost_first: bool, is_lifted: bool
) -> None:
    payment = _authorise(cards, buyer, cents=1200)
    builders.settle_hold(hold_reference="bid_1", charge_micros=12_000_000)
    make_calls(now=NOW)
    payment.refresh_from_db()
    opened = cards.control("dispute", payment_intent=payment.gateway_id, amount=500)

    def hear(won: bool | None) -> None:
        if won is not None:
            cards.control("close_dispute", id=opened["id"], won=won)
        record_chargeback(stripe_doubts.get_chargeback(opened["id"]), now=NOW)
        make_calls(now=NOW)

    def refund() -> None:
        refund_charge(hold_reference="bid_1", amount_micros=7_000_000, reason="bad", now=NOW)
        make_calls(now=NOW)

    hear(None)
    assert measure_repayable(hold_reference="bid_1") == 7_000_000
    assert collect_lost_payments(now=NOW) == 0
    if is_lost_first:
        hear(False)
        if is_lifted:
            # Its operator forgives what is owed.
            lift_freeze(freeze_id=Freeze.objects.get().pk, lifted_by=builders.operator(), now=NOW)
        refund()
    else:
        refund()
        # Nothing is owed before the bank has decided.
        assert (collect_lost_payments(now=NOW), get_wallet(organisation=buyer)) == (
            0,
            Wallet(7_000_000, 0),
        )
        hear(False)
    assert not CardRefund.objects.exists()
    is_forgiven = is_lost_first and is_lifted
    assert [collect_lost_payments(now=NOW) for _ in range(2)] == [
        is_lost_first and not is_lifted,
        0,
    ]
    back = 7_000_000 if is_forgiven else 2_000_000
    assert get_wallet(organisation=buyer) == Wallet(back, 0)
    owed = -5_000_000 if is_forgiven else 0
    assert get_house_balances()[AccountKind.CHARGEBACKS] == owed
    assert not Freeze.objects.filter(ended_at=None).exists()
    # Of what is left of the price nothing was taken back that was not paid for.
    assert measure_repayable(hold_reference="bid_1") == 5_000_000 + owed


def test_an_appeal_gives_back_what_a_wallet_paid_later(
    cards: GatewayControl, buyer: Organisation
) -> None:
    payment = _pay(cards, _top_up(buyer))
    builders.hold_funds(organisation=buyer, amount_micros=10_000_000, reference="bid_1")
    builders.settle_hold(hold_reference="bid_1", charge_micros=10_000_000)
    opened = cards.control("dispute", payment_intent=payment.gateway_id)
    cards.control("close_dispute", id=opened["id"], won=False)
    lost = stripe_doubts.get_chargeback(opened["id"])
    record_chargeback(lost, now=NOW)
    for reason, owed in (("some", 6_000_000), ("more", 3_000_000)):
        half = 4_000_000 if reason == "some" else 3_000_000
        refund_charge(hold_reference="bid_1", amount_micros=half, reason=reason, now=NOW)
        assert collect_lost_payments(now=NOW) == 1
        assert get_house_balances()[AccountKind.CHARGEBACKS] == -owed
        assert Freeze.objects.get().ended_at is None
    record_chargeback(replace(lost, won=True), now=NOW)
    assert get_wallet(organisation=buyer) == Wallet(7_000_000, 0)
    assert get_house_balances()[AccountKind.CHARGEBACKS] == 0
    assert Freeze.objects.get().ended_at == NOW


@pytest.mark.parametrize("escalates", [True, False])
def test_an_inquiry_of_the_bank_moves_nothing_unless_it_becomes_a_chargeback(
    cards: GatewayControl, buyer: Organisation, escalates: bool
) -> None:
    payment = _pay(cards, _top_up(buyer))
    opened = cards.control("dispute", payment_intent=payment.gateway_id, inquiry=True)
    _receive(cards)
    apply_events(now=NOW)
    assert not Chargeback.objects.exists()
    assert get_house_balances()[AccountKind.CHARGEBACKS] == 0
    builders.hold_funds(organisation=buyer, amount_micros=1, reference="bid_1")
    cards.control("escalate_inquiry" if escalates else "close_inquiry", id=opened["id"])
    _receive(cards)
    apply_events(now=NOW)
    assert Chargeback.objects.count() == escalates
    if escalates:
        assert get_house_balances()[AccountKind.CHARGEBACKS] == -10_000_000
        with pytest.raises(NotAllowed):
            builders.hold_funds(organisation=buyer, amount_micros=1, reference="bid_2")
    else:
        builders.hold_funds(organisation=buyer, amount_micros=1, reference="bid_2")


# Low wallets


def test_a_low_wallet_is_filled_by_its_card_once_and_its_owner_hears_of_it(
    cards: GatewayControl,
    buyer: Organisation,
    mailoutbox: list[Any],
    django_capture_on_commit_callbacks: Any,
) -> None:
    _pay(cards, _top_up(buyer, usd=5, saves_card=True))
    set_wallet_rules(
        organisation=buyer,
        notice_below_micros=6_000_000,
        auto_card_id=list_cards(buyer)[0].pk,
        auto_below_micros=6_000_000,
        auto_amount_cents=2_000,
    )
    with django_capture_on_commit_callbacks(execute=True):
        for _ in range(3):
            watch_wallets(now=NOW)
    make_calls(now=NOW)
    watch_wallets(now=NOW)
    assert get_wallet(organisation=buyer) == Wallet(25_000_000, 0)
    assert CardPayment.objects.filter(purpose="auto_top_up").count() == 1
    assert [mail.subject for mail in mailoutbox] == ["[Finetender] Your wallet runs low"]


def test_a_card_that_fails_is_not_tried_again_and_again(
    cards: GatewayControl, buyer: Organisation
) -> None:
    _confirm(cards, payment := _top_up(buyer, usd=5, saves_card=True))
    payment, _ = refresh_payment(payment=payment, now=NOW)
    card = list_cards(buyer)[0]
    SavedCard.objects.filter(pk=card.pk).update(gateway_id="pm_gone")
    rules = set_wallet_rules(
        organisation=buyer,
        notice_below_micros=None,
        auto_card_id=card.pk,
        auto_below_micros=6_000_000,
        auto_amount_cents=2_000,
    )
    for _ in range(4):
        watch_wallets(now=NOW)
        make_calls(now=NOW)
    rules.refresh_from_db()
    assert rules.auto_stopped.startswith("It did not pay: No such payment_method")
    assert CardPayment.objects.get(purpose="auto_top_up").status == "cancelled"


def test_a_card_is_not_emptied_by_a_wallet_that_never_fills(
    cards: GatewayControl, buyer: Organisation
) -> None:
    _pay(cards, _top_up(buyer, usd=5, saves_card=True))
    rules = set_wallet_rules(
        organisation=buyer,
        notice_below_micros=None,
        auto_card_id=list_cards(buyer)[0].pk,
        auto_below_micros=1_000_000_000,
        auto_amount_cents=500,
    )
    for _ in range(AUTO_TOP_UPS_A_DAY + 3):
        watch_wallets(now=NOW)
        make_calls(now=NOW)
    rules.refresh_from_db()
    assert rules.auto_stopped.startswith("It paid 10 times within a day.")
    assert CardPayment.objects.filter(purpose="auto_top_up").count() == AUTO_TOP_UPS_A_DAY
    assert get_wallet(organisation=buyer) == Wallet(55_000_000, 0)


def test_a_card_pays_nothing_into_a_frozen_wallet(
    cards: GatewayControl, buyer: Organisation
) -> None:
    payment = _pay(cards, _top_up(buyer, usd=5, saves_card=True))
    set_wallet_rules(
        organisation=buyer,
        notice_below_micros=None,
        auto_card_id=list_cards(buyer)[0].pk,
        auto_below_micros=6_000_000,
        auto_amount_cents=2_000,
    )
    cards.control("dispute", payment_intent=payment.gateway_id)
    _receive(cards)
    apply_events(now=NOW)
    watch_wallets(now=NOW)
    assert not CardPayment.objects.filter(purpose="auto_top_up").exists()
    assert get_wallet(organisation=buyer) == Wallet(5_000_000, 0)
