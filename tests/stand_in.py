"""The payment gateway of tests: the stand-in, or Stripe's test mode where its key is given.

``STRIPE_TEST_KEY=sk_test_...`` runs what needs no control of the stand-in against Stripe; a key of
real money is refused.
"""

from __future__ import annotations

import json
import os
import threading
import urllib.request
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any
from urllib.parse import urlencode

from marketplace.embedded.stripe_stand_in.server import StandIn

REAL_KEY = os.environ.get("STRIPE_TEST_KEY", "")
if REAL_KEY and not REAL_KEY.startswith(("sk_test_", "rk_test_")):
    raise ValueError("STRIPE_TEST_KEY is no key of Stripe's test mode")
WEBHOOK_SECRET, ACCOUNTS_SECRET = "whsec_tests", "whsec_accounts"


@dataclass(frozen=True, slots=True)
class GatewayControl:
    """What tests do to the stand-in, and as a browser."""

    server: StandIn
    secret_key: str
    publishable_key: str

    @property
    def url(self) -> str:
        return self.server.url

    def control(self, name: str, **asked: Any) -> Any:
        return self._send(f"/_test/{name}", json.dumps(asked).encode(), self.secret_key)

    def confirm(self, gateway_id: str, client_secret: str, card: str = "pm_card_visa") -> Any:
        """What the page's script does with the chosen card."""
        form = {
            "client_secret": client_secret,
            "payment_method": card,
            "return_url": "http://127.0.0.1/back",
        }
        path = f"/v1/payment_intents/{gateway_id}/confirm"
        return self._send(path, urlencode(form).encode(), self.publishable_key)

    def answer_bank(self, gateway_id: str, *, is_confirmed: bool) -> None:
        """What the card's owner does on the bank's page."""
        with self.server.lock:
            books = self.server.books
            secret = books.get("payment_intent", gateway_id)["client_secret"]
            books.conclude_action(gateway_id, secret, is_confirmed=is_confirmed)

    def find(self, kind: str) -> list[dict[str, Any]]:
        """All objects of a kind at the gateway, the latest first."""
        with self.server.lock:
            return self.server.books.find(kind)

    def take_webhooks(self, *, at: float | None = None) -> list[tuple[str, str]]:
        """Bodies and signatures of the events since the last look."""
        return [(body, signature) for body, signature in self.control("take", at=at)]

    def _send(self, path: str, body: bytes, key: str) -> Any:
        request = urllib.request.Request(
            self.url + path, data=body, headers={"Authorization": f"Bearer {key}"}
        )
        try:
            with urllib.request.urlopen(request, timeout=10) as answer:
                return json.loads(answer.read())
        except urllib.error.HTTPError as error:
            return json.loads(error.read())


@contextmanager
def run_stand_in() -> Iterator[GatewayControl]:
    server = StandIn(
        port=0,
        secret_key="sk_test_tests",
        publishable_key="pk_test_tests",
        webhook_secret=WEBHOOK_SECRET,
        accounts_secret=ACCOUNTS_SECRET,
    )
    thread = threading.Thread(target=server.serve_forever, args=(0.02,), daemon=True)
    thread.start()
    try:
        yield GatewayControl(server, server.secret_key, server.publishable_key)
    finally:
        server.shutdown()
        server.server_close()
        thread.join()
