"""What a log shows of itself, found without the auction that wrote it."""

from __future__ import annotations

import json
from collections.abc import Callable
from contextlib import suppress
from typing import Any

import pytest
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey

from scheduler.auction import Engine, ZoneRules
from scheduler.auction.audit.transcripts import verify_transcript, write_transcript_lines
from scheduler.auction.log import events
from scheduler.auction.log.chain import seal
from scheduler.public_log import check_receipt, check_transcript
from scheduler.public_log.entries import hash_entry
from scheduler.public_log.heads import (
    Head,
    Receipt,
    SignedHead,
    sign_head,
    signed_head_to_json,
)
from tests.unit.scheduler.auction.builders import node, task

RULES = ZoneRules(horizon_slots=6)
KEY = Ed25519PrivateKey.from_private_bytes(bytes(32))
PUBLIC = KEY.public_key().public_bytes_raw().hex()
NOON = "2026-01-01T12:00:00+00:00"
FIRST, SECOND, THIRD, *PAIR = (
    events.BidArrived(task(name, bid=bid), 0, f"salt {name}", bundle)
    for name, bid, bundle in (
        ("first", 50.0, ""),
        ("second", 1.0, ""),
        ("third", 60.0, ""),
        ("one", 70.0, "both"),
        ("two", 80.0, "both"),
    )
)
EVENTS: list[events.Event] = [
    events.NodeJoined(node(ask=1.0)),
    events.BidsReceived(tuple((of.task.id, seal(of)) for of in (FIRST, SECOND, THIRD))),
    FIRST,
    events.ReceiptsVoided(("second",), "late"),
    THIRD,
    events.BidsReceived(tuple((of.task.id, seal(of)) for of in PAIR)),
    events.BundleArrived("both", tuple(PAIR), "salt both"),
    *PAIR,
    events.SlotAdvanced(1),
]


def write_log(*, hides_bids: bool) -> list[str]:
    engine = Engine(RULES)
    entries = [engine.apply(event) for event in EVENTS]
    shows = (lambda _: False) if hides_bids else None
    return list(write_transcript_lines(entries, zone="a", rules=RULES, shows=shows))


LINES = write_log(hides_bids=True)


def chain_again(entries: list[dict[str, Any]]) -> list[str]:
    """The log as its owner would write it again: every hash fits the entries as they are now."""
    head, lines = json.loads(LINES[1])["prev_hash"], [LINES[0]]
    for position, entry in enumerate(entries, start=1):
        entry |= {"position": position, "prev_hash": head}
        parts = {name: entry[name] for name in ("event", "outcome")}
        head = hash_entry(position=position, prev_hash=head, **parts)
        lines.append(json.dumps(entry | {"hash": head}))
    return lines


def forge(change: Callable[[list[dict[str, Any]]], Any]) -> list[str]:
    entries = [json.loads(line) for line in LINES[1:]]
    change(entries)
    return chain_again(entries)


def sign(position: int, hash_: str, receipt: Receipt | None = None) -> SignedHead:
    head = Head("a", position, hash_)
    return sign_head(head, signed_at=NOON, public_key=PUBLIC, sign=KEY.sign, receipt=receipt)


@pytest.mark.parametrize("hides_bids", [True, False])
def test_a_log_that_the_auction_wrote_holds_with_bids_shown_or_left_out(hides_bids: bool) -> None:
    lines = write_log(hides_bids=hides_bids)
    found = check_transcript(lines)
    replayed = verify_transcript(lines)
    assert replayed.ok
    assert (found.ok, found.entries, found.head_hash) == (True, 10, replayed.head_hash)
    assert (found.decided, found.problem, found.decided_again) == (4, None, False)


@pytest.mark.parametrize("line", range(len(LINES)))
def test_a_line_that_is_taken_out_is_missed_and_found(line: int) -> None:
    lines = LINES[:line] + LINES[line + 1 :]
    if line == len(LINES) - 1:
        # A chain cannot tell that its end was cut off; who saw its head can.
        assert check_transcript(lines).ok
        seen = sign(10, json.loads(LINES[-1])["hash"])
        found = check_transcript(lines, witness=[seen])
        assert (found.ok, found.position) == (False, 10)
        assert "cut short" in (found.problem or "")
    elif line == 0:
        with pytest.raises(ValueError, match="this is not a transcript"):
            check_transcript(lines)
    else:
        found = check_transcript(lines)
        assert (found.ok, found.position, found.entries) == (False, line + 1, line - 1)


def list_leaves(value: Any, path: tuple[Any, ...] = ()) -> list[tuple[Any, ...]]:
    if isinstance(value, dict):
        return [leaf for name in value for leaf in list_leaves(value[name], (*path, name))]
    if isinstance(value, list):
        return [leaf for at, item in enumerate(value) for leaf in list_leaves(item, (*path, at))]
    return [path]


