"""After a restore, what the lost market moved is booked once, and nothing moves a second time."""

from collections.abc import Callable
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest
from django.db import transaction

from marketplace.accounts.models import Organisation
from marketplace.common.models import DurableWork
from marketplace.payments.card_payments import refresh_payment, start_payment
from marketplace.payments.card_refunds import return_to_card
from marketplace.payments.gateway_calls import run_call
from marketplace.payments.holds import HoldRequest, place_holds
from marketplace.payments.ledger_checks import check_ledger
from marketplace.payments.lost_rows import Recovered, recover_lost_rows
from marketplace.payments.maturity import mature_earnings
from marketplace.payments.models import (
    CardPayment,
    CardRefund,
    Earning,
    Freeze,
    GatewayCall,
    PaymentPurpose,
    Payout,
    PayoutAccount,
    Transfer,
)
from marketplace.payments.payouts import (
    open_payout_account,
    refresh_payout_account,
    start_due_payouts,
)
from marketplace.payments.reconciliation import compare_with_gateway
from marketplace.payments.restores import hold_gateway, resume_gateway
from marketplace.payments.selectors import Wallet, get_earnings, get_wallet
from marketplace.payments.services import Share, distribute_charge, refund_charge
from marketplace.payments.top_ups import start_top_up
from marketplace.payments.transfer_reversals import reverse_transfer
from tests import builders
from tests.durable_work import make_calls
from tests.stand_in import GatewayControl

pytestmark = pytest.mark.django_db

#: The gateway's own clock says when its objects were made.
NOW = datetime.now(UTC)
MATURE = NOW + timedelta(days=8)
LATER = MATURE + timedelta(days=30)


@pytest.fixture(autouse=True)
def books_balance(db: None, settings: Any) -> Any:
    settings.PAYOUT_THRESHOLD_MICROS = 1_000_000
    settings.PAYOUT_RESERVE_PERCENT = 0
    yield
    check = check_ledger()
    assert check.balanced, check


@pytest.fixture
def buyer(cards: GatewayControl) -> Organisation:
    return builders.organisation()


@pytest.fixture
def provider(cards: GatewayControl, buyer: Organisation) -> Organisation:
    """One that can be paid, at a market whose gateway has money."""
    _pay(cards, _top_up(buyer, usd=500, key="funds"))
    made = builders.provider_organisation()
    open_payout_account(organisation=made, now=NOW, return_url="http://127.0.0.1/back")
    account = PayoutAccount.objects.get(organisation=made)
    cards.control("onboard", account=account.gateway_id)
    refresh_payout_account(made.pk)
    return made


def _lose(work: Callable[[], object]) -> None:
    """Let a market do something after its backup, and go on from the backup."""
    backup = transaction.savepoint()
    work()
    transaction.savepoint_rollback(backup)
    hold_gateway(backed_up_at=NOW, now=LATER)
    # The gateway has long forgotten every key of the lost market.
    GatewayCall.objects.update(generation=7)


def _recover() -> Recovered:
    """Recover, which may be repeated; the market may then move money again."""
    found = recover_lost_rows(now=LATER)
    again = recover_lost_rows(now=LATER)
    assert (again.payments, again.refunds, again.payouts) == (0, 0, 0)
    assert compare_with_gateway(now=LATER).problems == []
    resume_gateway(despite_differences=False)
    return found


def _top_up(buyer: Organisation, *, usd: int = 10, key: str = "form-1") -> CardPayment:
    return start_top_up(
        organisation=buyer,
        amount_micros=usd * 1_000_000,
        asked_by=builders.owner_of(buyer),
        key=key,
        card_id=None,
        saves_card=False,
        now=NOW,
    )


def _pay(cards: GatewayControl, payment: CardPayment) -> CardPayment:
    make_calls(now=NOW)
    payment, intent = refresh_payment(payment=CardPayment.objects.get(pk=payment.pk), now=NOW)
    assert intent is not None
    cards.confirm(intent.gateway_id, intent.client_secret)
    return refresh_payment(payment=payment, now=NOW)[0]


def _start_bid(buyer: Organisation) -> CardPayment:
    return start_payment(
        organisation=buyer,
        purpose=PaymentPurpose.BID,
        amount_cents=1000,
        created_by=builders.owner_of(buyer),
        key="bid-1",
        terms={},
        now=NOW,
    )


def _win_bid(cards: GatewayControl, buyer: Organisation) -> CardPayment:
    payment = _pay(cards, _start_bid(buyer))
    place_holds(wanted=[HoldRequest(buyer.pk, 10_000_000, "bid_1", payment.pk)], now=NOW)
    builders.settle_hold(hold_reference="bid_1", charge_micros=9_000_000)
    make_calls(now=NOW)
    return CardPayment.objects.get(pk=payment.pk)


def _earn(provider: Organisation, **micros_by_job: int) -> None:
    buyer = builders.organisation(usd="5000")
    for job, micros in micros_by_job.items():
        builders.hold_funds(organisation=buyer, amount_micros=micros, reference=job)
        builders.settle_hold(hold_reference=job, charge_micros=micros)
        split = builders.cost_split(Share(provider.pk, micros))
        distribute_charge(hold_reference=job, split=split, now=NOW)


