"""The stand-in's objects by id, its events and its movements of money."""

from __future__ import annotations

import secrets
import time
from typing import Any

from marketplace.embedded.stripe_stand_in.delivery import WebhookSender
from marketplace.embedded.stripe_stand_in.faults import refuse_missing, refuse_request

Thing = dict[str, Any]

#: Objects that say whether their money is real.
WITH_MODE = {
    *("charge", "customer", "dispute", "payment_intent", "payment_method", "payout", "transfer"),
    *("tax.calculation", "tax.transaction"),
}


class Store:
    """All objects by id. Call its methods while holding the server's lock."""

    def __init__(self, *, url: str, delivery: WebhookSender, api_version: str) -> None:
        self.url = url
        self.delivery = delivery
        self.api_version = api_version
        self.clear()

    def clear(self) -> None:
        self.things: dict[str, Thing] = {}
        #: Seconds that a test moved the clock forward.
        self.ahead_s = 0.0
        #: Seconds after which what a card paid can leave.
        self.pending_s = 0
        #: What the market's own account settles in, and what a dollar is worth in each currency.
        self.currency = "usd"
        self.rates = {"usd": 1.0, "eur": 0.92}
        #: Reason that the next payouts to banks fail with; empty: they arrive.
        self.payout_failure = ""

    def now(self) -> int:
        return int(time.time() + self.ahead_s)

    def get(self, kind: str, name: str) -> Thing:
        found = self.things.get(name)
        if found is None or found["object"] != kind:
            raise refuse_missing(kind, name)
        return found

    def find(self, kind: str, **wanted: Any) -> list[Thing]:
        """Objects of a kind with these values, the latest first."""
        return [
            thing
            for thing in reversed(self.things.values())
            if thing["object"] == kind and all(thing.get(k) == v for k, v in wanted.items())
        ]

    def add(self, prefix: str, kind: str, **values: Any) -> Thing:
        thing = {
            "id": f"{prefix}_{secrets.token_hex(12)}",
            "object": kind,
            "created": self.now(),
            **({"livemode": False} if kind in WITH_MODE else {}),
            **values,
        }
        self.things[thing["id"]] = thing
        return thing

    def announce(self, kind: str, thing: Thing, *, account: str = "") -> None:
        event: Thing = {
            "id": f"evt_{secrets.token_hex(12)}",
            "object": "event",
            "api_version": self.api_version,
            "created": self.now(),
            "data": {"object": {k: v for k, v in thing.items() if not k.startswith("_")}},
            "livemode": False,
            "pending_webhooks": 1,
            "request": None,
            "type": kind,
        }
        if account:
            event["account"] = account
        self.things[event["id"]] = {**event, "_account": account, "_is_delivered": False}
        self.delivery.add(event)

    def note_delivery(self, name: str) -> None:
        if name in self.things:
            self.things[name]["_is_delivered"] = True

    def move(
        self,
        kind: str,
        source: str,
        amount: int,
        *,
        fee: int = 0,
        account: str = "",
        currency: str = "usd",
    ) -> Thing:
        """A balance transaction, in what the account settles in."""
        settles_in = self.find_currency(account)
        rate = self.rates[settles_in] / self.rates[currency]
        amount, fee = round(amount * rate), round(fee * rate)
        return self.add(
            "txn",
            "balance_transaction",
            amount=amount,
            fee=fee,
            net=amount - fee,
            currency=settles_in,
            type=kind,
            source=source,
            available_on=self.now() + (self.pending_s if kind == "charge" else 0),
            exchange_rate=None if settles_in == currency else rate,
            fee_details=[],
            _account=account,
        )

    def settle(self, currency: str, *, rate: float) -> None:
        """Let the market's own account settle in a currency from now on."""
        self.currency, self.rates[currency] = currency, rate

    def find_currency(self, account: str) -> str:
        return self.things[account]["default_currency"] if account else self.currency

    def balance(self, account: str = "") -> int:
        """What may leave now."""
        moved = self.find("balance_transaction", _account=account)
        return sum(m["net"] for m in moved if m["available_on"] <= self.now())

    def pending(self, account: str = "") -> int:
        moved = self.find("balance_transaction", _account=account)
        return sum(m["net"] for m in moved if m["available_on"] > self.now())


def read_whole(asked: Thing, name: str) -> int:
    value = str(asked.get(name, ""))
    if not value.lstrip("-").isascii() or not value.lstrip("-").isdigit():
        raise refuse_request("parameter_invalid_integer", f"Invalid integer: {value}", param=name)
    return int(value)
