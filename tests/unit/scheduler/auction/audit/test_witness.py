"""Witnessed heads find a log that was cut, written again, or shown in two versions."""

from __future__ import annotations

import json
from datetime import UTC, datetime
from pathlib import Path

import pytest
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey

from scheduler.auction import Engine, ZoneRules
from scheduler.auction.audit.command import main
from scheduler.auction.audit.transcripts import verify_transcript, write_transcript_lines
from scheduler.auction.log import events
from scheduler.auction.log.chain import seal
from scheduler.public_log.heads import Head, SignedHead, sign_head, signed_head_to_json
from scheduler.public_log.witness import LostHeads, read_witness
from tests.unit.scheduler.auction.builders import enter, node, task

RULES = ZoneRules(horizon_slots=6)
KEY = Ed25519PrivateKey.from_private_bytes(bytes(32))
PUBLIC = KEY.public_key().public_bytes_raw().hex()
NOON = "2026-01-01T12:00:00+00:00"
OTHER = Ed25519PrivateKey.from_private_bytes(bytes([1]) * 32)


def history(*bids: float) -> tuple[Engine, list[str]]:
    """A zone's log with one bid after the other; its engine and transcript."""
    engine = Engine(RULES)
    entries = [engine.apply(events.NodeJoined(node(ask=10.0)))]
    for i, bid in enumerate(bids):
        entries += enter(engine, events.BidArrived(task(f"t{i}", bid=bid), 0, f"salt {i}"))
    lines = list(write_transcript_lines(entries, zone="a", rules=RULES))
    return engine, lines


def head(position: int, hash_: str, *, zone: str = "a", signed_at: str = NOON) -> SignedHead:
    return sign_head(
        Head(zone, position, hash_),
        signed_at=signed_at,
        public_key=PUBLIC,
        sign=KEY.sign,
    )


def head_of(lines: list[str], position: int, signed_at: str = NOON) -> SignedHead:
    return head(position, json.loads(lines[position])["hash"], signed_at=signed_at)


ENGINE, LINES = history(50.0, 60.0, 1.0)


def test_a_log_that_its_witnesses_saw_verifies_and_says_how_many_agree() -> None:
    start = head(0, json.loads(LINES[1])["prev_hash"])
    witness = [start, head_of(LINES, 3), head_of(LINES, 7), head_of(LINES, 7)]
    found = verify_transcript(LINES, witness=witness)
    assert (found.ok, found.entries, found.witnessed) == (True, 7, 4)


def test_a_log_that_was_cut_short_is_found_only_with_a_witness() -> None:
    cut = LINES[:-1]
    assert verify_transcript(cut).ok
    found = verify_transcript(cut, witness=[head_of(LINES, 3), head_of(LINES, 7)])
    assert (found.ok, found.position, found.witnessed) == (False, 7, 1)
    assert found.problem is not None
    assert found.problem.startswith("the log was cut short: it ends at 6")


def test_another_history_that_replays_is_found_only_with_a_witness() -> None:
    _, again = history(50.0, 61.0, 1.0)
    assert verify_transcript(again).ok
    found = verify_transcript(again, witness=[head_of(LINES, 1), head_of(LINES, 4)])
    assert (found.ok, found.position, found.witnessed) == (False, 4, 1)
    assert found.problem is not None
    assert found.problem.startswith("the log was written again: its entry 4 has the hash")


def test_two_signed_heads_of_one_position_are_named_as_two_histories() -> None:
    _, again = history(50.0, 61.0, 1.0)
    witness = [head_of(LINES, 4), head_of(again, 4)]
    for lines in (LINES, again):
        found = verify_transcript(lines, witness=witness)
        assert not found.ok
        assert found.problem is not None
        assert found.problem.startswith(
            "the market signed two different heads of zone a at position 4"
        )


BACKUP, RESTORE, LATER = (f"2026-01-01T{hour}:00:00+00:00" for hour in (11, 13, 14))


