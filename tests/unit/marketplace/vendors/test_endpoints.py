"""Vendors' own systems: asked all at once within a limit, left out and counted when they lie."""

from __future__ import annotations

import json
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from datetime import timedelta
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from threading import Event, Thread
from typing import Any, ClassVar

import pytest
from django.core.cache import cache

from marketplace.auction.bidding import card_bids
from marketplace.auction.bidding.place import NewBid
from marketplace.common.durable.kinds import get_kinds
from marketplace.common.durable.run import run_due_work
from marketplace.common.durable.services import NewWork, restart_work
from marketplace.common.models import DurableWork
from marketplace.vendors import endpoints
from marketplace.vendors.endpoint_quotes import (
    ContradictoryAnswer,
    EndpointQuote,
    check_consistent,
    read_answer,
)
from marketplace.vendors.endpoints import ask_for_quotes
from marketplace.vendors.handover import TELL
from marketplace.vendors.models import AnswerKind, EndpointCount, Preparation, VendorKind
from marketplace.vendors.quoting import DataSize
from marketplace.vendors.signatures import BadSignature, check_message, sign_message
from marketplace.vendors.wishes import parse_wish
from tests import builders
from tests import market_builders as market
from tests import vendor_builders as build
from tests.builders import NOW
from tests.vendor_builders import clock, prepare_next

pytestmark = pytest.mark.django_db

OUTSIDE = parse_wish({"kinds": ["outside"]})


class VendorSystem(BaseHTTPRequestHandler):
    """A vendor's system that answers as its path says."""

    secrets: ClassVar[dict[str, str]] = {}
    asked: ClassVar[list[dict[str, Any]]] = []
    #: Slow answers wait for it.
    go_on: ClassVar[Event] = Event()
    price: ClassVar[str] = "0.010000"

    def do_POST(self) -> None:
        body = self.rfile.read(int(self.headers["Content-Length"]))
        kind = self.path.strip("/")
        secret = self.secrets[kind]
        message_id = self.headers["webhook-id"]
        check_message(secret, body, self.headers, message_id=message_id, now=NOW)
        message = json.loads(body)
        self.asked.append(message)
        answer: Any = {
            "request_id": message["data"].get("request_id"),
            "price": self.price,
            "work_s": 5,
            "valid_s": 60,
        }
        if kind == "slow":
            self.go_on.wait(30)
        if kind == "moved":
            self.send_response(302)
            self.send_header("Location", "http://169.254.169.254/latest/meta-data")
            self.end_headers()
            return
        answer |= {
            "dear": {"price": "0.020001"},
            "other": {"request_id": "quote_of_another"},
            "negative": {"price": "-1"},
            "float": {"price": 0.01},
            "endless": {"work_s": 10**12},
        }.get(kind, {})
        text = json.dumps(answer).encode() + (b" " * 10_000 if kind == "long" else b"")
        if kind == "garbled":
            text = b"[" * 1_000
        key = build_other_secret() if kind == "forged" else secret
        headers = sign_message(key, text, message_id=message_id, now=NOW)
        self.send_response(200)
        for name, value in headers.items():
            self.send_header(name, value)
        self.end_headers()
        self.wfile.write(text)

    def log_message(self, *_: object) -> None:
        pass


def build_other_secret() -> str:
    return "whsec_" + "A" * 43 + "="


@pytest.fixture(scope="module")
def port() -> Iterator[int]:
    with ThreadingHTTPServer(("127.0.0.1", 0), VendorSystem) as server:
        thread = Thread(target=server.serve_forever)
        thread.start()
        yield server.server_port
        VendorSystem.go_on.set()
        server.shutdown()
        thread.join()


