"""Entries, transcripts and the check that anybody can run."""

from __future__ import annotations

import json
import math
from collections.abc import Iterator
from dataclasses import replace
from functools import reduce
from itertools import pairwise
from pathlib import Path
from typing import Any, get_args

import pytest

from scheduler.__main__ import main
from scheduler.auction import ChainEntry, Engine, ZoneRules, entry_from_json, entry_to_json
from scheduler.auction.audit.transcripts import verify_transcript, write_transcript_lines
from scheduler.auction.audit.verify import verify, verify_public
from scheduler.auction.log import events
from scheduler.auction.log.codec import event_from_json, event_to_json, outcome_from_json
from scheduler.public_log.commitments import compute_commitment
from scheduler.public_log.entries import hide_bid
from scheduler.types import Cell, LaborVendor, VendorCapacity
from tests.unit.scheduler.auction.builders import enter, node, task

EVENTS = (
    events.NodeJoined(node(ask=0.1, available_from=-1)),
    events.NodeJoined(node("b", ask=1e-7, available_until=4)),
    events.BidArrived(
        task(
            bid=1e22,
            vendors=(LaborVendor("v", 1 / 3, 1),),
            operational_costs={"n": (0.1, 0.2), "b": (1.0,)},
        ),
        0,
    ),
    events.BidArrived(task("low", bid=0.0), 0),
    events.BidArrived(task("owned", bid=9.0, owner="somebody"), 0, salt="s2"),
    events.SlotAdvanced(1),
    events.NodeChanged(node("b", ask=2.0)),
    events.CellsReleased("t", (Cell(1, "n"),), paid_share=1.0),
    events.CellsReleased("t", (Cell(1, "b"), Cell(2, "b")), refunded=True, paid_share=0.1),
    events.TaskReplanned(task(compute_demand=4.0), 1, salt="s3"),
    events.TaskReplanned(
        task(compute_demand=4.0),
        1,
        salt="s5",
        preferred_node="b",
        avoided_nodes=("n", "gone"),
        tolerance=0.1,
    ),
    events.PlansMoved(
        (events.PlanMove("t", 5, 4.0, 2.0, {"g": 4.0}, (Cell(5, "n"),)),), 2, given_up=("low",)
    ),
    events.RulesChanged(ZoneRules(policy="lagrangian", horizon_slots=6, settings={"growth": 0.2})),
    events.VendorChanged(VendorCapacity("v", 2)),
    events.BidArrived(task("cleaned", vendors=(LaborVendor("v", 2.0, 1, load=2),)), 1, salt="s6"),
    events.PreparationEnded("cleaned", 2),
    events.NodeLeft("n", 3),
)
SOLVED = (
    events.PricesSolved(1, {"n": (0.1, 0.2)}, {"b": (0.3,)}, seed=3, inputs={"bids": 2}),
    events.PricesSolved(1, {"n": (0.3, 0.2)}, {}, inputs={"dual_value": 7.25}),
)


def _log(rules: ZoneRules) -> tuple[Engine, list[ChainEntry]]:
    engine = Engine(rules)
    return engine, [entry for event in EVENTS for entry in enter(engine, event)]


RULES = ZoneRules(horizon_slots=6, settings={"k": [1, 2]})


def test_every_type_of_event_can_be_read_and_no_other() -> None:
    for kind in get_args(events.Event):
        # Known, with a field missing.
        with pytest.raises(KeyError):
            event_from_json({"type": kind.__name__})
    for unknown in ("BidsLost", ["BidArrived"], None):
        with pytest.raises(ValueError, match="another version"):
            event_from_json({"type": unknown})


ERRATUM = events.ErratumNoted(2, "It was late.", "late", {"compute_price": 0.5})


@pytest.mark.parametrize("event", [*EVENTS, *SOLVED, ERRATUM], ids=lambda e: type(e).__name__)
def test_an_event_comes_back_from_json_as_it_was(event: events.Event) -> None:
    assert event_from_json(json.loads(json.dumps(event_to_json(event)))) == event


def test_a_replan_without_wishes_writes_none() -> None:
    plain = event_to_json(events.TaskReplanned(task(), 1, salt="s"))
    assert sorted(plain) == ["salt", "slot", "task", "type"]


