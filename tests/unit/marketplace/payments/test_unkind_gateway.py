"""What the gateway does days later, or with another secret, currency or bank."""

from __future__ import annotations

from datetime import timedelta
from decimal import Decimal
from typing import Any
from unittest.mock import ANY

import pytest
from django.db import ProgrammingError, transaction
from django.test import Client

from marketplace.accounts.models import Organisation
from marketplace.common.durable.kinds import WorkFailed
from marketplace.common.errors import NotAllowed, UserError
from marketplace.payments import stripe_gateway as gateway
from marketplace.payments.card_payments import refresh_payment
from marketplace.payments.card_refunds import return_to_card
from marketplace.payments.gateway_endpoints import EVENTS, create_endpoints, list_webhook_secrets
from marketplace.payments.gateway_setup import try_test_payment
from marketplace.payments.ledger_checks import check_ledger
from marketplace.payments.maturity import mature_earnings
from marketplace.payments.models import (
    BillingDetails,
    CardPayment,
    CardRefund,
    EndpointServes,
    Entry,
    EntryKind,
    Freeze,
    GatewayCall,
    GatewayEndpoint,
    GatewayMovement,
    Payout,
    PayoutAccount,
    Transfer,
    WebhookEvent,
)
from marketplace.payments.movements import fetch_movements
from marketplace.payments.payout_calls import retry_payout
from marketplace.payments.payouts import open_payout_account, refresh_payout_account, start_payout
from marketplace.payments.reconciliation import compare_with_gateway, reconcile
from marketplace.payments.selectors import Wallet, get_house_balances, get_wallet
from marketplace.payments.services import Share, distribute_charge
from marketplace.payments.stripe_accounts import create_transfer
from marketplace.payments.stripe_client import GatewayFault, GatewayRefused
from marketplace.payments.top_ups import start_top_up
from marketplace.payments.transfer_reversals import reverse_transfer
from marketplace.payments.webhooks import ask_about_event, receive_webhook
from tests import builders
from tests.builders import NOW
from tests.durable_work import apply_events, make_calls
from tests.pages import read_text
from tests.stand_in import ACCOUNTS_SECRET, WEBHOOK_SECRET, GatewayControl

pytestmark = pytest.mark.django_db

#: Earnings have matured.
LATER = NOW + timedelta(days=8)


@pytest.fixture(autouse=True)
def books_balance(db: None) -> Any:
    yield
    check = check_ledger()
    assert check.balanced, check


@pytest.fixture
def buyer(cards: GatewayControl) -> Organisation:
    return builders.organisation()


def pay(cards: GatewayControl, buyer: Organisation, *, usd: int = 10) -> CardPayment:
    payment = start_top_up(
        organisation=buyer,
        amount_micros=usd * 1_000_000,
        asked_by=builders.owner_of(buyer),
        key=f"form-{usd}",
        card_id=None,
        saves_card=False,
        now=NOW,
    )
    make_calls(now=NOW)
    payment.refresh_from_db()
    assert payment.gateway_id is not None
    cards.confirm(payment.gateway_id, gateway.get_intent(payment.gateway_id).client_secret)
    return refresh_payment(payment=payment, now=NOW)[0]


def receive(cards: GatewayControl) -> list[str]:
    """Apply all events; what became of the last ones."""
    events = [
        receive_webhook(body=body.encode(), signature=signature, now=NOW)
        for body, signature in cards.take_webhooks()
    ]
    apply_events(now=NOW)
    return [WebhookEvent.objects.get(pk=event.pk).outcome for event in events]


def test_a_refund_that_fails_days_later_is_the_wallets_again(
    cards: GatewayControl, buyer: Organisation
) -> None:
    payment = pay(cards, buyer)
    return_to_card(payment_id=payment.pk, amount_cents=941, reference="a", now=NOW)
    make_calls(now=NOW)
    refund = CardRefund.objects.get()
    assert (refund.status, get_wallet(organisation=buyer)) == ("done", Wallet(0, 0))
    receive(cards)
    [made] = cards.find("refund")
    cards.control("fail_refund", id=made["id"])
    [event] = cards.take_webhooks()
    for _ in range(2):
        receive_webhook(body=event[0].encode(), signature=event[1], now=NOW)
        apply_events(now=NOW)
    refund.refresh_from_db()
    assert refund.status == "refused"
    assert get_wallet(organisation=buyer) == Wallet(10_000_000, 0)
    assert reconcile(now=NOW).is_right