def test_every_value_of_a_log_is_bound_by_what_is_checked() -> None:
    checked = 0
    for number, line in enumerate(LINES):
        for *parents, last in list_leaves(json.loads(line)):
            value = json.loads(line)
            if number == 0 and last in ("zone", "bids_left_out"):
                continue
            inner: Any = value
            for name in parents:
                inner = inner[name]
            inner[last] = "other" if inner[last] is None else None
            lines = [*LINES[:number], json.dumps(value), *LINES[number + 1 :]]
            with suppress(ValueError):
                assert not check_transcript(lines).ok, (number, parents, last)
            checked += 1
    assert checked > 150


@pytest.mark.parametrize(
    ("change", "problem"),
    [
        (
            lambda log: log.insert(2, log.pop(4)),
            "bid third is decided out of turn: first was received first",
        ),
        (
            lambda log: log.insert(2, log.pop(9)),
            "SlotAdvanced must wait: bid first was received and is not decided",
        ),
        (
            lambda log: log[2]["event"]["task"].update(deadline_slot=4),
            "bid first is not the one that was received",
        ),
        (lambda log: log.pop(1), "bid first is decided out of turn: none was received first"),
        (lambda log: log.insert(8, log.pop(7)), "bid one is not entered"),
        (lambda log: log.pop(6), "bid one is not of the bundle that is decided"),
        (lambda log: log.insert(1, log[1]), "each received once"),
    ],
)
def test_a_log_that_was_written_again_is_still_held_to_the_order_of_receipts(
    change: Callable[[list[dict[str, Any]]], Any], problem: str
) -> None:
    found = check_transcript(forge(change))
    assert not found.ok
    assert problem in (found.problem or "")
    # The replay asks the same function.
    assert (verify_transcript(forge(change)).problem or "").endswith(found.problem or "?")


def test_another_order_of_received_bids_is_found_by_who_has_a_receipt() -> None:
    def swap(log: list[dict[str, Any]]) -> None:
        log[1]["event"]["bids"].reverse()
        log[2], log[4] = log[4], log[2]

    written = forge(swap)
    assert check_transcript(written).ok
    received = json.loads(LINES[2])
    receipt = sign(2, received["hash"], Receipt("first", seal(FIRST)))
    found = check_transcript(written, witness=[receipt])
    assert (found.ok, found.position) == (False, 2)
    assert "written again" in (found.problem or "")
    told = check_receipt(signed_head_to_json(receipt), written)
    assert [step.ok for step in told.steps] == [True, False, False, True]


def test_a_receipt_is_looked_up_in_the_log() -> None:
    received = json.loads(LINES[2])
    data = signed_head_to_json(sign(2, received["hash"], Receipt("first", seal(FIRST))))
    found = check_receipt(data, LINES, keys=[PUBLIC])
    assert (found.ok, found.zone, found.bid_id) == (True, "a", "first")
    # Less than a micro-dollar, to its nearest one.
    assert json.loads(LINES[3])["outcome"]["payment"] == 0.8
    assert found.steps[-1].text == "Entry 3 decided it: admitted at $0.000001."
    assert check_receipt(data, LINES[:3]).steps[-1].text == (
        "The log does not say yet what became of it."
    )
    assert not check_receipt(data, LINES[:1]).ok
    assert not check_receipt(data, LINES, keys=["00" * 32]).ok
    assert not check_receipt(data | {"bid_id": "third"}, LINES).ok
    other = signed_head_to_json(sign(2, received["hash"], Receipt("first", seal(THIRD))))
    told = [step.ok for step in check_receipt(other, LINES).steps]
    assert told == [True, True, False, False]
    with pytest.raises(ValueError, match="of no bid"):
        check_receipt(signed_head_to_json(sign(2, received["hash"])), LINES)


def test_an_entry_that_the_log_itself_names_as_wrong_is_told() -> None:
    engine = Engine(RULES)
    erratum = events.ErratumNoted(1, "It was late.", "late", {"compute_price": 0.5})
    entries = [engine.apply(event) for event in (EVENTS[0], erratum)]
    found = check_transcript(write_transcript_lines(entries, zone="a", rules=RULES))
    assert found.ok
    assert found.errata == ("entry 1 is wrong, as entry 2 says: It was late. Rule: late.",)


def test_a_log_goes_on_from_a_snapshot_with_the_bids_that_it_had_received() -> None:
    engine = Engine(RULES)
    for event in EVENTS[:3]:
        engine.apply(event)
    snapshot = engine.snapshot()
    entries = [engine.apply(event) for event in EVENTS[3:7]]
    middle = engine.snapshot()
    later = [engine.apply(event) for event in EVENTS[7:]]
    found = check_transcript(write_transcript_lines(entries, zone="a", snapshot=snapshot))
    assert (found.ok, found.begins_at, found.entries) == (True, 3, 4)
    assert check_transcript(write_transcript_lines(later, zone="a", snapshot=middle)).decided == 2
    lost = write_transcript_lines(entries, zone="a", snapshot=snapshot | {"receipts": []})
    assert check_transcript(lost).problem == (
        "the entry cannot have happened: only open receipts can be voided"
    )
