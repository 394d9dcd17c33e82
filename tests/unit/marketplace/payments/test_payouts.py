"""Earnings leave by job, in whole cents, once, and what a bank does not take is tried again."""

import json
from dataclasses import replace
from datetime import timedelta
from typing import Any

import pytest

from marketplace.accounts.models import Organisation
from marketplace.auction.probes import run_probes
from marketplace.common.errors import Conflict, NotAllowed, NotFound, PaymentRequired, UserError
from marketplace.payments import stripe_client
from marketplace.payments import stripe_gateway as gateway
from marketplace.payments.freezes import end_freeze, freeze_organisation
from marketplace.payments.ledger_checks import check_ledger
from marketplace.payments.manual_entries import ManualTerms, book_proposed, propose_entry
from marketplace.payments.maturity import mature_earnings
from marketplace.payments.models import (
    AccountKind,
    GatewayCall,
    ManualKind,
    Payout,
    PayoutAccount,
    Transfer,
)
from marketplace.payments.payout_calls import (
    make_payout,
    make_transfer,
    retry_failed_payouts,
)
from marketplace.payments.payouts import (
    open_payout_account,
    refresh_payout_account,
    start_due_payouts,
    start_payout,
)
from marketplace.payments.reconciliation import compare_with_gateway
from marketplace.payments.restores import HELD, hold_gateway, is_gateway_held, resume_gateway
from marketplace.payments.selectors import get_earnings, get_house_balances
from marketplace.payments.services import Share, distribute_charge
from marketplace.payments.stripe_client import GatewayFault
from marketplace.payments.transfer_reversals import refuse_reversal, reverse_transfer
from marketplace.payments.webhooks import fetch_missed_events, receive_webhook
from marketplace.webhooks.models import WebhookMessage
from marketplace.webhooks.services import create_endpoint
from tests import builders
from tests.builders import NOW
from tests.durable_work import apply_events, make_calls
from tests.stand_in import GatewayControl

pytestmark = pytest.mark.django_db

MATURE = NOW + timedelta(days=8)


class Killed(BaseException):
    """The process died here."""


@pytest.fixture(autouse=True)
def books_balance(db: None, settings: Any) -> Any:
    settings.PAYOUT_THRESHOLD_MICROS = 1_000_000
    yield
    check = check_ledger()
    assert check.balanced, check


@pytest.fixture
def provider(cards: GatewayControl) -> Organisation:
    """A provider whose account can be paid, at a market whose gateway has money."""
    gateway.create_intent(
        gateway.IntentRequest(
            payment_id="pay_1",
            amount_cents=100_000,
            customer_id=gateway.create_customer(
                organisation_id="org_1", name="Buyer", key="customer-1"
            ),
            card_id="pm_card_visa",
        ),
        key="buyer",
    )
    made = builders.provider_organisation()
    _onboard(cards, made)
    return made


def _onboard(cards: GatewayControl, provider: Organisation) -> None:
    address = open_payout_account(
        organisation=provider, now=NOW, return_url="http://127.0.0.1/back"
    )
    assert address.startswith(f"{cards.url}/onboarding/")
    account = PayoutAccount.objects.get(organisation=provider)
    assert refresh_payout_account(provider.pk).needs != []  # type: ignore[union-attr]
    cards.control("onboard", account=account.gateway_id)
    assert refresh_payout_account(provider.pk).is_ready  # type: ignore[union-attr]


def _earn(provider: Organisation, **micros_by_job: int) -> None:
    buyer = builders.organisation(usd="5000")
    for job, micros in micros_by_job.items():
        builders.hold_funds(organisation=buyer, amount_micros=micros, reference=job)
        builders.settle_hold(hold_reference=job, charge_micros=micros)
        split = builders.cost_split(Share(provider.pk, micros))
        distribute_charge(hold_reference=job, split=split, now=NOW)
    mature_earnings(now=MATURE)


def _receive(cards: GatewayControl) -> None:
    for body, signature in cards.take_webhooks():
        receive_webhook(body=body.encode(), signature=signature, now=MATURE)
    apply_events(now=MATURE)