def test_a_refund_that_fails_before_it_is_booked_is_the_wallets_again(
    cards: GatewayControl, buyer: Organisation
) -> None:
    payment = pay(cards, buyer)
    refund = return_to_card(payment_id=payment.pk, amount_cents=941, reference="a", now=NOW)
    # The worker that made it died before it wrote that down.
    GatewayCall.objects.filter(subject=refund.pk).update(attempts=1)
    intent_id = payment.gateway_id or ""
    gateway.create_refund(refund_id=refund.pk, intent_id=intent_id, amount_cents=941, key="key_1")
    receive(cards)
    [made] = cards.find("refund")
    cards.control("fail_refund", id=made["id"])
    [event] = cards.take_webhooks()
    stored = receive_webhook(body=event[0].encode(), signature=event[1], now=NOW)
    apply_events(now=NOW)
    stored.refresh_from_db()
    assert stored.done_at is None
    make_calls(now=NOW)
    refund.refresh_from_db()
    assert refund.status == "refused"
    assert get_wallet(organisation=buyer) == Wallet(10_000_000, 0)
    apply_events(now=NOW + timedelta(days=1))
    stored.refresh_from_db()
    assert stored.done_at is not None
    assert get_wallet(organisation=buyer) == Wallet(10_000_000, 0)
    assert reconcile(now=NOW).is_right


def test_a_lost_chargeback_that_is_appealed_gives_back_what_the_wallet_paid(
    cards: GatewayControl, buyer: Organisation
) -> None:
    payment = pay(cards, buyer)
    opened = cards.control("dispute", payment_intent=payment.gateway_id)
    builders.fund_wallet(builders.organisation(), usd="1")
    receive(cards)
    cards.control("close_dispute", id=opened["id"], won=False)
    receive(cards)
    assert get_wallet(organisation=buyer) == Wallet(0, 0)
    cards.control("appeal", id=opened["id"])
    receive(cards)
    assert get_wallet(organisation=buyer) == Wallet(10_000_000, 0)
    assert get_house_balances()["disputes"] == 0
    assert not Freeze.objects.filter(ended_at=None).exists()
    assert reconcile(now=NOW).is_right


def test_an_early_fraud_warning_stops_purchases_until_an_operator_looked(
    cards: GatewayControl, buyer: Organisation
) -> None:
    payment = pay(cards, buyer)
    receive(cards)
    cards.control("warn", payment_intent=payment.gateway_id)
    assert receive(cards) == ["applied"]
    with pytest.raises(NotAllowed, match=r"payment of \$10\.00 may be fraud"):
        builders.hold_funds(organisation=buyer, amount_micros=1, reference="bid_1")


def test_a_payment_under_review_buys_nothing_until_somebody_approved_it(
    cards: GatewayControl, buyer: Organisation
) -> None:
    payment = pay(cards, buyer)
    receive(cards)
    review = cards.control("review", payment_intent=payment.gateway_id)
    assert receive(cards) == ["applied"]
    with pytest.raises(NotAllowed, match=r"an operator to look at a payment of \$10\.00"):
        builders.hold_funds(organisation=buyer, amount_micros=1, reference="bid_1")
    cards.control("close_review", id=review["id"], reason="refunded_as_fraud")
    assert receive(cards) == ["an operator lifts the freeze"]
    assert Freeze.objects.filter(ended_at=None).count() == 1
    cards.control("close_review", id=review["id"], reason="approved")
    assert receive(cards) == ["applied"]
    assert not Freeze.objects.filter(ended_at=None).exists()