def _pay_out() -> None:
    mature_earnings(now=MATURE)
    assert start_due_payouts(now=MATURE) == 1
    while make_calls(now=MATURE):
        pass
    assert Payout.objects.get().status == "paid"


def _count(cards: GatewayControl) -> dict[str, int]:
    kinds = ("payment_intent", "refund", "transfer", "payout")
    return {kind: len(cards.find(kind)) for kind in kinds}


def test_earnings_that_were_paid_out_are_not_paid_again(
    cards: GatewayControl, provider: Organisation
) -> None:
    _earn(provider, job_a=5_004_000, job_b=2_000_000)
    _lose(_pay_out)
    assert Payout.objects.count() == 0
    # Matured or not at the backup, it is the lost payout's.
    before = _count(cards)
    assert _recover() == Recovered(payouts=1)
    payout = Payout.objects.get()
    [there] = cards.find("payout")
    assert there["metadata"] == {"finetender": f"{payout.pk}:1"}
    assert payout.amount_cents == 700
    assert get_earnings(organisation=provider).payable_micros == 4_000
    earnings = Earning.objects.filter(organisation=provider)
    assert list(earnings.values_list("payout", flat=True)) == [payout.pk] * 2
    make_calls(now=LATER)
    payout.refresh_from_db()
    assert (payout.status, payout.gateway_id) == ("paid", there["id"])
    # It goes on with what comes later, and with nothing else.
    _earn(provider, job_c=3_000_000)
    mature_earnings(now=LATER)
    assert start_due_payouts(now=LATER) == 1
    while make_calls(now=LATER):
        pass
    assert _count(cards) == before | {"transfer": 3, "payout": 2}
    assert sorted(each["amount"] for each in cards.find("payout")) == [300, 700]


def test_what_the_lost_market_did_not_come_to_move_is_paid_once(
    cards: GatewayControl, provider: Organisation
) -> None:
    def pay_one_of_two() -> None:
        mature_earnings(now=MATURE)
        start_due_payouts(now=MATURE)
        first = Transfer.objects.get(group="job_a")
        DurableWork.objects.exclude(key=GatewayCall.objects.get(subject=first.pk).pk).delete()
        make_calls(now=MATURE)
        assert len(cards.find("transfer")) == 1

    _earn(provider, job_a=5_000_000, job_b=2_000_000)
    _lose(pay_one_of_two)
    assert _recover() == Recovered(payouts=1)
    assert get_earnings(organisation=provider).payable_micros == 2_000_000
    make_calls(now=LATER)
    assert start_due_payouts(now=LATER) == 1
    while make_calls(now=LATER + timedelta(days=1)):
        pass
    assert [each["amount"] for each in cards.find("transfer")] == [200, 500]
    assert sorted(each["amount"] for each in cards.find("payout")) == [200, 500]


def test_a_payout_of_what_is_not_earned_here_yet_is_booked_once_it_is(
    cards: GatewayControl, provider: Organisation
) -> None:
    """A job that ended before the backup may be settled after it: in the lost market, and here."""

    def earn_and_pay_out() -> None:
        _earn(provider, job_a=5_000_000)
        _pay_out()

    _lose(earn_and_pay_out)
    for _ in range(2):
        found = recover_lost_rows(now=LATER)
        assert found.payouts == 0
        [left] = found.left
        assert f"{provider.pk} is frozen" in left
        assert Payout.objects.count() == 0
    [problem] = [text for text in compare_with_gateway(now=LATER).problems if "tr_" in text]
    assert "not in the ledger" in problem
    resume_gateway(despite_differences=True)
    _earn(provider, job_a=5_000_000)
    mature_earnings(now=LATER)
    assert start_due_payouts(now=LATER) == 0
    assert _recover() == Recovered(payouts=1)
    assert get_earnings(organisation=provider).payable_micros == 0
    assert list(Freeze.objects.filter(ended_at=None)) == []
    make_calls(now=LATER)
    assert (len(cards.find("transfer")), len(cards.find("payout"))) == (1, 1)


def test_a_card_that_paid_has_filled_the_wallet_and_is_not_charged_again(
    cards: GatewayControl, buyer: Organisation
) -> None:
    def pay_and_send_back() -> None:
        payment = _pay(cards, _top_up(buyer))
        return_to_card(payment_id=payment.pk, amount_cents=400, reference="click", now=NOW)
        make_calls(now=NOW)
        names.extend([payment.pk, CardRefund.objects.get().pk])

    names: list[str] = []
    _lose(pay_and_send_back)
    assert get_wallet(organisation=buyer) == Wallet(0, 0)
    assert _recover() == Recovered(payments=1, refunds=1)
    payment, refund = CardPayment.objects.get(), CardRefund.objects.get()
    assert [payment.pk, refund.pk] == names
    assert (payment.status, payment.refunded_cents, refund.status) == ("paid", 400, "done")
    # 59 cents stay with the gateway, the part of them that belongs to 4 dollars was paid.
    assert get_wallet(organisation=buyer).available_micros == 6_000_000 - refund.fee_micros
    # The same form, and the same click.
    assert _top_up(buyer).pk == payment.pk
    same = return_to_card(payment_id=payment.pk, amount_cents=400, reference="click", now=LATER)
    assert same.pk == refund.pk
    make_calls(now=LATER)
    assert _count(cards) == {"payment_intent": 1, "refund": 1, "transfer": 0, "payout": 0}


