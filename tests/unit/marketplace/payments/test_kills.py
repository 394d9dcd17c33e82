"""Money when a process is killed: at each commit and each call, and then everything is done again.

A child process runs a purchase from its card to the provider's payout and is killed, with nothing
written down, at one point. What follows runs the same purchase again, as a retried request and the
sweeps do. In the end each amount has moved once, here and at the gateway.
"""

from __future__ import annotations

import os
import signal
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from datetime import timedelta
from typing import Any
from unittest.mock import patch

import pytest
from django.db import connections
from django.db.backends.base.base import BaseDatabaseWrapper

from marketplace.accounts.models import Organisation
from marketplace.payments import stripe_accounts, stripe_client
from marketplace.payments import stripe_gateway as gateway
from marketplace.payments.card_payments import refresh_payment, start_payment
from marketplace.payments.holds import HoldRequest, HoldSettlement, place_holds, settle_holds
from marketplace.payments.ledger_checks import check_ledger
from marketplace.payments.maturity import mature_earnings
from marketplace.payments.models import (
    AccountKind,
    CardPayment,
    CardRefund,
    Hold,
    PaymentPurpose,
    Payout,
)
from marketplace.payments.payouts import open_payout_account, refresh_payout_account, start_payout
from marketplace.payments.reconciliation import reconcile
from marketplace.payments.selectors import Wallet, get_house_balances, get_wallet
from marketplace.payments.services import Share, distribute_charge, refund_charge
from marketplace.payments.webhooks import receive_webhook
from tests import builders
from tests.builders import NOW
from tests.durable_work import apply_events, make_calls
from tests.stand_in import GatewayControl

pytestmark = pytest.mark.django_db(transaction=True)

MATURE = NOW + timedelta(days=8)
#: Claims of a killed process have run out, and calls that waited are due.
AGAIN = timedelta(hours=2)
PRICE, EARNED, REFUNDED = 8_004_000, 5_000_000, 1_000_000
#: Every such point is one of a purchase's; nightly tries all of them.
EVERY = 15


class Purchase:
    """A card authorises a bid, the bid wins, a part is refunded, the provider is paid out."""

    def __init__(self, cards: GatewayControl, buyer: Organisation, seller: Organisation) -> None:
        self.cards, self.buyer, self.seller = cards, buyer, seller
        self.name = f"bid:{buyer.pk}"

    def run(self, *, late: timedelta = timedelta(0)) -> None:
        """All of it; what was done before is found and not done again."""
        now = NOW + late
        payment = self._authorise(now)
        if not Hold.objects.filter(reference=self.name).exists():
            asked = HoldRequest(self.buyer.pk, 10_000_000, self.name, payment.pk)
            place_holds(wanted=[asked], now=now)
        settle_holds(settlements=[HoldSettlement(self.name, PRICE)], now=now)
        refund_charge(hold_reference=self.name, amount_micros=REFUNDED, reason="late", now=now)
        split = builders.cost_split(Share(self.seller.pk, EARNED))
        distribute_charge(hold_reference=self.name, split=split, now=NOW)
        self._settle(now)
        mature_earnings(now=MATURE + late)
        start_payout(organisation_id=self.seller.pk, now=MATURE + late)
        self._settle(MATURE + late)

    def _authorise(self, now: Any) -> CardPayment:
        payment = start_payment(
            organisation=self.buyer,
            purpose=PaymentPurpose.BID,
            amount_cents=1_000,
            created_by=None,
            key="bid",
            terms={},
            now=now,
        )
        make_calls(now=now)
        payment.refresh_from_db()
        assert payment.gateway_id is not None
        intent = gateway.get_intent(payment.gateway_id)
        if intent.status == "requires_payment_method":
            self.cards.confirm(payment.gateway_id, intent.client_secret)
        payment, _ = refresh_payment(payment=payment, now=now)
        return payment

    def _settle(self, now: Any) -> None:
        for _ in range(3):
            make_calls(now=now)
        for body, signature in self.cards.take_webhooks():
            receive_webhook(body=body.encode(), signature=signature, now=now)
        apply_events(now=now)

    def check(self) -> None:
        """Each amount moved once."""
        hold = Hold.objects.get(reference=self.name)
        assert (hold.charged_micros, hold.refunded_micros) == (PRICE, REFUNDED)
        payment = CardPayment.objects.get(organisation=self.buyer)
        # The price in whole cents; what is above it is in the wallet.
        assert (payment.status, payment.received_cents) == ("paid", 801)
        assert get_wallet(organisation=self.buyer) == Wallet(6_000, 0)
        [refund] = CardRefund.objects.filter(payment=payment)
        assert (refund.status, refund.amount_cents) == ("done", 100)
        [payout] = Payout.objects.filter(organisation=self.seller)
        assert (payout.status, payout.amount_cents) == ("paid", 500)