def test_a_review_is_not_closed_before_its_opening_is_worked_off(
    cards: GatewayControl, buyer: Organisation
) -> None:
    payment = pay(cards, buyer)
    receive(cards)
    review = cards.control("review", payment_intent=payment.gateway_id)
    receive(cards)
    cards.control("close_review", id=review["id"], reason="approved")
    # Somebody works the opening off still.
    WebhookEvent.objects.filter(kind="review.opened").update(done_at=None)
    closed = WebhookEvent(kind="review.closed", object_id=review["id"])
    with pytest.raises(WorkFailed, match="not worked off yet"):
        ask_about_event(ANY, closed)
    WebhookEvent.objects.filter(kind="review.opened").update(done_at=NOW)
    assert ask_about_event(ANY, closed).outcome == "applied"


def test_a_part_of_a_payment_that_is_contested_and_lost_costs_the_wallet_that_part(
    cards: GatewayControl, buyer: Organisation
) -> None:
    payment = pay(cards, buyer)
    receive(cards)
    opened = cards.control("dispute", payment_intent=payment.gateway_id, amount=300)
    receive(cards)
    assert get_house_balances()["disputes"] == -3_000_000
    cards.control("close_dispute", id=opened["id"], won=False)
    receive(cards)
    assert get_wallet(organisation=buyer) == Wallet(7_000_000, 0)
    assert reconcile(now=NOW).is_right
    # The gateway's fee for a dispute is the house's cost.
    assert get_house_balances()["gateway_fees"] == -590_000 - 15_000_000


def test_banks_take_no_more_back_of_a_payment_than_it_was(
    cards: GatewayControl, buyer: Organisation
) -> None:
    payment = pay(cards, buyer)

    def contest(**terms: Any) -> Any:
        return cards.control("dispute", payment_intent=payment.gateway_id, **terms)

    inquiry, part = contest(inquiry=True), contest(amount=300)
    cards.control("close_dispute", id=part["id"], won=False)
    again = contest(amount=701)
    assert again["error"]["message"] == "Of this charge 700 can be contested."
    # The inquiry is about all of it.
    assert "error" in cards.control("escalate_inquiry", id=inquiry["id"])
    rest = contest()
    assert rest["amount"] == 700
    cards.control("close_dispute", id=rest["id"], won=True)
    assert "error" in contest(amount=1)
    [charge] = cards.find("charge")
    assert charge["disputed"]
    receive(cards)
    assert get_wallet(organisation=buyer) == Wallet(7_000_000, 0)
    assert reconcile(now=NOW).is_right


def test_banks_are_asked_about_first_and_large_payments(
    cards: GatewayControl, buyer: Organisation, settings: Any
) -> None:
    settings.CARD_ASK_BANK_CENTS = 5_000
    for usd in (10, 20, 60):
        pay(cards, buyer, usd=usd)
        # Only what was paid before counts: a retry under the same key asks the same.
        CardPayment.objects.update(ended_at=NOW - timedelta(hours=1))
    asked = {
        intent["amount"]: intent["payment_method_options"]
        for intent in cards.find("payment_intent")
    }
    any_bank = {"card": {"request_three_d_secure": "any"}}
    assert asked == {1000: any_bank, 2000: {}, 6000: any_bank}


def test_money_that_is_pending_at_the_gateway_leaves_once_it_is_there(
    cards: GatewayControl, buyer: Organisation
) -> None:
    cards.control("pend", seconds=2 * 24 * 3600)
    pay(cards, buyer)
    earner = builders.provider_organisation()
    open_payout_account(organisation=earner, now=NOW, return_url="http://127.0.0.1/back")
    account = PayoutAccount.objects.get()
    cards.control("onboard", account=account.gateway_id)
    sent: Any = {
        "transfer_id": "x", "amount_cents": 100, "currency": "usd",
        "account_id": account.gateway_id, "group": "x",
    }  # fmt: skip
    with pytest.raises(GatewayRefused, match="insufficient funds"):
        create_transfer(**sent, key="first")
    cards.control("advance", seconds=2 * 24 * 3600)
    create_transfer(**sent, key="second")


def test_an_earner_abroad_gets_an_account_of_its_country(cards: GatewayControl) -> None:
    earner = builders.provider_organisation()
    BillingDetails.objects.create(organisation=earner, legal_name="GPU GmbH", country="DE")
    open_payout_account(organisation=earner, now=NOW, return_url="http://127.0.0.1/back")
    assert [account["country"] for account in cards.find("account")] == ["DE"]