def test_earnings_leave_by_job_in_whole_cents_and_the_rest_waits(
    cards: GatewayControl, provider: Organisation
) -> None:
    _earn(provider, bid_a=1_504_000, bid_b=6_000, bid_c=2_000)
    create_endpoint(
        organisation=provider,
        created_by=builders.owner_of(provider),
        url="https://93.184.216.34/hook",
        events=["payout.started", "payout.paid"],
        now=NOW,
    )
    for _ in range(2):
        start_due_payouts(now=MATURE)
    payout = Payout.objects.get()
    assert payout.amount_cents == 151
    assert list(Transfer.objects.order_by("group").values_list("group", "amount_cents")) == [
        *(("bid_a", 150), ("bid_b", 1)),
    ]
    assert get_earnings(organisation=provider).payable_micros == 2_000
    assert check_ledger().balanced
    for _ in range(2):
        make_calls(now=MATURE)
    payout.refresh_from_db()
    assert (payout.status, payout.attempts) == ("paid", 1)
    messages = [json.loads(message.body) for message in WebhookMessage.objects.order_by("pk")]
    assert [(each["type"], each["data"]["amount"]) for each in messages] == [
        *(("payout.started", "1.510000"), ("payout.paid", "1.510000")),
    ]
    house = get_house_balances()
    assert (house[AccountKind.PAYOUTS], house[AccountKind.GATEWAY]) == (0, 1_510_000)
    # The part of a cent leaves with the next.
    assert start_payout(organisation_id=provider.pk, now=MATURE) is None
    _earn(provider, bid_d=1_000_000, bid_e=8_000)
    later = MATURE + timedelta(days=8)
    again = start_payout(organisation_id=provider.pk, now=later)
    assert again is not None
    assert again.amount_cents == 101
    make_calls(now=later)
    assert sum(Transfer.objects.values_list("amount_cents", flat=True)) == 252


def test_a_transfer_waits_while_its_earner_is_frozen(
    cards: GatewayControl, provider: Organisation
) -> None:
    _earn(provider, bid_a=1_500_000)
    start_due_payouts(now=MATURE)
    freeze_organisation(organisation_id=provider.pk, reference="cb_1", reason="Why.", now=MATURE)
    make_calls(now=MATURE)
    assert Transfer.objects.get().status == "waiting"
    end_freeze(reference="cb_1", now=MATURE)
    make_calls(now=MATURE + timedelta(days=1))
    assert Transfer.objects.get().status == "done"


def test_a_payout_waits_while_its_earner_is_frozen(
    cards: GatewayControl, provider: Organisation
) -> None:
    _earn(provider, bid_a=1_500_000)
    start_due_payouts(now=MATURE)
    cards.control("fail_payouts", code="account_closed")
    make_calls(now=MATURE)
    make_calls(now=MATURE)
    cards.control("fail_payouts", code="")
    freeze_organisation(organisation_id=provider.pk, reference="cb_1", reason="Why.", now=MATURE)
    tomorrow = MATURE + timedelta(days=1)
    assert retry_failed_payouts(now=tomorrow) == 1
    make_calls(now=tomorrow)
    assert Payout.objects.get().status == "sent"
    assert len(cards.find("payout")) == 1
    end_freeze(reference="cb_1", now=tomorrow)
    make_calls(now=tomorrow + timedelta(days=1))
    assert Payout.objects.get().status == "paid"


def test_a_late_word_of_an_earlier_attempt_says_nothing_of_the_present_one(
    cards: GatewayControl, provider: Organisation
) -> None:
    _earn(provider, bid_a=1_500_000)
    start_due_payouts(now=MATURE)
    cards.control("fail_payouts", code="account_closed")
    for _ in range(2):
        make_calls(now=MATURE)
    cards.control("fail_payouts", code="")
    tomorrow = MATURE + timedelta(days=1)
    assert retry_failed_payouts(now=tomorrow) == 1
    # The event of the first attempt comes once the second one is asked for.
    _receive(cards)
    assert (Payout.objects.get().status, Payout.objects.get().attempts) == ("sent", 2)
    make_calls(now=tomorrow)
    assert retry_failed_payouts(now=tomorrow + timedelta(days=9)) == 0
    assert (Payout.objects.get().status, len(cards.find("payout"))) == ("paid", 2)


