"""Webhooks: signed, sent in order with retries, or held back for a test."""

from __future__ import annotations

import hashlib
import hmac
import json
import queue
import threading
import time
import urllib.request
from collections.abc import Callable
from typing import Any

#: Seconds between attempts; Stripe tries for days.
PAUSES_S = (0.2, 1.0, 3.0, 10.0, 30.0)


class WebhookSender:
    """Sends events to the market, or collects them while they are held."""

    def __init__(
        self, *, url: str, secret: str, accounts_secret: str, conclude: Callable[[str], None]
    ) -> None:
        self.url = url
        self.secret = secret
        #: Events of connected accounts come from an endpoint of their own.
        self.accounts_secret = accounts_secret
        #: What is done with the id of an event that was delivered.
        self.conclude = conclude
        self.is_held = not url
        self.held: list[dict[str, Any]] = []
        self._queue: queue.Queue[dict[str, Any]] = queue.Queue()
        if url:
            threading.Thread(target=self._send_all, name="webhooks", daemon=True).start()

    def add(self, event: dict[str, Any]) -> None:
        if self.is_held:
            self.held.append(event)
        else:
            self._queue.put(event)

    def release(self, *, is_reversed: bool, copies: int) -> None:
        """Send what was held, in another order and more than once where a test wants that."""
        events, self.held = self.held, []
        for event in reversed(events) if is_reversed else events:
            for _ in range(copies):
                self._queue.put(event)

    def sign(self, event: dict[str, Any], *, at: float | None = None) -> tuple[str, str]:
        """The body and its signature."""
        body = json.dumps(event)
        moment = int(time.time() if at is None else at)
        text = f"{moment}.{body}".encode()
        secret = self.accounts_secret if event.get("account") else self.secret
        digest = hmac.new(secret.encode(), text, hashlib.sha256).hexdigest()
        return body, f"t={moment},v1={digest}"

    def _send_all(self) -> None:
        while True:
            event = self._queue.get()
            for pause in (*PAUSES_S, 0.0):
                if self._send(event):
                    self.conclude(event["id"])
                    break
                time.sleep(pause)

    def _send(self, event: dict[str, Any]) -> bool:
        body, signature = self.sign(event)
        request = urllib.request.Request(  # noqa: S310 - the address that it was started with
            self.url,
            data=body.encode(),
            headers={"Stripe-Signature": signature, "Content-Type": "application/json"},
        )
        opener = urllib.request.build_opener(urllib.request.ProxyHandler({}))
        try:
            with opener.open(request, timeout=10) as answer:
                return answer.status == 200
        except OSError:
            return False