def test_events_of_accounts_are_signed_with_a_secret_of_their_own(
    cards: GatewayControl, buyer: Organisation, settings: Any
) -> None:
    open_payout_account(organisation=buyer, now=NOW, return_url="http://127.0.0.1/back")
    account = PayoutAccount.objects.get()
    with cards.server.lock:
        cards.server.books.announce(
            "account.application.deauthorized", {"id": "ca_1"}, account=account.gateway_id
        )
    events = cards.take_webhooks()
    settings.STRIPE_ACCOUNTS_WEBHOOK_SECRET = ""
    with pytest.raises(UserError, match="signature"):
        receive_webhook(body=events[-1][0].encode(), signature=events[-1][1], now=NOW)
    settings.STRIPE_ACCOUNTS_WEBHOOK_SECRET = ACCOUNTS_SECRET
    receive_webhook(body=events[-1][0].encode(), signature=events[-1][1], now=NOW)
    PayoutAccount.objects.update(is_ready=True)
    apply_events(now=NOW)
    account.refresh_from_db()
    assert (account.is_ready, account.needs) == (False, ["deauthorised"])


def test_both_endpoints_are_made_once_and_their_secrets_are_known(
    cards: GatewayControl, settings: Any, client: Client
) -> None:
    settings.STRIPE_WEBHOOK_SECRET = settings.STRIPE_ACCOUNTS_WEBHOOK_SECRET = ""
    operator = builders.operator()
    client.force_login(operator)
    assert "No secret" in read_text(client.get("/operator/money/stripe"))
    with pytest.raises(NotAllowed):
        create_endpoints(created_by=builders.user(), now=NOW)
    client.post("/operator/money/stripe/connect")
    assert create_endpoints(created_by=operator, now=NOW) == []
    assert list_webhook_secrets() == [ACCOUNTS_SECRET, WEBHOOK_SECRET]
    made = {endpoint["id"]: endpoint for endpoint in cards.find("webhook_endpoint")}
    known = GatewayEndpoint.objects.in_bulk()
    assert len(made) == len(known) == 2
    for serves in EndpointServes:
        found = made[known[serves].gateway_id]
        assert found["enabled_events"] == list(EVENTS[serves])
        assert found["url"] == f"{settings.PUBLIC_URL}/webhooks/stripe"
    # One whose secret was lost on the way is made again, and not beside the first.
    GatewayEndpoint.objects.filter(serves="market").delete()
    create_endpoints(created_by=operator, now=NOW)
    assert len(cards.find("webhook_endpoint")) == 2

    client.post("/operator/money/stripe/try")
    page = read_text(client.get("/operator/money/stripe"))
    assert "settles in USD; it takes payments" in page
    assert "No secret" not in page
    assert [(made["amount"], made["status"]) for made in cards.find("refund")] == [
        (100, "succeeded")
    ]


def test_payouts_to_the_houses_own_bank_are_booked_once(
    cards: GatewayControl, buyer: Organisation
) -> None:
    pay(cards, buyer)
    cards.control("bank_payout", amount=400)
    assert reconcile(now=NOW).is_right
    for _ in range(2):
        assert compare_with_gateway(now=NOW).problems == []
    house = get_house_balances()
    assert (house["bank"], house["gateway"]) == (-4_000_000, -5_410_000)
    assert Entry.objects.filter(kind=EntryKind.BANK_PAYOUT).count() == 1
    assert reconcile(now=NOW).is_right


def test_movements_are_asked_for_by_date_and_kept(
    cards: GatewayControl, buyer: Organisation, monkeypatch: Any
) -> None:
    pay(cards, buyer)
    asked = []
    ask = gateway.list_movements

    def listen(*, since: Any) -> Any:
        asked.append(since)
        return ask(since=since)

    monkeypatch.setattr(gateway, "list_movements", listen)
    assert reconcile(now=NOW).movements == 1
    cards.control("advance", seconds=10 * 24 * 3600)
    pay(cards, buyer, usd=20)
    assert reconcile(now=NOW).movements == 2
    third = reconcile(now=NOW)
    assert (third.movements, third.is_right) == (2, True)
    first, latest = GatewayMovement.objects.order_by("moved_at")
    assert [at and (latest.moved_at - at).days for at in asked] == [None, 12, 2]
    assert (latest.moved_at - first.moved_at).days == 10