def test_nothing_leaves_below_the_threshold_before_it_is_due_or_without_an_account(
    cards: GatewayControl, provider: Organisation
) -> None:
    other = builders.provider_organisation()
    _earn(other, bid_x=50_000_000)
    _earn(provider, bid_a=999_999)
    assert start_due_payouts(now=MATURE) == 0
    assert not Payout.objects.exists()


def test_nothing_leaves_while_an_organisation_is_frozen(
    cards: GatewayControl, provider: Organisation
) -> None:
    _earn(provider, bid_a=5_000_000)
    freeze_organisation(organisation_id=provider.pk, reference="cb", reason="-", now=NOW)
    assert start_due_payouts(now=MATURE) == 0
    assert get_earnings(organisation=provider).payable_micros == 5_000_000
    end_freeze(reference="cb", now=MATURE)
    assert start_due_payouts(now=MATURE) == 1


@pytest.mark.parametrize(
    "fault",
    [{"when": "before"}, {"when": "after"}, {"when": "drop"}, None],
    ids=["fails first", "fails after acting", "answer lost", "process killed"],
)
def test_a_transfer_is_made_once_whatever_fails(
    cards: GatewayControl,
    provider: Organisation,
    monkeypatch: pytest.MonkeyPatch,
    fault: dict[str, Any] | None,
) -> None:
    _earn(provider, bid_a=5_000_000)
    start_due_payouts(now=MATURE)
    if fault is not None:
        cards.control("fail", method="POST", path="/transfers", **fault)
        make_calls(now=MATURE)
    else:
        with monkeypatch.context() as patched:
            patched.setattr("marketplace.common.durable.run._apply", _die)
            with pytest.raises(Killed):
                make_calls(now=MATURE)
    assert Transfer.objects.get().status == "waiting"
    later = MATURE + timedelta(hours=2)
    for _ in range(2):
        make_calls(now=later)
    assert Payout.objects.get().status == "paid"
    made = stripe_client.get_client().v1.transfers.list().data
    assert [(found.amount, found.transfer_group) for found in made] == [(500, "bid_a")]


def _die(*_arguments: object, **_named: object) -> None:
    raise Killed


def test_without_money_at_the_gateway_a_transfer_waits(
    cards: GatewayControl, provider: Organisation
) -> None:
    _earn(provider, bid_a=400_000_000, bid_b=600_000_000 - 400_000_000)
    _earn(provider, bid_c=499_000_000)
    start_due_payouts(now=MATURE)
    make_calls(now=MATURE)
    statuses = set(Transfer.objects.values_list("status", flat=True))
    assert statuses == {"done", "waiting"}
    assert Payout.objects.get().status == "moving"
    assert GatewayCall.objects.get(kind="transfer", status="waiting").error_message != ""


def test_a_payout_that_the_bank_refuses_is_shown_and_tried_again(
    cards: GatewayControl, provider: Organisation
) -> None:
    _earn(provider, bid_a=5_000_000)
    start_due_payouts(now=MATURE)
    cards.control("fail_payouts", code="account_closed")
    for _ in range(2):
        make_calls(now=MATURE)
    _receive(cards)
    payout = Payout.objects.get()
    assert (payout.status, payout.failure) == ("failed", "The bank did not take the payout.")
    assert retry_failed_payouts(now=MATURE) == 0
    cards.control("fail_payouts", code="")
    tomorrow = MATURE + timedelta(days=1)
    assert retry_failed_payouts(now=tomorrow) == 1
    make_calls(now=tomorrow)
    _receive(cards)
    payout.refresh_from_db()
    assert (payout.status, payout.attempts, payout.failure) == ("paid", 2, "")


