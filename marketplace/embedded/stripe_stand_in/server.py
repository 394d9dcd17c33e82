"""The stand-in over HTTP, on the loopback address alone."""

from __future__ import annotations

import base64
import hashlib
import json
import secrets
import threading
import time
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any
from urllib.parse import parse_qs, parse_qsl, urlencode, urlsplit

from marketplace.embedded.stripe_stand_in.books import Books
from marketplace.embedded.stripe_stand_in.delivery import WebhookSender
from marketplace.embedded.stripe_stand_in.faults import ErrorAnswer, refuse_missing, refuse_request
from marketplace.embedded.stripe_stand_in.forms import parse_form
from marketplace.embedded.stripe_stand_in.pages import build_confirm_page, build_onboarding_page
from marketplace.embedded.stripe_stand_in.routes import act, show
from marketplace.payments.stripe_client import API_VERSION

BODY_MAX = 64 * 1024


class StandIn(ThreadingHTTPServer):
    """The server, its books, and how it is to fail."""

    daemon_threads = True

    def __init__(
        self,
        *,
        port: int,
        secret_key: str,
        publishable_key: str,
        webhook_secret: str,
        accounts_secret: str,
        webhook_url: str = "",
        state: Path | None = None,
    ) -> None:
        super().__init__(("127.0.0.1", port), Handler)
        self.secret_key = secret_key
        self.publishable_key = publishable_key
        self.lock = threading.RLock()
        self.delivery = WebhookSender(
            url=webhook_url,
            secret=webhook_secret,
            accounts_secret=accounts_secret,
            conclude=self._conclude_event,
        )
        self.books = Books(url=self.url, delivery=self.delivery, api_version=API_VERSION)
        #: Answers by idempotency key: hash of the call, status, body; ``None`` while at work.
        self.answers: dict[str, tuple[str, int, Any] | None] = {}
        #: How the next calls fail.
        self.faults: list[dict[str, Any]] = []
        self.state = state
        if state is not None and state.exists():
            kept = json.loads(state.read_text())
            self.books.things = kept["things"]
            self.answers = {key: tuple(answer) for key, answer in kept["answers"].items()}

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.server_address[1]}"

    def _conclude_event(self, name: str) -> None:
        with self.lock:
            self.books.note_delivery(name)

    def store(self) -> None:
        """Outlive a restart. Call while holding the lock."""
        if self.state is not None:
            done = {key: answer for key, answer in self.answers.items() if answer is not None}
            fresh = self.state.with_suffix(".new")
            fresh.write_text(json.dumps({"things": self.books.things, "answers": done}))
            fresh.replace(self.state)

    def take_fault(self, method: str, path: str) -> dict[str, Any]:
        """How this call is to fail, if it is."""
        with self.lock:
            for fault in self.faults:
                if fault.get("method", method) == method and fault.get("path", "") in path:
                    fault["times"] = fault.get("times", 1) - 1
                    if fault["times"] <= 0:
                        self.faults.remove(fault)
                    return fault
        return {}

    def call(
        self, method: str, path: str, form: str, *, key: str, account: str
    ) -> tuple[int, Any, bool]:
        """Status, body, and whether it is the answer to an earlier call with the same key."""
        fault = self.take_fault(method, path)
        if fault.get("when") == "before":
            raise ErrorAnswer(fault.get("status", 500), "api_error", "Told to fail before acting.")
        time.sleep(fault.get("delay_s", 0))
        digest = hashlib.sha256(f"{method} {path} {account} {form}".encode()).hexdigest()
        with self.lock:
            if key and key in self.answers:
                return self._repeat(key, digest)
            if key:
                self.answers[key] = None
            status, body = self._act(method, path, form, account)
            if fault.get("when") == "after":
                status = fault.get("status", 500)
                body = {"error": {"type": "api_error", "message": "Told to fail after acting."}}
            if key:
                self.answers[key] = (digest, status, body)
            if method != "GET":
                self.store()
        if fault.get("when") == "drop":
            raise ConnectionAbortedError
        return status, body, False

    def _repeat(self, key: str, digest: str) -> tuple[int, Any, bool]:
        answer = self.answers[key]
        if answer is None:
            raise refuse_request("idempotency_key_in_use", "The first call runs.", status=409)
        if answer[0] != digest:
            raise ErrorAnswer(400, "idempotency_error", "This key was used with other parameters.")
        return answer[1], answer[2], True

    def _act(self, method: str, path: str, form: str, account: str) -> tuple[int, Any]:
        try:
            # Copied through JSON: a kept answer does not change with the object.
            answer = act(self.books, method, path, parse_form(form), account)
            return 200, json.loads(json.dumps(answer))
        except ErrorAnswer as refusal:
            intent = refusal.body["error"].get("payment_intent")
            if intent is not None:
                refusal.body["error"]["payment_intent"] = show(self.books, intent, [])
            return refusal.status, json.loads(json.dumps(refusal.body))

    def control(self, name: str, asked: dict[str, Any]) -> Any:
        """What a test tells it to do."""
        books, delivery = self.books, self.delivery
        with self.lock:
            match name:
                case "reset":
                    books.clear()
                    self.answers.clear()
                    self.faults.clear()
                    delivery.held.clear()
                case "fail":
                    self.faults.append(asked)
                case "hold":
                    delivery.is_held = True
                case "release":
                    delivery.is_held = False
                    delivery.release(
                        is_reversed=asked.get("reversed", False), copies=asked.get("copies", 1)
                    )
                case "take":
                    events, delivery.held = delivery.held, []
                    return [delivery.sign(event, at=asked.get("at")) for event in events]
                case "advance":
                    books.ahead_s += asked["seconds"]
                case "dispute":
                    dispute = books.open_dispute(
                        asked["payment_intent"],
                        is_inquiry=asked.get("inquiry", False),
                        amount=asked.get("amount"),
                    )
                    return show(books, dispute, [])
                case "escalate_inquiry":
                    return show(books, books.escalate_inquiry(asked["id"]), [])
                case "close_inquiry":
                    return show(books, books.close_inquiry(asked["id"]), [])
                case "close_dispute":
                    return show(books, books.close_dispute(asked["id"], won=asked["won"]), [])
                case "fail_refund":
                    return show(books, books.fail_refund(asked["id"]), [])
                case "warn":
                    return show(books, books.warn_of_fraud(asked["payment_intent"]), [])
                case "review":
                    return show(books, books.open_review(asked["payment_intent"]), [])
                case "close_review":
                    return show(books, books.close_review(asked["id"], asked["reason"]), [])
                case "pend":
                    books.pending_s = asked["seconds"]
                case "settle":
                    books.settle(asked["currency"], rate=asked["rate"])
                case "appeal":
                    return show(books, books.appeal_dispute(asked["id"]), [])
                case "bank_payout":
                    return show(books, books.pay_own_bank(asked["amount"]), [])
                case "fail_payouts":
                    books.payout_failure = asked["code"]
                case "onboard":
                    return show(books, books.finish_onboarding(asked["account"]), [])
                case _:
                    raise refuse_missing("control", name)
            self.store()
        return {}


