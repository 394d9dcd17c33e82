"""The gateway: cards are declined, answers and events are lost, doubled and out of order."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from contextlib import suppress
from datetime import datetime, timedelta
from typing import Any, ClassVar

import pytest
from django.conf import settings
from django.db.models import Sum

from marketplace.auction.models import Bid, BidStatus
from marketplace.auction.selectors import annotate_refunds
from marketplace.payments.card_payments import refresh_payment
from marketplace.payments.models import (
    CallStatus,
    CardPayment,
    GatewayCall,
    PaymentStatus,
    WebhookEvent,
)
from marketplace.payments.outbox import MAKE_CALL
from marketplace.payments.selectors import get_wallet
from marketplace.payments.stripe_client import GatewayFault
from marketplace.payments.webhooks import APPLY_EVENT, receive_webhook
from tests.durable_work import apply_events, make_calls
from tests.stand_in import ACCOUNTS_SECRET, WEBHOOK_SECRET, GatewayControl
from tests.world.actors import Actor, Turn
from tests.world.owners import CardOwner
from tests.world.world import World, make_owner

CARDS = ("pm_card_visa", "pm_card_visa", "pm_card_visa", "pm_card_chargeDeclined")
MICROS_A_CENT = 10_000


def find_intents(gateway: GatewayControl) -> dict[str, dict[str, Any]]:
    return {intent["id"]: intent for intent in gateway.find("payment_intent")}


class GatewayOwner(CardOwner):
    """Pays with a card of the gateway's, as its page does."""

    gateway: ClassVar[GatewayControl]

    def choose_data(self, world: World) -> dict[str, Any]:
        # A card pays half a dollar at least.
        price = world.rng.choice([600_000, 2_000_000, 5_000_000])
        return super().choose_data(world) | {"price_micros": price}

    def authorise(
        self, world: World, asked: dict[str, Any], key: str, now: datetime
    ) -> CardPayment:
        payment = self.start_payment(world, asked, key, now)
        world.run_task(MAKE_CALL)
        payment.refresh_from_db()
        if payment.gateway_id and payment.status == PaymentStatus.OPEN:
            intent = find_intents(self.gateway)[payment.gateway_id]
            card = world.rng.choice(CARDS)
            # The gateway may fail the owner's browser, too.
            with suppress(OSError):
                self.gateway.confirm(intent["id"], intent["client_secret"], card)
            if find_intents(self.gateway)[payment.gateway_id]["status"] == "requires_action":
                self.gateway.answer_bank(intent["id"], is_confirmed=world.rng.random() < 0.9)
            if world.rng.random() < 0.7:
                # Else the owner leaves the page, and an event tells.
                with suppress(GatewayFault):
                    refresh_payment(payment=payment, now=now)
        return CardPayment.objects.select_related("organisation", "created_by").get(pk=payment.pk)


class Gateway(Actor):
    control: ClassVar[GatewayControl]

    def __init__(self, world: World, patch: pytest.MonkeyPatch) -> None:
        super().__init__(world, patch)
        self.control.control("reset")
        GatewayOwner.gateway = self.control
        for name, value in {
            "STRIPE_SECRET_KEY": self.control.secret_key,
            "STRIPE_PUBLISHABLE_KEY": self.control.publishable_key,
            "STRIPE_WEBHOOK_SECRET": WEBHOOK_SECRET,
            "STRIPE_ACCOUNTS_WEBHOOK_SECRET": ACCOUNTS_SECRET,
            "STRIPE_API_URL": self.control.url,
            "CARD_LEAST_CENTS": 50,
            **{
                f"{limit}_CENTS": 10**12
                for limit in ("CARD_DAY", "CARD_FIRST", "CARD_BACK", "CARD_FIRST_BACK")
            },
            "CARD_BACK_ALL_CENTS": 10**12,
        }.items():
            patch.setattr(settings, name, value)
        self.owner = make_owner(world.zone, GatewayOwner, usd="0.01")
        world.owners[0] = self.owner
        self.events = Counter[str]()

    def list_turns(self) -> Sequence[Turn]:
        return (
            (6, "the gateway's events come", self.deliver),
            (3, "the gateway fails", self.fail),
            (5, "the gateway is called", lambda: self.world.run_task(MAKE_CALL)),
            (4, "events are applied", lambda: self.world.run_task(APPLY_EVENT)),
            (2, "missed events are fetched", lambda: self.world.run_task("payments.events_fetch")),
        )

    def deliver(self) -> None:
        events = self.control.take_webhooks()
        self.world.rng.shuffle(events)
        for body, signature in events:
            draw = self.world.rng.random()
            copies = 0 if draw < 0.2 else 2 if draw < 0.4 else 1
            self.events[("lost", "once", "twice")[copies]] += 1
            for _ in range(copies):
                receive_webhook(body=body.encode(), signature=signature, now=self.world.now)

    def fail(self) -> None:
        when = self.world.rng.choice(["before", "after", "drop"])
        method = self.world.rng.choice(["POST", "GET"])
        self.control.control("fail", method=method, path="/v1/", when=when, status=500)

    def settle(self) -> None:
        with self.control.server.lock:
            self.control.server.faults.clear()
        self.control.take_webhooks()
        # Past the pauses after failures; the events that were lost are fetched.
        later = self.world.now + timedelta(hours=2)
        make_calls(now=later)
        self.world.run_task("payments.events_fetch")
        apply_events(now=later)

    def is_at_rest(self) -> bool:
        return not (
            GatewayCall.objects.filter(status=CallStatus.WAITING).exists()
            or WebhookEvent.objects.filter(done_at=None).exists()
        )

    def check(self) -> None:
        """At the gateway no row of ours has two payments or refunds."""
        for kind in ("payment_intent", "refund"):
            things = self.control.find(kind)
            named = Counter(thing["metadata"].get("finetender") for thing in things)
            assert max(named.values(), default=0) <= 1, (kind, named)

    def check_rest(self) -> None:
        """What cards paid, less what went back to them, is what bids cost."""
        intents, cents = find_intents(self.control), 0
        for payment in CardPayment.objects.exclude(gateway_id=None):
            intent = intents[payment.gateway_id]
            is_paid = payment.status == PaymentStatus.PAID
            assert (intent["status"] == "succeeded") == is_paid, (payment.pk, payment.status)
            cents += intent["amount_received"]
        cents -= sum(refund["amount"] for refund in self.control.find("refund"))
        own = annotate_refunds(Bid.objects.filter(organisation=self.owner.organisation))
        bids = own.filter(status=BidStatus.ADMITTED).aggregate(
            payment=Sum("payment_micros"), back=Sum("refund_micros"), credit=Sum("credit_micros")
        )
        cost = (bids["payment"] or 0) - (bids["back"] or 0) - (bids["credit"] or 0)
        wallet = get_wallet(organisation=self.owner.organisation)
        left = wallet.available_micros + wallet.held_micros - MICROS_A_CENT
        assert cents * MICROS_A_CENT == cost + left, (cents, cost, left)

    def describe(self) -> str:
        told = ", ".join(f"{how} {count}" for how, count in sorted(self.events.items()))
        return f"card payments {CardPayment.objects.count()}, events of the gateway {told or 0}"