def test_what_was_only_looked_at_is_booked_however_late(
    cards: GatewayControl, buyer: Organisation
) -> None:
    pay(cards, buyer)
    with cards.server.lock:
        cards.server.books.move("stripe_fee", "fee_1", -200)
        cards.server.books.pay_own_bank(400)
    for usd in (20, 30):
        # The process dies before it books what it has stored.
        fetch_movements(now=NOW)
        cards.control("advance", seconds=10 * 24 * 3600)
        pay(cards, buyer, usd=usd)
    assert compare_with_gateway(now=NOW).problems == []
    house = get_house_balances()
    assert (house["bank"], house["gateway_fees"]) == (-4_000_000, -2_000_000 - 2_640_000)
    assert reconcile(now=NOW).is_right


def test_the_fee_of_a_charge_waits_for_its_payment(
    cards: GatewayControl, buyer: Organisation
) -> None:
    payment = pay(cards, buyer)
    charge_id = payment.charge_id
    CardPayment.objects.filter(pk=payment.pk).update(charge_id="", fee_cents=None)
    [unknown] = compare_with_gateway(now=NOW).problems
    assert unknown.startswith(f"{charge_id} not in the ledger")
    CardPayment.objects.filter(pk=payment.pk).update(charge_id=charge_id)
    assert compare_with_gateway(now=NOW + timedelta(days=1)).problems == []
    payment.refresh_from_db()
    assert payment.fee_cents == 59


@pytest.mark.parametrize("when", ["", "before", "after"])
def test_a_tried_payment_is_made_once_and_is_no_difference(
    cards: GatewayControl, when: str
) -> None:
    operator = builders.operator()
    if when:
        cards.control("fail", path="payment_intents", method="POST", when=when)
        with pytest.raises(GatewayFault):
            try_test_payment(asked_by=operator, now=NOW)
        make_calls(now=NOW + timedelta(hours=1))
    gateway_id = try_test_payment(asked_by=operator, now=NOW)
    assert [each["id"] for each in cards.find("payment_intent")] == [gateway_id]
    assert [each["amount"] for each in cards.find("refund")] == [100]
    assert compare_with_gateway(now=NOW).problems == []
    assert get_house_balances()["gateway_fees"] == -330_000


def test_money_in_a_currency_without_a_rate_is_told_and_not_booked(
    cards: GatewayControl, buyer: Organisation
) -> None:
    pay(cards, buyer)
    with cards.server.lock:
        cards.server.books.move("stripe_fee", "fee_1", -1234)["currency"] = "eur"
    entries = Entry.objects.count()
    assert compare_with_gateway(now=NOW).problems == [
        "1 movements are in eur, and no rate is known."
    ]
    assert Entry.objects.count() == entries
    # Once a rate is known it is booked at it, however long that took, and only then.
    cards.control("advance", seconds=10 * 24 * 3600)
    pay(cards, buyer, usd=30)
    compare_with_gateway(now=NOW)
    cards.control("settle", currency="eur", rate=0.5)
    pay(cards, buyer, usd=20)
    for _ in range(2):
        assert compare_with_gateway(now=NOW).problems == []
    assert Entry.objects.get(reference=GatewayMovement.objects.get(source_id="fee_1").pk).kind == (
        EntryKind.GATEWAY_FEE
    )
    fees = -590_000 - 24_680_000 - 1_170_000 - 880_000
    assert get_house_balances()["gateway_fees"] == fees
    with pytest.raises(ProgrammingError), transaction.atomic():
        GatewayMovement.objects.filter(source_id="fee_1").update(rate=1)