def test_entries_come_back_even_where_a_store_writes_numbers_its_own_way() -> None:
    """A jsonb column gives 1e+22 back as an integer and sorts keys its own way."""
    _, log = _log(RULES)

    def reordered(value: object) -> object:
        if isinstance(value, dict):
            return {key: reordered(value[key]) for key in sorted(value, reverse=True)}
        if isinstance(value, list):
            return [reordered(item) for item in value]
        if isinstance(value, float) and value == int(value):
            return int(value)
        return value

    read = [entry_from_json(json.loads(json.dumps(reordered(entry_to_json(e))))) for e in log]
    assert read == log
    assert verify(read, rules=RULES).ok


def test_unknown_types_are_named() -> None:
    with pytest.raises(ValueError, match="unknown event type 'Rain'"):
        event_from_json({"type": "Rain"})
    with pytest.raises(ValueError, match="unknown outcome type 'Rain'"):
        outcome_from_json({"type": "Rain"})


def test_the_chain_commits_to_a_bid_and_does_not_tell_it() -> None:
    def arrived(bid: float, salt: str) -> ChainEntry:
        return enter(Engine(RULES), events.BidArrived(task(bid=bid), 0, salt=salt))[-1]

    assert arrived(5.0, "a").hash == arrived(5.0, "a").hash
    assert len({arrived(b, s).hash for b in (5.0, 6.0) for s in ("a", "b")}) == 4
    hidden = hide_bid(entry_to_json(arrived(5.0, "a")))
    assert hidden["event"]["task"]["bid_commitment"] == compute_commitment(bid=5.0, salt="a")
    assert "5.0" not in json.dumps(hidden["event"])


def test_the_chain_tells_the_name_that_a_bids_owner_has_in_it() -> None:
    def arrived(owner: str) -> ChainEntry:
        return enter(Engine(RULES), events.BidArrived(task(owner=owner), 0, salt="a"))[-1]

    assert len({arrived(owner).hash for owner in ("", "me", "you")}) == 3
    assert hide_bid(entry_to_json(arrived("me")))["event"]["task"]["owner"] == "me"
    assert "owner" not in json.dumps(entry_to_json(arrived("")))


def test_a_log_is_a_chain_from_the_rules_on() -> None:
    engine, log = _log(RULES)
    assert [entry.position for entry in log] == list(range(1, len(log) + 1))
    assert log[0].prev_hash == Engine(RULES).head_hash
    assert log[0].prev_hash != Engine(replace(RULES, horizon_slots=7)).head_hash
    for before, after in pairwise(log):
        assert after.prev_hash == before.hash
    assert log[-1].hash == engine.head_hash


@pytest.mark.parametrize("at", range(len(EVENTS)))
def test_a_transcript_verifies_from_its_rules_and_from_any_snapshot(at: int) -> None:
    engine = Engine(RULES)
    log = [entry for event in EVENTS[:at] for entry in enter(engine, event)]
    snapshot = engine.snapshot()
    tail = [entry for event in EVENTS[at:] for entry in enter(engine, event)]
    whole = verify_transcript(write_transcript_lines([*log, *tail], rules=RULES))
    assert (whole.ok, whole.entries, whole.head_hash) == (
        True,
        len(log) + len(tail),
        engine.head_hash,
    )
    part = verify_transcript(write_transcript_lines(tail, snapshot=snapshot))
    assert (part.ok, part.entries, part.head_hash) == (True, len(tail), engine.head_hash)


def _leaves(value: Any, path: tuple[Any, ...] = ()) -> Iterator[tuple[Any, ...]]:
    if isinstance(value, dict | list):
        keys = value if isinstance(value, dict) else range(len(value))
        for key in keys:
            yield from _leaves(value[key], (*path, key))
    else:
        yield path


def _other(value: bool | float | str | None) -> Any:
    """The nearest value that is not the same."""
    match value:
        case bool():
            return not value
        case int():
            return value + 1
        case float():
            return math.nextafter(value, math.inf)
        case str():
            return value + "x"
        case None:
            return {}


