"""One market as the witness of another: its heads are fetched once, stored for good and shown."""

from __future__ import annotations

import json
from collections.abc import Iterator
from datetime import timedelta
from http.server import BaseHTTPRequestHandler, HTTPServer
from threading import Thread
from typing import Any, ClassVar
from urllib.parse import parse_qs, urlsplit

import pytest
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey
from django.test import Client

from marketplace.auction.models import WitnessedHead, WitnessedLog
from marketplace.auction.witnesses import heads
from marketplace.auction.witnesses.witnessed import fetch_witnessed_heads
from scheduler.auction.audit.witness import read_witness
from scheduler.auction.log.heads import Head, sign_head, signed_head_to_json
from tests.builders import NOW

pytestmark = pytest.mark.django_db
KEY = Ed25519PrivateKey.from_private_bytes(bytes(32))


def sign(position: int, hash_: str) -> str:
    signed = sign_head(
        Head("theirs", position, hash_),
        signed_at="2026-01-01T00:00:00+00:00",
        public_key=KEY.public_key().public_bytes_raw().hex(),
        sign=KEY.sign,
    )
    return json.dumps(signed_head_to_json(signed))


class Other(BaseHTTPRequestHandler):
    """Another market's page of heads."""

    lines: ClassVar[list[str]] = []
    asked: ClassVar[list[int]] = []

    def do_GET(self) -> None:
        [after] = parse_qs(urlsplit(self.path).query)["after"]
        self.asked.append(int(after))
        self.send_response(200)
        self.end_headers()
        self.wfile.write("".join(f"{line}\n" for line in self.lines).encode())

    def log_message(self, *_: object) -> None:
        pass


@pytest.fixture
def url(settings: Any) -> Iterator[str]:
    Other.lines, Other.asked = [sign(3, "aa"), sign(7, "bb")], []
    with HTTPServer(("127.0.0.1", 0), Other) as server:
        thread = Thread(target=server.serve_forever)
        thread.start()
        address = f"http://127.0.0.1:{server.server_port}/market/theirs/heads"
        settings.AUCTION_WITNESSED = [address]
        settings.AUCTION_WITNESSED_PRIVATE = True
        yield address
        server.shutdown()
        thread.join()


def test_heads_are_stored_once_and_only_later_ones_are_asked_for(url: str, client: Client) -> None:
    assert fetch_witnessed_heads(now=NOW) == 2
    assert fetch_witnessed_heads(now=NOW) == 0
    assert Other.asked == [-1, 7]
    shown = client.get("/witnessed-heads", {"log": url})
    assert shown["Content-Type"] == "application/jsonl"
    # As the other market signed them: a witness file.
    lines = shown.content.decode().splitlines()
    assert [signed.head.position for signed in read_witness(lines)] == [3, 7]
    assert read_witness(lines) == read_witness(Other.lines)
    first = WitnessedHead.objects.earliest("pk").pk
    [later] = client.get("/witnessed-heads", {"log": url, "after": first}).content.splitlines()
    assert json.loads(later)["position"] == 7


def test_two_heads_of_one_position_are_both_stored_and_said_for_good(url: str) -> None:
    fetch_witnessed_heads(now=NOW)
    Other.lines = [sign(7, "cc"), sign(8, "dd")]
    assert fetch_witnessed_heads(now=NOW) == 2
    Other.lines = []
    assert fetch_witnessed_heads(now=NOW) == 0
    seen = WitnessedLog.objects.get()
    assert (seen.position, seen.failures) == (8, 0)
    assert seen.problem.startswith(
        "the market signed two different heads of zone theirs at position 7"
    )
    assert WitnessedHead.objects.filter(position=7).count() == 2


@pytest.mark.parametrize(
    ("line", "problem"),
    [
        (sign(9, "aa").replace('"aa"', '"bb"'), "is not signed by the key it names"),
        ("<html>", "is not a head"),
        (sign(-1, "aa"), "a position that no log has"),
        (sign(9, "aa").replace(": 9,", f": {2**63},"), "is not signed by the key it names"),
    ],
)
def test_a_page_with_what_is_no_signed_head_is_refused_whole_and_asked_for_later(
    url: str, line: str, problem: str
) -> None:
    Other.lines = [sign(3, "aa"), line]
    assert fetch_witnessed_heads(now=NOW) == 0
    seen = WitnessedLog.objects.get()
    assert (seen.position, seen.failures) == (-1, 1)
    assert problem in seen.problem
    assert not WitnessedHead.objects.exists()
    Other.lines = [sign(3, "aa")]
    assert fetch_witnessed_heads(now=NOW + heads.RETRY_AFTER / 2) == 0
    # A clock that went back keeps nothing waiting.
    assert fetch_witnessed_heads(now=NOW - timedelta(days=1)) == 1
    assert WitnessedLog.objects.get().problem == ""


def test_a_market_inside_the_network_is_asked_only_if_the_operator_allows_it(
    url: str, settings: Any
) -> None:
    settings.AUCTION_WITNESSED_PRIVATE = False
    settings.AUCTION_WITNESSED = [url, url.replace("http:", "https:")]
    assert fetch_witnessed_heads(now=NOW) == 0
    assert Other.asked == []
    problems = [log.problem for log in WitnessedLog.objects.order_by("pk")]
    assert "not encrypted" in problems[0]
    assert problems[1].endswith("127.0.0.1 is not at a public address")


def test_a_log_that_this_market_is_no_witness_for_is_not_found(client: Client, url: str) -> None:
    assert client.get("/witnessed-heads").status_code == 404
    assert client.get("/witnessed-heads", {"log": "https://example.org/"}).status_code == 404
    assert client.get("/witnessed-heads", {"log": url, "after": "x"}).status_code == 400