def test_what_is_not_rounded_leaves_no_room_and_the_rest_a_dollar(
    cards: GatewayControl, buyer: Organisation
) -> None:
    cards.control("settle", currency="eur", rate=0.9137)
    payment = pay(cards, buyer)
    for cents in (3, 333):
        return_to_card(payment_id=payment.pk, amount_cents=cents, reference=f"{cents}", now=NOW)
    make_calls(now=NOW)
    with cards.server.lock:
        cards.server.books.move("stripe_fee", "fee_1", -77)
        cards.server.books.pay_own_bank(100)
    found = reconcile(now=NOW)
    assert (found.is_right, found.rounding_micros) == (True, 0)
    # A refund that somebody makes at the gateway is told by its name.
    intent_id = payment.gateway_id or ""
    made = gateway.create_refund(refund_id="x", intent_id=intent_id, amount_cents=2, key="x")
    assert [str(each) for each in reconcile(now=NOW).differences] == [
        f"{made} not in the ledger: ledger $0.00, gateway -$0.02."
    ]
    row = {"kind": "adjustment", "currency": "eur", "rate": 1, "moved_at": NOW}
    row |= {"amount_cents": 0, "fee_cents": 0, "net_cents": 0}
    GatewayMovement.objects.bulk_create(
        [GatewayMovement(pk=f"txn_{number}", **row) for number in range(150)]
    )
    assert reconcile(now=NOW).rounding_micros == 1_000_000


def test_an_account_that_settles_in_euros_reconciles(
    cards: GatewayControl, buyer: Organisation, client: Client
) -> None:
    cards.control("settle", currency="eur", rate=0.9137)
    payment = pay(cards, buyer)
    # 59 cents, of which 54 euro cents are 59.1.
    assert payment.fee_cents == 59
    return_to_card(payment_id=payment.pk, amount_cents=333, reference="a", now=NOW)
    make_calls(now=NOW)
    first = reconcile(now=NOW)
    assert (first.is_right, first.unrated, first.differences) == (True, {}, ())
    house = get_house_balances()
    assert house["gateway_fees"] + house["revenue"] >= -590_000
    # In euros: 914 - 54 - 304. At their rate they are worth what the books say, but for a cent.
    moved = GatewayMovement.objects.values_list("kind", "net_cents", "currency").order_by("kind")
    assert list(moved) == [("charge", 860, "eur"), ("refund", -304, "eur")]
    assert abs(first.exchange_micros) <= 10_000

    # The euro rises: what is there is worth more, and leaves at the new rate.
    cards.control("advance", seconds=1)
    cards.control("settle", currency="eur", rate=0.8)
    pay(cards, buyer, usd=20)
    second = reconcile(now=NOW)
    assert (second.is_right, second.differences) == (True, ())
    worth = round((860 - 304 + 1600 - 70) / Decimal("0.8")) * 10_000
    assert (second.worth_micros, second.exchange_micros) == (
        *(worth, worth - second.ledger_micros),
    )
    assert second.exchange_micros > 800_000
    client.force_login(builders.operator())
    page = read_text(client.get("/operator/money?compare=1"))
    assert "Exchange: at the last rates they are worth" in page
    page = read_text(client.get("/operator/money/stripe"))
    assert "What settles in EUR is booked at Stripe's own rates" in page


def start_euro_payout(
    cards: GatewayControl, buyer: Organisation, settings: Any, *, country: str
) -> Payout:
    """Of $6.00, at 0.8 euros for a dollar."""
    settings.PAYOUT_THRESHOLD_MICROS = 1
    cards.control("settle", currency="eur", rate=0.8)
    pay(cards, buyer, usd=20)
    reconcile(now=NOW)
    earner = builders.provider_organisation()
    BillingDetails.objects.create(organisation=earner, legal_name="GPU GmbH", country=country)
    open_payout_account(organisation=earner, now=NOW, return_url="http://127.0.0.1/back")
    cards.control("onboard", account=PayoutAccount.objects.get().gateway_id)
    refresh_payout_account(earner.pk)
    earn(buyer, earner, "bid_1", usd=6)
    payout = start_payout(organisation_id=earner.pk, now=LATER)
    assert payout is not None
    return payout


def earn(buyer: Organisation, earner: Organisation, job: str, *, usd: int) -> None:
    micros = usd * 1_000_000
    builders.hold_funds(organisation=buyer, amount_micros=micros, reference=job)
    builders.settle_hold(hold_reference=job, charge_micros=micros)
    split = builders.cost_split(Share(earner.pk, micros))
    distribute_charge(hold_reference=job, split=split, now=NOW)
    mature_earnings(now=LATER)