@pytest.mark.parametrize("shown", [True, False], ids=["bids shown", "bids left out"])
def test_no_value_of_a_transcript_can_be_altered_unnoticed(shown: bool) -> None:
    """Not by the last bit of a number, nor in what is only there to be read."""
    _, log = _log(RULES)
    shows = None if shown else lambda _: False
    lines = [json.loads(line) for line in write_transcript_lines(log, rules=RULES, shows=shows)]
    header = {"bids_left_out"}
    paths = [path for path in _leaves(lines) if not header.intersection(path)]
    assert len(paths) > 200
    unnoticed: list[tuple[Any, ...]] = []
    for path in paths:
        altered = json.loads(json.dumps(lines))
        *above, name = path
        place = reduce(lambda value, key: value[key], above, altered)
        place[name] = _other(place[name])
        try:
            found = verify_transcript(map(json.dumps, altered))
        except (ValueError, TypeError, IndexError):
            # No transcript any more, as the command line says of such a file.
            continue
        if found.ok:
            unnoticed.append(path)
    assert unnoticed == []


def test_an_entry_of_a_public_log_names_the_hash_of_the_one_before_it() -> None:
    _, log = _log(RULES)
    entries = [entry_to_json(entry) for entry in log]
    assert verify_public(entries, rules=RULES).ok
    entries[2]["prev_hash"] = "0" * 64
    found = verify_public(entries, rules=RULES)
    assert (found.ok, found.position) == (False, 3)
    assert found.problem == "the entry does not build on the one before it"


def test_verify_needs_something_to_start_from() -> None:
    with pytest.raises(ValueError, match="snapshot"):
        verify([])
    with pytest.raises(ValueError, match="either"):
        next(write_transcript_lines([]))


def test_the_command_says_yes_to_a_true_log_and_no_to_one_that_is_off_by_a_cent(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    engine, log = _log(RULES)
    lines = list(write_transcript_lines(log, rules=RULES))
    path = tmp_path / "transcript.jsonl"
    path.write_text("\n".join(lines) + "\n")
    assert main(["verify", str(path)]) == 0
    assert json.loads(capsys.readouterr().out) == {
        "ok": True,
        "entries": len(log),
        "head_hash": engine.head_hash,
        "position": None,
        "problem": None,
        "off_by": None,
        "witnessed": 0,
        "solved_again": 0,
        "taken_as_logged": 0,
        "beats_missed": 0,
        "beats_late": 0,
        "unwitnessed": 1,
        "begins_at": 0,
        "known_faults": [],
        "lost_heads": [],
    }
    altered = json.loads(lines[4])
    altered["outcome"]["payment"] += 0.01
    path.write_text("\n".join([*lines[:4], json.dumps(altered), *lines[5:]]))
    assert main(["verify", str(path)]) == 1
    found = json.loads(capsys.readouterr().out)
    assert (found["ok"], found["position"], found["entries"]) == (False, 4, 3)
    assert found["problem"] == "the replay differs from the log in payment"


FIRST = next(write_transcript_lines([], rules=RULES))


@pytest.mark.parametrize(
    ("text", "problem"),
    [
        ("", "line 1 is not JSON"),
        ("{}", "neither rules nor a snapshot"),
        ("[]", "line 1 is not a JSON object"),
        (FIRST + "\n{}", "line 2 is not a log entry"),
        (FIRST + '\n{"position": 1e999}', "line 2 is not a log entry"),
        (FIRST + '\n{"position": 1, "position": 2}', "line 2 is not JSON"),
        ('{"snapshot": {"position": 1e999, "head_hash": ""}}', "line 1 has no snapshot"),
    ],
)
def test_a_file_that_is_no_transcript_is_refused_by_line(
    tmp_path: Path, text: str, problem: str, capsys: pytest.CaptureFixture[str]
) -> None:
    path = tmp_path / "odd.jsonl"
    path.write_text(text)
    assert main(["verify", str(path)]) == 2
    said = capsys.readouterr()
    assert problem in said.err
    assert said.out == ""


def test_an_unknown_command_prints_the_known_ones(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["sing"]) == 2
    assert "auction" in capsys.readouterr().err
