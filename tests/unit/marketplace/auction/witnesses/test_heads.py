"""Heads are signed once for each position, and reach every witness that can be reached."""

from __future__ import annotations

import json
from datetime import datetime, timedelta
from http.server import BaseHTTPRequestHandler, HTTPServer
from pathlib import Path
from threading import Thread
from typing import Any, ClassVar

import pytest
from django.test import Client

from marketplace.auction.book.transcript import write_transcript
from marketplace.auction.book.verify import verify_zone
from marketplace.auction.lane.sweep import refresh_zone
from marketplace.auction.models import LogEntry, MarketHead, PublishedHead, WitnessCursor
from marketplace.auction.witnesses import heads, keys
from marketplace.fleet.models import Zone
from marketplace.payments.models import LedgerSeal
from marketplace.payments.seals import seal_ledger
from marketplace.web.views import market
from scheduler.auction.audit.transcripts import verify_transcript
from scheduler.public_log.witness import read_witness
from tests import builders, market_builders
from tests.audits import alter_row
from tests.builders import NOW

pytestmark = pytest.mark.django_db
SLOT = timedelta(seconds=market_builders.SLOT_S)


@pytest.fixture
def zone() -> Zone:
    made = market_builders.zone()
    market_builders.node(made)
    refresh_zone(zone=made, now=NOW)
    return made


@pytest.fixture
def file(tmp_path: Path, settings: Any) -> Path:
    path = tmp_path / "heads.jsonl"
    settings.AUCTION_WITNESSES = [f"file://{path}"]
    return path


def grow(zone: Zone, slots: int = 1) -> None:
    refresh_zone(zone=zone, now=NOW + slots * SLOT)


def positions(path: Path) -> list[int]:
    return [signed.head.position for signed in read_witness(path.read_text().splitlines())]


def test_a_head_is_signed_once_for_each_position_the_log_is_seen_at(zone: Zone) -> None:
    assert heads.sign_heads(now=NOW) == 1
    assert heads.sign_heads(now=NOW + SLOT) == 0
    grow(zone)
    # The clock went back meanwhile; the log did not.
    assert heads.sign_heads(now=NOW - SLOT) == 1
    signed = read_witness(heads.list_signed_heads(zone=zone))
    head = MarketHead.objects.get(zone=zone)
    assert [s.head.position for s in signed] == [head.position - 1, head.position]
    assert signed[-1].head.hash == head.head_hash
    assert signed[-1].head.zone == zone.name


def test_a_witness_file_gets_every_head_once_and_holds_the_log_to_it(
    zone: Zone, file: Path
) -> None:
    for slots in (1, 2, 3):
        grow(zone, slots)
        heads.sign_heads(now=NOW)
        assert heads.publish_heads(now=NOW) == 1
        assert heads.publish_heads(now=NOW) == 0
    witness = read_witness(file.read_text().splitlines())
    assert len(witness) == 3
    lines = list(write_transcript(zone, with_bids=False))
    assert verify_transcript(lines, witness=witness).witnessed == 3
    assert not verify_transcript(lines[:-1], witness=witness).ok


def test_a_line_that_a_dead_writer_left_half_is_cut_off(zone: Zone, file: Path) -> None:
    heads.sign_heads(now=NOW)
    heads.publish_heads(now=NOW)
    whole = file.read_text()
    file.write_text(whole + whole[:100])
    grow(zone)
    heads.sign_heads(now=NOW)
    heads.publish_heads(now=NOW)
    assert file.read_text().startswith(whole)
    assert len(positions(file)) == 2


def test_a_head_delivered_twice_says_nothing_new(zone: Zone, file: Path) -> None:
    heads.sign_heads(now=NOW)
    heads.publish_heads(now=NOW)
    # The process died after the delivery and before it was noted.
    WitnessCursor.objects.update(position=-1)
    assert heads.publish_heads(now=NOW) == 1
    witness = read_witness(file.read_text().splitlines())
    assert len(witness) == 2
    assert verify_transcript(write_transcript(zone, with_bids=False), witness=witness).ok


def test_the_ledgers_seals_are_signed_and_given_to_witnesses_too(zone: Zone, file: Path) -> None:
    builders.organisation(usd="10")
    for _ in range(2):
        seal_ledger(now=NOW)
        heads.sign_heads(now=NOW)
        heads.publish_heads(now=NOW)
    builders.organisation(usd="5")
    seal_ledger(now=NOW)
    heads.sign_heads(now=NOW)
    heads.publish_heads(now=NOW)
    signed = read_witness(file.read_text().splitlines())
    seals = LedgerSeal.objects.order_by("number").values_list("number", "digest")
    ledger = [s.head for s in signed if s.head.zone == heads.LEDGER]
    assert [(head.position, head.hash) for head in ledger] == list(seals)
    assert len(seals) == 2
    # The log's own witness passes over them.
    assert verify_transcript(write_transcript(zone, with_bids=False), witness=signed).ok


class Inbox(BaseHTTPRequestHandler):
    """A witness at an address, which answers as it is set to."""

    status: ClassVar[int] = 200
    bodies: ClassVar[list[str]] = []

    def do_POST(self) -> None:
        body = self.rfile.read(int(self.headers["Content-Length"])).decode()
        self.send_response(self.status)
        self.end_headers()
        if self.status == 200:
            self.bodies.append(body)

    def log_message(self, *_: object) -> None:
        pass