class Handler(BaseHTTPRequestHandler):
    """One request."""

    server: StandIn
    protocol_version = "HTTP/1.1"

    def do_GET(self) -> None:
        if self.path == "/favicon.ico":
            # Browsers ask by themselves, without a key.
            self._send(204, b"", "text/plain")
        else:
            self._answer()

    def do_POST(self) -> None:
        self._answer()

    def do_DELETE(self) -> None:
        self._answer()

    def do_OPTIONS(self) -> None:
        self._send(204, b"", "text/plain")

    def log_message(self, format: str, *args: Any) -> None:  # noqa: A002
        """Quiet: the market's own log says what it asked for."""

    def _answer(self) -> None:
        parts = urlsplit(self.path)
        try:
            length = int(self.headers.get("Content-Length") or 0)
            if length > BODY_MAX:
                raise refuse_request("too_large", "The body is too large.", status=413)
            body = self.rfile.read(length).decode()
            if parts.path.startswith(("/confirm/", "/onboarding/")):
                self._show_page(parts.path, parse_qs(parts.query), body)
                return
            status, answer, is_repeat = self._call(parts.path, parts.query, body)
        except ErrorAnswer as refusal:
            status, answer, is_repeat = refusal.status, refusal.body, False
        except ConnectionAbortedError:
            self.close_connection = True
            return
        self._send(status, json.dumps(answer).encode(), "application/json", is_repeat=is_repeat)

    def _call(self, path: str, query: str, body: str) -> tuple[int, Any, bool]:
        key = self._read_key()
        if path.startswith("/_test/"):
            self._check(key, self.server.secret_key)
            asked = json.loads(body or "{}")
            return 200, self.server.control(path.removeprefix("/_test/"), asked), False
        form = body if self.command == "POST" else query
        if secrets.compare_digest(key, self.server.publishable_key):
            return self._call_as_browser(path, form)
        self._check(key, self.server.secret_key)
        return self.server.call(
            self.command,
            path,
            form,
            key=self.headers.get("Idempotency-Key", ""),
            account=self.headers.get("Stripe-Account", ""),
        )

    def _call_as_browser(self, path: str, form: str) -> tuple[int, Any, bool]:
        """A publishable key confirms a PaymentIntent by its secret, and may do nothing else."""
        asked = parse_form(form)
        name = path.removeprefix("/v1/payment_intents/").removesuffix("/confirm")
        intent = self.server.books.things.get(name, {})
        known = str(intent.get("client_secret"))
        if not path.endswith("/confirm") or not secrets.compare_digest(
            str(asked.get("client_secret", "")), known
        ):
            raise refuse_missing("payment_intent", name)
        # The secret is no parameter of the server's own call.
        rest = urlencode([(k, v) for k, v in parse_qsl(form) if k != "client_secret"])
        return self.server.call(self.command, path, rest, key="", account="")

    def _show_page(self, path: str, query: dict[str, list[str]], body: str) -> None:
        """A bank's page, or the one where a provider says who it is."""
        _, kind, name = path.split("/", 2)
        secret = query.get("secret", [""])[0]
        with self.server.lock:
            if kind == "confirm":
                text, to = build_confirm_page(self.server.books, name, secret, body)
            else:
                text, to = build_onboarding_page(self.server.books, name, secret, body)
            self.server.store()
        if to:
            self._send(303, b"", "text/plain", location=to)
        else:
            self._send(200, text.encode(), "text/html; charset=utf-8")

    def _read_key(self) -> str:
        kind, _, given = self.headers.get("Authorization", "").partition(" ")
        if kind == "Basic":
            return base64.b64decode(given).decode().partition(":")[0]
        return given

    def _check(self, given: str, wanted: str) -> None:
        if not secrets.compare_digest(given.encode(), wanted.encode()):
            raise refuse_request("api_key_invalid", "Invalid API key.", status=401)

    def _send(
        self, status: int, body: bytes, kind: str, *, is_repeat: bool = False, location: str = ""
    ) -> None:
        self.send_response(status)
        self.send_header("Content-Type", kind)
        self.send_header("Content-Length", str(len(body)))
        self.send_header("Request-Id", f"req_{secrets.token_hex(8)}")
        # Browsers call it from the market's pages, and without cookies.
        self.send_header("Access-Control-Allow-Origin", "*")
        self.send_header("Access-Control-Allow-Headers", "authorization, content-type")
        if is_repeat:
            self.send_header("Idempotent-Replayed", "true")
        if location:
            self.send_header("Location", location)
        # Head and body in one packet, or each answer waits for an acknowledgement.
        self._headers_buffer.append(b"\r\n" + body)  # type: ignore[attr-defined]
        self.flush_headers()