@contextmanager
def _points(at: Callable[[], None]) -> Iterator[None]:
    """Before and after each commit, and before and after each call of the gateway."""
    commit, call = BaseDatabaseWrapper.commit, stripe_client.call_gateway

    def committed(self: Any) -> Any:
        at()
        commit(self)
        at()

    def called(make: Callable[[], Any]) -> Any:
        at()
        answer = call(make)
        at()
        return answer

    with (
        patch.object(BaseDatabaseWrapper, "commit", committed),
        patch.object(gateway, "call_gateway", called),
        patch.object(stripe_accounts, "call_gateway", called),
    ):
        yield


def _is_killed(run: Callable[[], None], *, point: int) -> bool:
    """Run in a child that is killed when it comes to a point; whether it came that far."""
    connections.close_all()
    child = os.fork()
    if child == 0:
        passed = 0

        def count() -> None:
            nonlocal passed
            passed += 1
            if passed == point:
                os.kill(os.getpid(), signal.SIGKILL)

        try:
            with _points(count):
                run()
        except BaseException:
            # Or it would go on as a second run of the tests.
            os._exit(1)
        os._exit(0)
    _, status = os.waitpid(child, 0)
    assert not os.WIFEXITED(status) or os.WEXITSTATUS(status) == 0
    return os.WIFSIGNALED(status)


@pytest.fixture
def seller_of(cards: GatewayControl, settings: Any) -> Callable[[], Organisation]:
    settings.PAYOUT_THRESHOLD_MICROS = 1_000_000

    def make() -> Organisation:
        made = builders.provider_organisation()
        open_payout_account(organisation=made, now=NOW, return_url="http://127.0.0.1/back")
        cards.control("onboard", account=made.payout_account.gateway_id)
        refresh_payout_account(made.pk)
        return made

    return make


def _kill_at(points: range, cards: GatewayControl, seller_of: Callable[[], Organisation]) -> int:
    """How many purchases were killed; each was finished by running it again."""
    killed = 0
    for point in points:
        purchase = Purchase(cards, builders.organisation(), seller_of())
        if not _is_killed(purchase.run, point=point):
            break
        killed += 1
        purchase.run(late=AGAIN)
        purchase.check()
    assert check_ledger().balanced, check_ledger()
    house = get_house_balances()
    assert house[AccountKind.AUTHORISED] == house[AccountKind.PAYOUTS] == 0
    found = reconcile(now=NOW)
    assert found.is_right, found
    return killed


def test_a_killed_process_moves_nothing_twice_and_loses_nothing(
    cards: GatewayControl, seller_of: Callable[[], Organisation]
) -> None:
    assert _kill_at(range(1, 1_000, EVERY), cards, seller_of) >= 8


@pytest.mark.nightly
@pytest.mark.parametrize("first", range(2, EVERY + 1))
def test_a_process_killed_anywhere_moves_nothing_twice(
    cards: GatewayControl, seller_of: Callable[[], Organisation], first: int
) -> None:
    assert _kill_at(range(first, 1_000, EVERY), cards, seller_of) >= 8