@pytest.mark.parametrize("cents", [600, 251])
def test_a_transfer_that_is_taken_back_at_another_rate_is_right(
    cards: GatewayControl, buyer: Organisation, settings: Any, cents: int
) -> None:
    start_euro_payout(cards, buyer, settings, country="DE")
    # The bank is paid only later.
    cards.control("fail", path="payouts", method="POST", when="before")
    make_calls(now=LATER)
    cards.control("settle", currency="eur", rate=0.5)
    pay(cards, buyer, usd=10)
    reverse_transfer(
        transfer_id=Transfer.objects.get().pk,
        amount_cents=cents,
        reversed_by=builders.operator(),
        now=LATER,
    )
    make_calls(now=LATER)
    assert [each["amount"] for each in cards.find("transfer_reversal")] == [round(cents * 0.8)]
    found = reconcile(now=LATER)
    assert (found.is_right, found.differences, found.rounding_micros) == (True, (), 0)


@pytest.mark.parametrize("country", ["DE", "US"])
def test_earners_are_paid_in_what_the_gateway_settles_in_and_their_banks_in_their_currency(
    cards: GatewayControl, buyer: Organisation, settings: Any, country: str
) -> None:
    payout = start_euro_payout(cards, buyer, settings, country=country)
    # The rate of the start stays, whatever it is when the transfer is made.
    cards.control("settle", currency="eur", rate=0.81)
    pay(cards, buyer, usd=10)
    make_calls(now=LATER)
    payout.refresh_from_db()
    assert payout.status == "paid"
    [transfer], [paid] = cards.find("transfer"), cards.find("payout")
    assert (transfer["amount"], transfer["currency"]) == (480, "eur")
    expected = 480 if country == "DE" else round(480 / 0.81)
    assert (paid["amount"], paid["currency"]) == (expected, "eur" if country == "DE" else "usd")
    found = reconcile(now=NOW)
    assert (found.is_right, found.differences) == (True, ())


def test_what_an_account_in_another_currency_got_for_one_payout_leaves_with_no_other(
    cards: GatewayControl, buyer: Organisation, settings: Any
) -> None:
    settings.PAYOUT_EVERY_DAYS = 0
    payout = start_euro_payout(cards, buyer, settings, country="US")
    earner = payout.organisation
    cards.control("fail_payouts", code="account_closed")
    make_calls(now=LATER)
    earn(buyer, earner, "bid_2", usd=3)
    later = LATER + timedelta(hours=1)
    assert start_payout(organisation_id=earner.pk, now=later) is None
    # The bank sends back what it was paid only after the next payout has begun.
    Payout.objects.update(status="paid", retry_at=None, ended_at=LATER)
    second = start_payout(organisation_id=earner.pk, now=later)
    assert second is not None
    cards.control("fail_payouts", code="")
    Payout.objects.filter(pk=payout.pk).update(status="failed", ended_at=None)
    make_calls(now=later)
    assert GatewayCall.objects.get(subject=f"{second.pk}:1").status == "waiting"
    assert retry_payout(payout_id=payout.pk, now=later)
    make_calls(now=later + timedelta(hours=2))
    assert sorted(each["amount"] for each in cards.find("payout")) == [300, 600, 600]
    assert set(Payout.objects.values_list("status", flat=True)) == {"paid"}


def test_a_transfer_that_was_not_moved_leaves_in_what_the_gateway_settles_in_by_then(
    cards: GatewayControl, buyer: Organisation, settings: Any
) -> None:
    payout = start_euro_payout(cards, buyer, settings, country="US")
    # The market adds a bank account in dollars.
    cards.control("advance", seconds=1)
    cards.control("settle", currency="usd", rate=1)
    pay(cards, buyer, usd=30)
    reconcile(now=LATER)
    for hours in range(3):
        make_calls(now=LATER + timedelta(hours=hours))
    payout.refresh_from_db()
    assert payout.status == "paid"
    assert [(each["amount"], each["currency"]) for each in cards.find("transfer")] == [(600, "usd")]
    found = reconcile(now=LATER)
    assert (found.is_right, found.differences) == (True, ())
    with pytest.raises(ProgrammingError), transaction.atomic():
        Transfer.objects.update(settled_cents=1)