def test_an_account_that_is_closed_gives_its_earnings_back(
    cards: GatewayControl, provider: Organisation
) -> None:
    _earn(provider, bid_a=5_000_000)
    start_due_payouts(now=MATURE)
    PayoutAccount.objects.update(gateway_id="acct_gone")
    make_calls(now=MATURE)
    assert Payout.objects.get().status == "returned"
    assert get_earnings(organisation=provider).payable_micros == 5_000_000


def test_an_operator_takes_a_transfer_back_once_unless_it_was_paid_out(
    cards: GatewayControl, provider: Organisation
) -> None:
    _earn(provider, bid_a=5_000_000)
    start_due_payouts(now=MATURE)
    cards.control("fail_payouts", code="account_closed")
    for _ in range(2):
        make_calls(now=MATURE)
    transfer = Transfer.objects.get()
    operator = builders.operator()

    def reverse(cents: int, *, by: Any = operator, transfer_id: str = transfer.pk) -> None:
        reverse_transfer(transfer_id=transfer_id, amount_cents=cents, reversed_by=by, now=MATURE)

    with pytest.raises(NotAllowed):
        reverse(100, by=builders.user())
    with pytest.raises(NotFound):
        reverse(100, transfer_id="trf_unknown")
    for cents in (0, -1, 501):
        with pytest.raises(Conflict):
            reverse(cents)
    reverse(200)
    with pytest.raises(Conflict):
        reverse(200)
    make_calls(now=MATURE)
    assert get_house_balances()[AccountKind.REFUNDS] == 2_000_000
    cards.control("fail_payouts", code="")
    later = MATURE + timedelta(days=1)
    retry_failed_payouts(now=later)
    make_calls(now=later)
    assert Payout.objects.get().status == "paid"


def test_nothing_goes_to_the_bank_while_a_part_is_being_taken_back(
    cards: GatewayControl, provider: Organisation
) -> None:
    _earn(provider, bid_a=5_000_000)
    start_due_payouts(now=MATURE)
    make_calls(now=MATURE)
    call, transfer = GatewayCall.objects.get(kind="payout"), Transfer.objects.get()
    by = builders.operator()
    reverse_transfer(transfer_id=transfer.pk, amount_cents=200, reversed_by=by, now=MATURE)
    with pytest.raises(GatewayFault, match="being taken back"):
        make_payout(call)
    reversal = GatewayCall.objects.get(kind="reversal")
    refuse_reversal(reversal, error=UserError("refused", "No."), now=MATURE)
    GatewayCall.objects.filter(pk=reversal.pk).update(status="refused", ended_at=MATURE)
    assert make_payout(call).payout_id == call.subject


def test_what_was_refused_can_be_taken_back_once_the_account_has_it_again(
    cards: GatewayControl, provider: Organisation
) -> None:
    _earn(provider, bid_a=5_000_000)
    start_due_payouts(now=MATURE)
    for _ in range(2):
        make_calls(now=MATURE)
    transfer, operator = Transfer.objects.get(), builders.operator()
    for taken, balance in ((0, 0), (500, 5_000_000)):
        reverse_transfer(
            transfer_id=transfer.pk, amount_cents=500, reversed_by=operator, now=MATURE
        )
        make_calls(now=MATURE)
        transfer.refresh_from_db()
        assert (transfer.reversed_cents, get_house_balances()[AccountKind.REFUNDS]) == (
            *(taken, balance),
        )
        # The bank sends back what it was paid.
        with cards.server.lock:
            account = provider.payout_account.gateway_id
            cards.server.books.move("payout_failure", "po_1", 500, account=account)


def test_a_payout_whose_webhook_was_lost_is_fetched(
    cards: GatewayControl, provider: Organisation
) -> None:
    _earn(provider, bid_a=5_000_000)
    start_due_payouts(now=MATURE)
    for _ in range(2):
        make_calls(now=MATURE)
    payout = Payout.objects.get()
    with cards.server.lock:
        [there] = cards.server.books.find("payout")
        there |= {"status": "failed", "failure_message": "No such account."}
        account = provider.payout_account.gateway_id
        cards.server.books.announce("payout.failed", there, account=account)
    Payout.objects.update(status="sent", ended_at=None)
    cards.take_webhooks()
    assert fetch_missed_events(now=NOW) > 0
    assert fetch_missed_events(now=NOW) == 0
    apply_events(now=MATURE)
    payout.refresh_from_db()
    assert (payout.status, payout.failure) == ("failed", "No such account.")