def test_a_form_that_is_sent_again_while_money_is_held_finds_its_payment(
    cards: GatewayControl, buyer: Organisation
) -> None:
    """The owner was faster than the operator: there is a row of another name for the same form."""

    def pay() -> None:
        _pay(cards, _top_up(buyer, key="first"))
        _pay(cards, _top_up(buyer))

    _pay(cards, _top_up(buyer, key="before"))
    _lose(pay)
    payment = _top_up(buyer)
    make_calls(now=NOW)
    payment.refresh_from_db()
    assert (payment.status, payment.received_cents) == ("paid", 1000)
    assert _recover() == Recovered(payments=1)
    assert get_wallet(organisation=buyer) == Wallet(30_000_000, 0)
    assert _count(cards)["payment_intent"] == 3


def test_what_a_card_paid_for_a_lost_bid_is_in_the_wallet(
    cards: GatewayControl, buyer: Organisation
) -> None:
    _lose(lambda: _win_bid(cards, buyer))
    assert _recover() == Recovered(payments=1)
    assert get_wallet(organisation=buyer) == Wallet(9_000_000, 0)
    # The bid is placed anew under its own key: it is another payment.
    payment = _start_bid(buyer)
    make_calls(now=LATER)
    payment.refresh_from_db()
    assert payment.status == "open"
    assert _count(cards)["payment_intent"] == 2


def test_a_bid_that_is_placed_anew_takes_the_authorisation_that_is_there(
    cards: GatewayControl, buyer: Organisation
) -> None:
    _pay(cards, _top_up(buyer))
    _lose(lambda: _pay(cards, _start_bid(buyer)))
    assert _recover() == Recovered()
    payment = _start_bid(buyer)
    make_calls(now=LATER)
    payment.refresh_from_db()
    assert payment.status == "authorised"
    assert _count(cards)["payment_intent"] == 2


@pytest.mark.parametrize("cents", [300, 299])
def test_a_bids_price_goes_back_to_its_card_once(
    cards: GatewayControl, buyer: Organisation, cents: int
) -> None:
    """The refund is asked for again by whatever asked before, maybe with another outcome."""

    def refund(cents: int) -> None:
        refund_charge(
            hold_reference="bid_1",
            amount_micros=cents * 10_000,
            reason="late",
            now=NOW,
        )
        make_calls(now=LATER)

    _win_bid(cards, buyer)
    _lose(lambda: refund(300))
    [there] = cards.find("refund")
    assert recover_lost_rows(now=LATER).left == [
        f"{there['id']}: it is booked once the bid's price is refunded here, too."
    ]
    compare_with_gateway(now=LATER)
    resume_gateway(despite_differences=True)
    refund(cents)
    assert len(cards.find("refund")) == 1
    made = CardRefund.objects.get()
    call = GatewayCall.objects.get(kind="refund")
    if cents == 300:
        assert (made.status, made.gateway_id) == ("done", there["id"])
        assert compare_with_gateway(now=LATER).problems == []
    else:
        assert (made.status, call.status) == ("waiting", "waiting")
        assert "of 300 cents, not 299" in call.error_message


def test_a_transfer_is_taken_back_once(cards: GatewayControl, provider: Organisation) -> None:
    def take_back() -> None:
        reverse_transfer(
            transfer_id=Transfer.objects.get().pk,
            amount_cents=200,
            reversed_by=builders.operator(),
            now=MATURE,
        )
        run_call(call_id=GatewayCall.objects.get(kind="reversal").pk, now=MATURE)

    _earn(provider, job_a=5_000_000)
    mature_earnings(now=MATURE)
    start_due_payouts(now=MATURE)
    run_call(call_id=GatewayCall.objects.get(kind="transfer").pk, now=MATURE)
    _lose(take_back)
    recover_lost_rows(now=LATER)
    compare_with_gateway(now=LATER)
    resume_gateway(despite_differences=True)
    take_back()
    [there] = cards.find("transfer")
    assert there["amount_reversed"] == 200
    assert len(cards.find("transfer_reversal")) == 1
    assert compare_with_gateway(now=LATER).problems == []


def test_a_chargeback_whose_event_the_lost_market_had_is_booked(
    cards: GatewayControl, buyer: Organisation
) -> None:
    payment = _pay(cards, _top_up(buyer))

    def contest() -> None:
        cards.control("dispute", payment_intent=payment.gateway_id)
        with cards.server.lock:
            for event in cards.server.books.find("event"):
                cards.server.books.note_delivery(event["id"])

    _lose(contest)
    assert Freeze.objects.count() == 0
    _recover()
    assert Freeze.objects.filter(organisation=buyer, ended_at=None).count() == 1