@pytest.fixture
def inbox(settings: Any, file: Path) -> Any:
    Inbox.status, Inbox.bodies = 200, []
    with HTTPServer(("127.0.0.1", 0), Inbox) as server:
        thread = Thread(target=server.serve_forever)
        thread.start()
        address = f"http://127.0.0.1:{server.server_port}/heads"
        settings.AUCTION_WITNESSES = [address, *settings.AUCTION_WITNESSES]
        yield address
        server.shutdown()
        thread.join()


def test_a_witness_that_fails_gets_what_it_missed_and_keeps_no_other_waiting(
    zone: Zone, file: Path, inbox: str
) -> None:
    Inbox.status = 503
    heads.sign_heads(now=NOW)
    assert heads.publish_heads(now=NOW) == 1
    assert len(positions(file)) == 1
    failed = WitnessCursor.objects.get(witness=inbox)
    assert (failed.position, failed.failures) == (-1, 1)
    assert "503" in failed.problem
    grow(zone)
    heads.sign_heads(now=NOW)
    Inbox.status = 200
    # Its time has not come.
    assert heads.publish_heads(now=NOW + heads.RETRY_AFTER / 2) == 1
    assert Inbox.bodies == []
    assert heads.publish_heads(now=NOW + heads.RETRY_AFTER) == 2
    assert Inbox.bodies == [file.read_text()]
    failed.refresh_from_db()
    assert (failed.failures, failed.problem, failed.next_at) == (0, "", None)


def test_a_witness_is_tried_again_at_once_when_the_clock_went_back(
    zone: Zone, file: Path, inbox: str
) -> None:
    Inbox.status = 500
    heads.sign_heads(now=NOW)
    heads.publish_heads(now=NOW)
    Inbox.status = 200
    assert heads.publish_heads(now=NOW - timedelta(days=1)) == 1
    assert len(Inbox.bodies) == 1


def test_a_witness_that_no_one_answers_for_is_noted(zone: Zone, settings: Any) -> None:
    settings.AUCTION_WITNESSES = ["http://127.0.0.1:1/", "file:///no/such/folder/heads"]
    heads.sign_heads(now=NOW)
    assert heads.publish_heads(now=NOW) == 0
    assert all(cursor.problem for cursor in WitnessCursor.objects.all())
    assert WitnessCursor.objects.count() == 2


def test_the_audit_finds_a_log_that_is_not_what_was_signed(zone: Zone) -> None:
    heads.sign_heads(now=NOW)
    assert verify_zone(zone).problems == []
    signed = PublishedHead.objects.get(zone=zone)
    data = json.loads(signed.text)
    forged = json.dumps(data | {"hash": "ab" * 32})
    alter_row("UPDATE auction_signedhead SET text = %s WHERE id = %s", forged, signed.pk)
    found = verify_zone(zone).problems
    assert found == [
        f"the head at {signed.position} is not signed by the key it names",
        f"the head signed at {signed.position} is {'ab' * 32}, the log has {data['hash']}",
    ]


def test_the_audit_finds_an_entry_recorded_after_its_head_was_signed(zone: Zone) -> None:
    heads.sign_heads(now=NOW)
    signed = PublishedHead.objects.get(zone=zone)
    moment = datetime.fromisoformat(json.loads(signed.text)["signed_at"])
    entry = LogEntry.objects.get(zone=zone, position=signed.position)
    sql = "UPDATE auction_logentry SET recorded_at = %s WHERE id = %s"
    for late_s, is_found in ((60, False), (61, True)):
        recorded = moment + timedelta(seconds=late_s)
        alter_row(sql, recorded, entry.pk)
        assert verify_zone(zone).problems == is_found * [
            f"the head at {signed.position} was signed at {json.loads(signed.text)['signed_at']}, "
            f"and its entry was recorded at {recorded.isoformat()}"
        ]


def test_anybody_can_fetch_the_heads_and_the_keys_they_are_signed_with(
    zone: Zone, client: Client
) -> None:
    keys._loaded = None
    heads.sign_heads(now=NOW)
    fetched = client.get(f"/market/{zone.name}/heads")
    assert fetched["Content-Type"] == "application/jsonl"
    listed = client.get("/.well-known/finetender-keys.json").json()
    assert listed["algorithm"] == "Ed25519"
    in_use = [key["public_key"] for key in listed["keys"] if key["retired_at"] is None]
    assert len(in_use) == 1
    [signed] = read_witness(fetched.content.decode().splitlines(), keys=in_use)
    assert signed.head.zone == zone.name


def test_heads_are_given_in_pages_the_last_ones_first(
    zone: Zone, client: Client, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(heads, "HEADS_OF_A_PAGE", 2)
    monkeypatch.setattr(market, "HEADS_OF_A_PAGE", 2)
    for slots in range(5):
        grow(zone, slots + 1)
        heads.sign_heads(now=NOW)
    every = list(PublishedHead.objects.order_by("position").values_list("position", flat=True))
    assert len(every) == 5

    def page(address: str) -> tuple[list[int], str]:
        answer = client.get(address)
        listed = read_witness(answer.content.decode().splitlines())
        return [signed.head.position for signed in listed], answer.get("Link", "")

    path = f"/market/{zone.name}/heads"
    assert page(path)[0] == every[-2:]
    found, link = page(f"{path}?after=-1")
    assert (found, link) == (every[:2], f'<{path}?after={every[1]}>; rel="next"')
    found, link = page(link.partition(">")[0][1:])
    assert found == every[2:4]
    assert page(link.partition(">")[0][1:]) == (every[4:], "")
    assert client.get(f"{path}?after=first").status_code == 400
    # The audit reads them page by page too.
    assert verify_zone(zone).problems == []