@pytest.fixture(autouse=True)
def _fresh(settings: Any, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    settings.VENDOR_ENDPOINTS_PRIVATE = True
    # A full machine answers late; only the test of the limit is about it.
    monkeypatch.setattr(endpoints, "HARD_LIMIT_S", 20.0)
    VendorSystem.asked.clear()
    VendorSystem.price = "0.010000"
    VendorSystem.go_on.clear()
    endpoints.records.clear()
    yield
    VendorSystem.go_on.set()
    cache.clear()


@pytest.fixture
def zone():
    made = build.zone()
    market.node(made)
    return made


@pytest.fixture
def owner():
    return builders.organisation(usd="10")


def outside(zone, port, kind="good", **terms):
    made = build.vendor(
        zone,
        kind,
        kind=VendorKind.OUTSIDE,
        endpoint=f"http://127.0.0.1:{port}/{kind}",
        **terms,
    )
    VendorSystem.secrets[kind] = made.endpoint_secret
    return made


def ask(zone, owner, **terms):
    data = build.upload(owner, zone)
    return ask_for_quotes(zone=zone, dataset=data, wish=OUTSIDE, now=NOW, **terms)


def count(vendor):
    return dict(EndpointCount.objects.filter(vendor=vendor).values_list("kind", "count"))


def test_a_bid_takes_the_quote_of_a_vendors_system_with_nothing_of_the_data(zone, owner, port):
    vendor = outside(zone, port)
    bid, _ = build.sell(owner, zone, epochs=1, preparation={"kinds": ["outside"]})
    assert bid.offers == [[vendor.pk, 10_000, 1, 100]]
    assert bid.parts["vendor"] == 10_000.0
    [asked] = VendorSystem.asked
    assert (asked["type"], asked["data"]["rows"]) == ("quote.requested", 100)
    assert "street" not in json.dumps(asked)
    assert count(vendor) == {AnswerKind.GOOD: 1}


def test_a_bid_that_a_card_pays_asks_vendors_systems_too(zone, owner, port, monkeypatch):
    outside(zone, port)
    monkeypatch.setattr(card_bids, "start_payment", lambda **terms: terms)
    asked = NewBid(
        organisation=owner,
        placed_by=None,
        zone=zone,
        dataset=build.upload(owner, zone),
        name="By card",
        adapter={},
        training={"epochs": 1},
        price_micros=5_000_000,
        deadline_at=NOW + timedelta(minutes=5),
        idempotency_key="one",
        preparation={"kinds": ["outside"]},
    )
    # Without the quote no vendor would prepare its data, and it would be refused.
    terms = card_bids.authorise_bid(
        asked=asked, asked_by=builders.owner_of(owner), card_id=None, now=NOW
    )
    assert (terms["amount_cents"], len(VendorSystem.asked)) == (500, 1)


def test_a_slow_system_holds_up_nothing_and_the_others_are_heard(zone, owner, port, monkeypatch):
    good, slow = outside(zone, port), outside(zone, port, "slow")
    down = build.vendor(
        zone, "down", kind=VendorKind.OUTSIDE, endpoint="http://127.0.0.1:9/nothing"
    )
    data = build.upload(owner, zone)
    # The good one is remembered, so that a full machine cannot make it late as well.
    assert list(ask_once(zone, data, [good])) == [good.pk]
    monkeypatch.setattr(endpoints, "HARD_LIMIT_S", 0.3)
    quotes = ask_for_quotes(zone=zone, dataset=data, wish=OUTSIDE, now=NOW, remembers=True)
    assert list(quotes) == [good.pk]
    assert count(slow) == {AnswerKind.SLOW: 1}
    assert count(down) == {AnswerKind.WRONG: 1}


def test_a_system_that_was_never_asked_since_others_held_the_threads_is_not_blamed(
    zone, owner, port, monkeypatch
):
    slow, good = outside(zone, port, "slow"), outside(zone, port)
    monkeypatch.setattr(endpoints, "HARD_LIMIT_S", 0.3)
    with ThreadPoolExecutor(1) as only_one:
        monkeypatch.setattr(endpoints, "_pool", only_one)
        assert ask(zone, owner) == {}
    assert len(VendorSystem.asked) == 1
    assert (sum(count(slow).values()), count(good)) == (1, {})


def ask_once(zone, data, vendors):
    """Ask these alone."""
    listed = endpoints.list_listings

    def some(**terms):
        return [one for one in listed(**terms) if one.vendor in vendors]

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(endpoints, "list_listings", some)
        return ask_for_quotes(zone=zone, dataset=data, wish=OUTSIDE, now=NOW)


@pytest.mark.parametrize(
    "kind",
    ["moved", "other", "negative", "float", "endless", "long", "garbled", "forged"],
)
def test_a_wrong_answer_drops_out_and_is_counted(zone, owner, port, kind):
    vendor = outside(zone, port, kind)
    assert ask(zone, owner) == {}
    assert count(vendor) == {AnswerKind.WRONG: 1}


def test_a_system_that_asks_more_than_its_vendor_listed_contradicts_it(zone, owner, port):
    vendor = outside(zone, port, "dear")
    assert ask(zone, owner) == {}
    assert count(vendor) == {AnswerKind.CONTRADICTORY: 1}


def test_a_quote_that_was_to_hold_cannot_be_raised_and_is_shown_without_asking(zone, owner, port):
    vendor = outside(zone, port)
    data = build.upload(owner, zone)
    terms = {"zone": zone, "dataset": data, "wish": OUTSIDE}
    first = ask_for_quotes(**terms, now=NOW)
    assert first[vendor.pk] == EndpointQuote(10_000, 5, NOW + timedelta(seconds=60))
    VendorSystem.price = "0.011"
    assert ask_for_quotes(**terms, now=NOW, remembers=True) == first
    assert len(VendorSystem.asked) == 1
    assert ask_for_quotes(**terms, now=NOW) == {}
    assert count(vendor) == {AnswerKind.GOOD: 1, AnswerKind.CONTRADICTORY: 1}


def test_a_quote_may_change_once_its_time_is_over():
    quote = EndpointQuote(10, 5, NOW)
    listed = build.QUOTES
    size = DataSize(rows=1, tokens=1)
    check_consistent(EndpointQuote(11, 6, NOW), listed=listed, size=size, earlier=quote, now=NOW)
    with pytest.raises(ContradictoryAnswer):
        check_consistent(
            EndpointQuote(10, 6, NOW),
            listed=listed,
            size=size,
            earlier=quote,
            now=NOW - timedelta(seconds=1),
        )


def test_a_system_that_fails_again_and_again_is_left_alone_for_a_while(zone, owner, port):
    vendor = outside(zone, port, "other")
    for _ in range(endpoints.FAILURES_MAX + 2):
        assert ask(zone, owner) == {}
    assert count(vendor) == {AnswerKind.WRONG: endpoints.FAILURES_MAX}
    assert len(VendorSystem.asked) == endpoints.FAILURES_MAX


def test_a_private_address_is_never_asked(zone, owner, port, settings):
    vendor = outside(zone, port)
    settings.VENDOR_ENDPOINTS_PRIVATE = False
    assert ask(zone, owner) == {}
    assert VendorSystem.asked == []
    assert count(vendor) == {AnswerKind.WRONG: 1}


def test_a_bid_without_another_vendor_is_refused_when_the_system_is_silent(zone, owner, port):
    outside(zone, port, "forged")
    with pytest.raises(Exception, match="No vendor prepares such data"):
        build.sell(owner, zone, preparation={"kinds": ["outside"]})


def test_an_answer_is_read_to_the_micro_dollar_and_no_further():
    answer = {"request_id": "q", "price": "0.000001", "work_s": 0, "valid_s": 0}
    assert read_answer(json.dumps(answer).encode(), request_id="q", now=NOW) == EndpointQuote(
        1, 0, NOW
    )


def test_a_signature_holds_for_one_message_one_body_and_a_few_minutes():
    secret = build_other_secret()
    headers = sign_message(secret, b"body", message_id="one", now=NOW)
    check_message(secret, b"body", headers, message_id="one", now=NOW + timedelta(seconds=299))
    for body, message_id, at in (
        (b"other", "one", NOW),
        (b"body", "two", NOW),
        (b"body", "one", NOW + timedelta(seconds=301)),
        (b"body", "one", NOW - timedelta(seconds=301)),
    ):
        with pytest.raises(BadSignature):
            check_message(secret, body, headers, message_id=message_id, now=at)
    for broken in (
        {},
        headers | {"webhook-timestamp": "9" * 40},
        headers | {"webhook-signature": ""},
    ):
        with pytest.raises(BadSignature):
            check_message(secret, b"body", broken, message_id="one", now=NOW)


def test_a_vendors_system_is_told_of_its_work_with_links(zone, owner, port):
    outside(zone, port)
    gold = {str(n): build.chat(n) for n in range(1, 6)}
    wish = {"kinds": ["outside"], "instructions": "Neat.", "gold": gold}
    build.sell(owner, zone, epochs=1, preparation=wish)
    assert prepare_next(clock=clock)
    made = Preparation.objects.get()
    assert run_due_work(get_kinds()[TELL], clock=clock) == 1
    told = VendorSystem.asked[-1]
    assert (told["type"], told["data"]["preparation_id"]) == ("work.assigned", made.pk)
    wish = told["data"]["wish"]
    # Which rows are looked at it is not told.
    assert (wish["instructions"], wish["gold"]) == ("Neat.", {})
    assert told["data"]["data_url"].endswith("/data")
    VendorSystem.secrets["good"] = build_other_secret()
    restart_work(NewWork(TELL, made.pk, due_at=NOW))
    assert run_due_work(get_kinds()[TELL], clock=clock) == 1
    work = DurableWork.objects.get(kind=TELL)
    assert (work.attempts, work.due_at) == (1, clock() + timedelta(seconds=5))