def test_after_a_restore_nothing_is_paid_a_second_time(
    cards: GatewayControl, provider: Organisation
) -> None:
    """What a payout and its calls did after the backup is at the gateway, and in no row here."""
    _earn(provider, job_a=5_000_000)
    mature_earnings(now=MATURE)
    hold_gateway(backed_up_at=MATURE, now=MATURE)
    assert [each.text for each in run_probes(now=MATURE) if each.label == "Gateway"] == [HELD]
    with pytest.raises(Conflict, match="not compared"):
        resume_gateway(despite_differences=True)
    assert start_due_payouts(now=MATURE) == 0
    assert get_earnings(organisation=provider).payable_micros == 5_000_000
    compare_with_gateway(now=MATURE + timedelta(hours=1))
    # The buyer's payment above is in no book of this market.
    with pytest.raises(Conflict, match="They differ"):
        resume_gateway(despite_differences=False)
    assert is_gateway_held()
    resume_gateway(despite_differences=True)
    assert [each for each in run_probes(now=MATURE) if each.label == "Gateway"] == []
    assert start_due_payouts(now=MATURE) == 1


def test_a_payout_after_the_backup_is_booked_by_two_operators_and_leaves_once(
    cards: GatewayControl, provider: Organisation
) -> None:
    _earn(provider, job_a=5_000_000)
    mature_earnings(now=MATURE)
    hold_gateway(backed_up_at=MATURE, now=MATURE)
    terms = ManualTerms(
        ManualKind.CORRECTION,
        5_000_000,
        "Transfer tr_1 of after the backup",
        source=AccountKind.EARNINGS_PAYABLE,
        target=AccountKind.GATEWAY,
        organisation=provider,
    )
    with pytest.raises(UserError, match="Name an organisation"):
        propose_entry(
            terms=replace(terms, organisation=None), proposed_by=builders.operator(), now=MATURE
        )
    entry = propose_entry(terms=terms, proposed_by=builders.operator(), now=MATURE)
    book_proposed(manual_id=entry.pk, booked_by=builders.operator(), now=MATURE)
    compare_with_gateway(now=MATURE)
    resume_gateway(despite_differences=True)
    assert start_due_payouts(now=MATURE) == 0
    assert get_earnings(organisation=provider).payable_micros == 0
    assert check_ledger().balanced
    # It has nothing more to give.
    again = propose_entry(terms=terms, proposed_by=builders.operator(), now=MATURE)
    with pytest.raises(PaymentRequired):
        book_proposed(manual_id=again.pk, booked_by=builders.operator(), now=MATURE)


def test_a_call_that_waited_at_the_backup_is_booked_where_the_lost_market_made_it(
    cards: GatewayControl, provider: Organisation
) -> None:
    _earn(provider, job_a=5_000_000)
    mature_earnings(now=MATURE)
    assert start_due_payouts(now=MATURE) == 1
    [call] = GatewayCall.objects.filter(kind="transfer")
    # The lost market made it after the backup, and its key is long forgotten.
    sent = make_transfer(call)
    GatewayCall.objects.update(generation=7)
    hold_gateway(backed_up_at=MATURE, now=MATURE)
    make_calls(now=MATURE)
    call.refresh_from_db()
    assert (call.status, call.attempts) == ("done", 1)
    assert [transfer.gateway_id for transfer in Transfer.objects.all()] == [sent]
    # What nobody made yet is not made while it is held.
    make_calls(now=MATURE)
    [call] = GatewayCall.objects.filter(kind="payout")
    assert call.status == "waiting"
    assert cards.find("payout") == []
    compare_with_gateway(now=MATURE)
    resume_gateway(despite_differences=True)
    make_calls(now=MATURE + timedelta(days=1))
    assert (len(cards.find("transfer")), len(cards.find("payout"))) == (1, 1)