def restored_history(*, backed_up_at: str = BACKUP, restored_at: str = RESTORE) -> list[str]:
    """The log put back to its entry 3, with other bids after that."""
    engine = Engine(RULES)
    entries = [engine.apply(events.NodeJoined(node(ask=10.0)))]
    entries += enter(engine, events.BidArrived(task("t0", bid=50.0), 0, "salt 0"))
    entries.append(engine.apply(events.LogRestored(backed_up_at, restored_at)))
    entries += enter(engine, events.BidArrived(task("t9", bid=61.0), 0, "salt 9"))
    return list(write_transcript_lines(entries, zone="a", rules=RULES))


def test_heads_of_entries_that_the_market_says_it_lost_are_counted_and_excused(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    again = restored_history()
    witness = [*(head_of(LINES, at) for at in (3, 4, 7)), head_of(again, 6, LATER)]
    found = verify_transcript(again, witness=witness)
    assert (found.ok, found.entries, found.witnessed) == (True, 6, 2)
    assert found.lost_heads == (LostHeads(2, 4, BACKUP, RESTORE),)
    file, heads = tmp_path / "log.jsonl", tmp_path / "heads.jsonl"
    file.write_text("\n".join(again))
    heads.write_text("\n".join(json.dumps(signed_head_to_json(each)) for each in witness))
    assert main([str(file), "--witness", str(heads)]) == 3
    assert "2 signed heads or receipts are of entries that the market lost" in (
        capsys.readouterr().err
    )
    assert main([str(file)]) == 0


FAR = "2099-01-01T00:00:00+00:00"


@pytest.mark.parametrize(
    ("restored_at", "signed_at", "now"),
    [
        pytest.param(RESTORE, LATER, None, id="signed after the restore"),
        pytest.param(FAR, LATER, datetime(2026, 2, 1, tzinfo=UTC), id="a restore to come"),
        pytest.param(FAR, "2026-01-01T15:00:00+00:00", None, id="the log had gone on by then"),
        pytest.param(RESTORE, "2025-01-01T12:00:00+00:00", None, id="the backup holds it"),
        pytest.param(RESTORE, "2026-01-01T12:00:00", None, id="no moment"),
        pytest.param(RESTORE, "soon", None, id="no moment at all"),
    ],
)
def test_a_restore_excuses_only_what_was_signed_between_its_backup_and_itself(
    restored_at: str, signed_at: str, now: datetime | None
) -> None:
    again = restored_history(restored_at=restored_at)
    witness = [head_of(again, 6, LATER), head_of(LINES, 4, signed_at)]
    found = verify_transcript(again, witness=witness, now=now)
    assert (found.ok, found.position, found.lost_heads) == (False, 4, ())


def test_a_restore_excuses_nothing_from_before_its_end() -> None:
    _, again = history(51.0, 60.0, 1.0)
    found = verify_transcript(restored_history(), witness=[head_of(again, 3)])
    assert (found.ok, found.position, found.lost_heads) == (False, 3, ())


def test_one_loss_has_one_history() -> None:
    _, other = history(50.0, 62.0, 1.0)
    witness = [head_of(LINES, 4), head_of(other, 4)]
    found = verify_transcript(restored_history(), witness=witness)
    assert not found.ok
    assert found.problem is not None
    assert found.problem.startswith("the market signed two different heads of zone a at position 4")


def test_a_transcript_that_begins_after_a_restore_asks_for_the_whole_log() -> None:
    engine = Engine(RULES)
    engine.apply(events.NodeJoined(node(ask=10.0)))
    enter(engine, events.BidArrived(task("t0", bid=50.0), 0, "salt 0"))
    engine.apply(events.LogRestored(BACKUP, RESTORE))
    snapshot = engine.snapshot()
    entries = enter(engine, events.BidArrived(task("t9", bid=61.0), 0, "salt 9"))
    lines = list(write_transcript_lines(entries, zone="a", snapshot=snapshot))
    found = verify_transcript(lines, witness=[head_of(LINES, 5)])
    assert (found.ok, found.position) == (False, 5)
    assert found.problem is not None
    assert found.problem.endswith("It begins at 4: take the whole log")


def test_a_market_may_go_on_from_a_backup_between_a_receipt_and_its_decision() -> None:
    engine = Engine(RULES)
    engine.apply(events.NodeJoined(node(ask=10.0)))
    bid = events.BidArrived(task("t0", bid=50.0), 0, "salt 0")
    engine.apply(events.BidsReceived((("t0", seal(bid)),)))
    engine.apply(events.LogRestored(BACKUP, RESTORE))
    assert engine.apply(bid).position == 4


def test_heads_of_other_zones_say_nothing_and_are_no_witness() -> None:
    other = head(9, "ab" * 32, zone="b")
    assert verify_transcript(LINES, witness=[other, head_of(LINES, 3)]).ok
    found = verify_transcript(LINES, witness=[other])
    assert (found.ok, found.problem) == (False, "the witness has no head of this log's zone")
    nameless = [json.dumps({**json.loads(LINES[0]), "zone": None}), *LINES[1:]]
    assert verify_transcript(nameless, witness=[head_of(LINES, 3)]).ok
    with pytest.raises(ValueError, match="the witness has heads of a, b"):
        verify_transcript(nameless, witness=[other, head_of(LINES, 3)])


def test_the_order_and_the_times_of_heads_do_not_matter() -> None:
    """The market's clock may go back; positions say what came first."""
    later = sign_head(
        Head("a", 2, json.loads(LINES[2])["hash"]),
        signed_at="2027-01-01T00:00:00+00:00",
        public_key=PUBLIC,
        sign=KEY.sign,
    )
    assert verify_transcript(LINES, witness=[head_of(LINES, 4), later]).witnessed == 2


def test_heads_from_before_a_transcripts_snapshot_are_passed_over() -> None:
    engine = Engine(RULES)
    first = engine.apply(events.NodeJoined(node(ask=10.0)))
    snapshot = engine.snapshot()
    rest = enter(engine, events.BidArrived(task(), 0, "s"))
    lines = list(write_transcript_lines(rest, zone="a", snapshot=snapshot))
    found = verify_transcript(lines, witness=[head(0, "ab" * 32), head(1, first.hash)])
    assert (found.ok, found.witnessed) == (True, 1)
    assert not verify_transcript(lines, witness=[head(1, "ab" * 32)]).ok


def test_a_line_that_the_market_did_not_sign_is_refused() -> None:
    good = json.dumps(signed_head_to_json(head_of(LINES, 4)))
    assert read_witness([good, "", good], keys=[PUBLIC]) == [head_of(LINES, 4)] * 2
    altered = good.replace('"position": 4', '"position": 5')
    for lines, problem in (
        ([good, altered], "line 2 of the witness is not signed by the key it names"),
        (["[]"], "line 1 of the witness is not a head: it is not a JSON object"),
        (["{"], "line 1 of the witness is not a head"),
    ):
        with pytest.raises(ValueError, match=problem):
            read_witness(lines)
    with pytest.raises(ValueError, match="which is none of the keys given"):
        read_witness([good], keys=[OTHER.public_key().public_bytes_raw().hex()])


def test_the_command_exits_by_what_the_witness_says(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    log, short, seen = tmp_path / "log", tmp_path / "short", tmp_path / "seen"
    log.write_text("\n".join(LINES))
    short.write_text("\n".join(LINES[:-1]))
    seen.write_text(json.dumps(signed_head_to_json(head_of(LINES, 7))) + "\n")
    assert main([str(log), "--witness", str(seen), "--key", PUBLIC]) == 0
    assert main([str(short), "--witness", str(seen)]) == 1
    assert "the log was cut short" in capsys.readouterr().out
    assert main([str(log), "--witness", str(seen), "--key", "00"]) == 2
    seen.write_text("{}\n")
    assert main([str(log), "--witness", str(seen)]) == 2
