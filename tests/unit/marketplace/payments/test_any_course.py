"""Money by card in any course of events: each amount moves once, and nothing is lost.

Hypothesis drives top-ups, bids, refunds, chargebacks, payouts and reversals in any order, while
webhooks come late, twice, in another order or never, the gateway fails before or after it acted,
and the market's process dies before or after any commit and any call. Then beat's tasks run until
nothing waits, and the ledger, the gateway's movements and every hold are compared.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager, suppress
from datetime import timedelta
from http.client import RemoteDisconnected
from typing import Any, ClassVar
from unittest.mock import patch

import pytest
from django.db import connection, transaction
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, rule, run_state_machine_as_test

from marketplace.common.durable import run as durable_run
from marketplace.common.errors import UserError
from marketplace.payments import (
    stripe_accounts,
    stripe_client,
)
from marketplace.payments import stripe_gateway as gateway
from marketplace.payments.card_payments import (
    cancel_payment,
    refresh_payment,
    start_payment,
    to_cents,
)
from marketplace.payments.card_refunds import return_to_card
from marketplace.payments.earnings import distribute_charge
from marketplace.payments.holds import HoldRequest, HoldSettlement, place_holds, settle_holds
from marketplace.payments.ledger_checks import check_ledger
from marketplace.payments.maturity import mature_earnings
from marketplace.payments.models import (
    AccountKind,
    CallStatus,
    CardPayment,
    Entry,
    GatewayCall,
    Hold,
    HoldStatus,
    PaymentPurpose,
    Payout,
    Transfer,
    WebhookEvent,
)
from marketplace.payments.payout_calls import retry_failed_payouts
from marketplace.payments.payouts import (
    open_payout_account,
    refresh_payout_account,
    start_due_payouts,
)
from marketplace.payments.reconciliation import reconcile
from marketplace.payments.selectors import get_house_balances
from marketplace.payments.services import Share, refund_charge
from marketplace.payments.stripe_client import GatewayFault
from marketplace.payments.stripe_gateway import CARD_MIN_CENTS
from marketplace.payments.top_ups import list_cards, set_wallet_rules, start_top_up, watch_wallets
from marketplace.payments.transfer_reversals import reverse_transfer
from marketplace.payments.webhooks import fetch_missed_events, receive_webhook
from tests import builders
from tests.builders import NOW
from tests.durable_work import apply_events, make_calls
from tests.outer_blocks import build_outer_block
from tests.stand_in import GatewayControl

pytestmark = pytest.mark.django_db

BUYERS = 2
#: From the least a card pays to the most; the odd ones end in a part of a cent.
AMOUNTS = (500_000, 1_000_001, 12_345_678, 40_000_000, 999_999_990_000)
CARDS = (
    "pm_card_visa",
    "pm_card_visa",
    "pm_card_chargeDeclined",
    "pm_card_authenticationRequired",
    "pm_card_createDispute",
)
RETURN_URL = "http://127.0.0.1/back"

amounts = st.sampled_from(AMOUNTS)
#: Which of the things there are, however many.
picks = st.integers(0, 7)
#: The commit or call, before or after it, at which the process dies; 0: it lives.
deaths = st.just(0) | st.integers(1, 12)


class Killed(BaseException):
    """The process died here."""


class Deaths:
    """Counts the points at which a process can die, and dies at one."""

    def __init__(self) -> None:
        self.left = 0

    def pass_point(self) -> None:
        self.left -= 1
        if self.left == 0:
            raise Killed

    @contextmanager
    def watch(self, *, depth: int) -> Iterator[None]:
        """Commits are the ends of blocks at ``depth``: all of it is in one transaction."""
        leave, call = transaction.Atomic.__exit__, stripe_client.call_gateway

        def left(block: Any, kind: Any, error: Any, traceback: Any) -> Any:
            if kind is not None or len(connection.atomic_blocks) != depth + 1:
                return leave(block, kind, error, traceback)
            try:
                self.pass_point()
            except Killed as killed:
                leave(block, Killed, killed, killed.__traceback__)
                raise
            leave(block, None, None, None)
            self.pass_point()
            return None

        def called(make: Callable[[], Any]) -> Any:
            self.pass_point()
            answer = call(make)
            self.pass_point()
            return answer

        with (
            patch.object(transaction.Atomic, "__exit__", left),
            patch.object(stripe_client, "call_gateway", called),
            patch.object(gateway, "call_gateway", called),
            patch.object(stripe_accounts, "call_gateway", called),
        ):
            yield


class MoneyMachine(RuleBasedStateMachine):
    """A market with two buyers and a provider, its gateway, and what goes wrong."""

    cards: ClassVar[GatewayControl]

    def __init__(self) -> None:
        super().__init__()
        self.stack = ExitStack()
        self.cards.control("reset")
        self.stack.enter_context(build_outer_block())
        self.now = NOW
        self.made = 0
        self.deaths = Deaths()
        self.errors: list[str] = []
        self.buyers = [builders.organisation() for _ in range(BUYERS)]
        self.operator = builders.operator()
        self.seller = builders.provider_organisation()
        open_payout_account(organisation=self.seller, now=NOW, return_url=RETURN_URL)
        self.cards.control("onboard", account=self.seller.payout_account.gateway_id)
        refresh_payout_account(self.seller.pk)
        self.stack.enter_context(self.deaths.watch(depth=len(connection.atomic_blocks)))
        self.stack.enter_context(
            patch.object(durable_run.log, "error", lambda *told, **_: self.errors.append(str(told)))
        )

    def attempt(self, action: Callable[[], Any], *, death: int = 0) -> Any:
        """Run it in a process that may die; what it is refused leaves no trace."""
        self.deaths.left = death
        try:
            return action()
        except (Killed, UserError, GatewayFault):
            return None
        finally:
            self.deaths.left = 0

    def name(self, what: str) -> str:
        self.made += 1
        return f"{what}_{self.made}"

    def pick(self, rows: Any, number: int) -> Any:
        found = list(rows)
        return found[number % len(found)] if found else None

    # What buyers do

    @rule(buyer=picks, amount=amounts, death=deaths, saved=st.booleans())
    def top_up(self, buyer: int, amount: int, death: int, saved: bool) -> None:
        organisation = self.buyers[buyer % BUYERS]
        cards = list_cards(organisation) if saved else []

        def start() -> None:
            start_top_up(
                organisation=organisation,
                amount_micros=amount // 10_000 * 10_000,
                asked_by=builders.owner_of(organisation),
                key=self.name("form"),
                card_id=cards[0].pk if cards else None,
                saves_card=True,
                now=self.now,
            )
            make_calls(now=self.now)

        self.attempt(start, death=death)

    @rule(buyer=picks, amount=amounts, death=deaths)
    def bid_by_card(self, buyer: int, amount: int, death: int) -> None:
        organisation = self.buyers[buyer % BUYERS]

        def start() -> None:
            start_payment(
                organisation=organisation,
                purpose=PaymentPurpose.BID,
                amount_cents=to_cents(amount),
                created_by=None,
                key=self.name("bid"),
                terms={"price_micros": amount},
                now=self.now,
            )
            make_calls(now=self.now)

        self.attempt(start, death=death)

    @rule(number=picks, card=st.sampled_from(CARDS))
    def give_a_card(self, number: int, card: str) -> None:
        payment = self.pick(self.list_open_payments(), number)
        if payment is not None:
            intent = self.find_intent(payment)
            # The page's script may get no answer, either.
            with suppress(RemoteDisconnected):
                self.cards.confirm(intent["id"], intent["client_secret"], card)

    @rule(number=picks, is_confirmed=st.booleans())
    def answer_the_bank(self, number: int, is_confirmed: bool) -> None:
        payment = self.pick(self.list_open_payments(), number)
        if payment is not None:
            self.cards.answer_bank(payment.gateway_id, is_confirmed=is_confirmed)

    @rule(number=picks, death=deaths)
    def look_at_the_page(self, number: int, death: int) -> None:
        payment = self.pick(CardPayment.objects.order_by("pk"), number)
        if payment is not None:
            self.attempt(lambda: refresh_payment(payment=payment, now=self.now), death=death)
            self.attempt(self.place_authorised_bids, death=death)

    @rule(number=picks, death=deaths)
    def give_up(self, number: int, death: int) -> None:
        payment = self.pick(CardPayment.objects.order_by("pk"), number)
        if payment is not None:
            self.attempt(lambda: cancel_payment(payment_id=payment.pk, now=self.now), death=death)

    @rule(buyer=picks, amount=amounts)
    def bid_by_wallet(self, buyer: int, amount: int) -> None:
        asked = HoldRequest(self.buyers[buyer % BUYERS].pk, amount, self.name("bid"))
        place_holds(wanted=[asked], now=self.now)

    @rule(number=picks, cents=st.sampled_from([1, 50, 1_234]), death=deaths)
    def send_back(self, number: int, cents: int, death: int) -> None:
        payment = self.pick(CardPayment.objects.order_by("pk"), number)
        if payment is not None:
            self.attempt(
                lambda: return_to_card(
                    payment_id=payment.pk,
                    amount_cents=cents,
                    reference=self.name("back"),
                    now=self.now,
                ),
                death=death,
            )

    @rule(buyer=picks)
    def fill_up_by_itself(self, buyer: int) -> None:
        organisation = self.buyers[buyer % BUYERS]
        for card in list_cards(organisation)[:1]:
            set_wallet_rules(
                organisation=organisation,
                notice_below_micros=None,
                auto_card_id=card.pk,
                auto_below_micros=5_000_000,
                auto_amount_cents=2_000,
            )

    # What the auction and jobs do

    @rule(number=picks, percent=st.sampled_from([None, 0, 1, 37, 100]), death=deaths)
    def decide(self, number: int, percent: int | None, death: int) -> None:
        hold = self.pick(Hold.objects.filter(status=HoldStatus.HELD).order_by("pk"), number)
        if hold is not None:
            charge = None if percent is None else hold.amount_micros * percent // 100
            self.attempt(lambda: self.settle(hold.reference, charge), death=death)

    @rule(number=picks, percent=st.sampled_from([1, 50, 100]), death=deaths)
    def refund(self, number: int, percent: int, death: int) -> None:
        hold = self.pick(Hold.objects.filter(charged_micros__gt=0).order_by("pk"), number)
        if hold is not None:
            self.attempt(
                lambda: refund_charge(
                    hold_reference=hold.reference,
                    amount_micros=max(1, hold.charged_micros * percent // 100),
                    reason=f"{percent} %",
                    now=self.now,
                ),
                death=death,
            )

    @rule(number=picks, death=deaths)
    def share_out(self, number: int, death: int) -> None:
        hold = self.pick(Hold.objects.filter(status=HoldStatus.CHARGED).order_by("pk"), number)
        if hold is not None:
            left = hold.charged_micros - hold.refunded_micros
            split = builders.cost_split(Share(self.seller.pk, left // 2))
            self.attempt(
                lambda: distribute_charge(hold_reference=hold.reference, split=split, now=self.now),
                death=death,
            )

    @rule(number=picks, death=deaths)
    def take_a_transfer_back(self, number: int, death: int) -> None:
        transfer = self.pick(Transfer.objects.order_by("pk"), number)
        if transfer is not None:
            self.attempt(
                lambda: reverse_transfer(
                    transfer_id=transfer.pk,
                    amount_cents=transfer.amount_cents,
                    reversed_by=self.operator,
                    now=self.now,
                ),
                death=death,
            )

    # What goes wrong

    @rule(
        when=st.sampled_from(["before", "after", "drop"]),
        method=st.sampled_from(["POST", "GET"]),
        status=st.sampled_from([500, 429, 409]),
    )
    def break_the_gateway(self, when: str, method: str, status: int) -> None:
        # What was refused for being too much, or too early, was not done.
        fault = {"when": when, "status": 500 if when == "after" else status}
        self.cards.control("fail", method=method, path="/v1/", **fault)

    @rule(is_failing=st.booleans())
    def break_the_bank(self, is_failing: bool) -> None:
        self.cards.control("fail_payouts", code="account_closed" if is_failing else "")

    @rule(number=picks)
    def contest_a_payment(self, number: int) -> None:
        known = {thing["payment_intent"] for thing in self.cards.find("dispute")}
        paid = [
            intent
            for intent in self.cards.find("payment_intent")
            if intent["status"] == "succeeded" and intent["id"] not in known
        ]
        intent = self.pick(paid, number)
        if intent is not None:
            self.cards.control("dispute", payment_intent=intent["id"])

    @rule(number=picks, won=st.booleans())
    def decide_a_chargeback(self, number: int, won: bool) -> None:
        waiting = [d for d in self.cards.find("dispute") if d["status"] == "needs_response"]
        dispute = self.pick(waiting, number)
        if dispute is not None:
            self.cards.control("close_dispute", id=dispute["id"], won=won)

    @rule(is_reversed=st.booleans(), copies=st.integers(0, 2), death=deaths)
    def deliver_webhooks(self, is_reversed: bool, copies: int, death: int) -> None:
        """Without a copy they are lost."""
        events = self.cards.take_webhooks()

        def receive() -> None:
            for body, signature in (events[::-1] if is_reversed else events) * copies:
                receive_webhook(body=body.encode(), signature=signature, now=self.now)
            apply_events(now=self.now)

        self.attempt(receive, death=death)

    @rule(hours=st.sampled_from([1, 3, 24, 24 * 8]))
    def wait(self, hours: int) -> None:
        self.now += timedelta(hours=hours)
        self.cards.control("advance", seconds=3600 * hours)

    # What beat does

    @rule(number=picks, death=deaths)
    def run_a_task(self, number: int, death: int) -> None:
        task = self.list_tasks()[number % len(self.list_tasks())]
        self.attempt(task, death=death)

    def list_tasks(self) -> list[Callable[[], Any]]:
        return [
            lambda: make_calls(now=self.now),
            lambda: apply_events(now=self.now),
            lambda: fetch_missed_events(now=self.now),
            lambda: watch_wallets(now=self.now),
            lambda: mature_earnings(now=self.now),
            lambda: start_due_payouts(now=self.now),
            lambda: retry_failed_payouts(now=self.now),
            self.place_authorised_bids,
        ]

    def place_authorised_bids(self) -> None:
        """As the auction does with bids whose cards are authorised."""
        waiting = CardPayment.objects.filter(
            purpose=PaymentPurpose.BID, status="authorised", failure="", hold=None
        )
        for payment in waiting:
            asked = HoldRequest(
                payment.organisation_id, payment.terms["price_micros"], payment.key, payment.pk
            )
            [outcome] = place_holds(wanted=[asked], now=self.now)
            if not isinstance(outcome, Hold):
                cancel_payment(payment_id=payment.pk, now=self.now)

    def settle(self, reference: str, charge: int | None) -> None:
        with transaction.atomic():
            settle_holds(settlements=[HoldSettlement(reference, charge)], now=self.now)

    def find_intent(self, payment: CardPayment) -> dict[str, Any]:
        [intent] = [
            intent
            for intent in self.cards.find("payment_intent")
            if intent["id"] == payment.gateway_id
        ]
        return intent

    def list_open_payments(self) -> Any:
        return CardPayment.objects.filter(
            status__in=["open", "action"], gateway_id__isnull=False
        ).order_by("pk")

    # What holds at every moment, and in the end

    @invariant()
    def books_balance(self) -> None:
        check = check_ledger()
        assert check.balanced, check
        assert self.errors == []

    @invariant()
    def nothing_is_asked_for_twice(self) -> None:
        """At the gateway no row of ours has two payments, refunds, transfers or payouts."""
        for kind in ("payment_intent", "refund", "transfer", "payout"):
            named = Counter(thing["metadata"].get("finetender") for thing in self.cards.find(kind))
            assert max(named.values(), default=0) <= 1, (kind, named)

    def teardown(self) -> None:
        try:
            self.recover()
            self.check_the_end()
            entries = Entry.objects.count()
            self.recover()
            assert Entry.objects.count() == entries
            with connection.cursor() as cursor:
                # The triggers that wait for the commit speak up here.
                cursor.execute("SET CONSTRAINTS ALL IMMEDIATE")
        finally:
            transaction.set_rollback(True)
            self.stack.close()

    def recover(self) -> None:
        """Everything works again, every bid is decided, and beat goes on for some hours."""
        with self.cards.server.lock:
            self.cards.server.faults.clear()
        self.cards.control("fail_payouts", code="")
        for _ in range(6):
            self.now += timedelta(hours=5)
            for task in self.list_tasks():
                task()
            for hold in Hold.objects.filter(status=HoldStatus.HELD):
                self.settle(hold.reference, None)

    def check_the_end(self) -> None:
        self.books_balance()
        assert not Hold.objects.filter(status=HoldStatus.HELD).exists()
        assert not WebhookEvent.objects.filter(done_at=None).exists()
        waiting = GatewayCall.objects.filter(status=CallStatus.WAITING)
        # The gateway moves to providers only what buyers' cards have brought.
        assert [call for call in waiting if "insufficient funds" not in call.error_message] == []
        house = get_house_balances()
        assert house[AccountKind.AUTHORISED] == house[AccountKind.CARD_REFUNDS] == 0
        found = reconcile(now=self.now)
        assert found.is_right, found
        for payment in CardPayment.objects.filter(gateway_id__isnull=False):
            self.check_payment(payment)
        for payout in Payout.objects.filter(status="sent"):
            raise AssertionError(f"{payout} is still on its way")

    def check_payment(self, payment: CardPayment) -> None:
        intent = self.find_intent(payment)
        assert (intent["status"] == "succeeded") == (payment.status == "paid"), payment
        hold = Hold.objects.filter(card_payment=payment).first()
        if payment.status == "paid" and hold is not None:
            price = max(CARD_MIN_CENTS, to_cents(hold.charged_micros))
            assert payment.received_cents == price, (payment, hold)


def _run(cards: GatewayControl, *, examples: int, steps: int) -> None:
    MoneyMachine.cards = cards
    run_state_machine_as_test(
        MoneyMachine, settings=settings(max_examples=examples, stateful_step_count=steps)
    )


@pytest.fixture(autouse=True)
def wide_limits(settings: Any) -> None:
    """Cards pay and take back any amount, and little is paid out."""
    settings.CARD_LEAST_CENTS = 50
    for name in ("CARD_DAY", "CARD_FIRST", "CARD_BACK", "CARD_FIRST_BACK", "CARD_BACK_ALL"):
        setattr(settings, f"{name}_CENTS", 10**12)
    settings.PAYOUT_THRESHOLD_MICROS = 100_000


def test_any_course_of_events_moves_each_amount_once(cards: GatewayControl) -> None:
    _run(cards, examples=5, steps=25)


@pytest.mark.nightly
def test_any_of_many_courses_of_events_moves_each_amount_once(cards: GatewayControl) -> None:
    _run(cards, examples=400, steps=60)
