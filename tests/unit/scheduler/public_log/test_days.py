"""Days, seeds and beats of a published log, held against what witnesses have."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta

import pytest
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey

from scheduler.auction import Engine, ZoneRules
from scheduler.auction.audit.transcripts import verify_transcript, write_transcript_lines
from scheduler.auction.log import events
from scheduler.public_log import check_transcript, days
from scheduler.public_log.canonical_json import read_hex
from scheduler.public_log.heads import Head, SignedHead, sign_head
from scheduler.public_log.witness import BEAT_WITHIN_S
from tests.unit.scheduler.auction.builders import node

EPOCH_S = 1_767_225_600
#: Beats of five minutes.
RULES = ZoneRules(horizon_slots=6, day_slots=10, slot_s=600, epoch_s=EPOCH_S)
KEY = Ed25519PrivateKey.from_private_bytes(bytes(32))
OTHER = Ed25519PrivateKey.from_private_bytes(bytes([1] * 32))


def list_findings(
    *after: events.Event, seconds: float, key: Ed25519PrivateKey = KEY
) -> set[tuple[str | None, int]]:
    """What both verifiers find of a log whose head was signed so long after slot 0 began."""
    engine = Engine(RULES)
    log = [engine.apply(events.SlotAdvanced(1)), *map(engine.apply, after)]
    lines = list(write_transcript_lines(log, zone="z", rules=RULES))
    heads = [sign(engine, at=EPOCH_S + seconds, key=key)]
    found = [verify_transcript(lines, witness=heads), check_transcript(lines, witness=heads)]
    return {(each.problem, each.beats_late) for each in found}


def sign(engine: Engine, *, at: float, key: Ed25519PrivateKey) -> SignedHead:
    moment = datetime(1970, 1, 1, tzinfo=UTC) + timedelta(seconds=at)
    return sign_head(
        Head("z", engine.position, engine.head_hash),
        signed_at=moment.isoformat(),
        public_key=key.public_key().public_bytes_raw().hex(),
        sign=key.sign,
    )


@pytest.mark.parametrize(
    ("seconds", "early"), [(900, False), (900 - BEAT_WITHIN_S, False), (839, True)]
)
def test_a_beat_does_not_come_before_its_time(seconds: float, early: bool) -> None:
    moment = datetime.fromtimestamp(EPOCH_S + seconds, UTC).isoformat()
    problem = f"the beat at 2 came before its time: the market signed it on {moment}"
    found = list_findings(events.SlotAdvanced(1, 1), seconds=seconds)
    assert found == {(problem if early else None, 0)}


@pytest.mark.parametrize(("seconds", "late"), [(959, 0), (961, 1)])
def test_a_beat_that_is_held_back_while_the_log_goes_on_is_counted(
    seconds: float, late: int
) -> None:
    nodes = [events.NodeJoined(node(name)) for name in "abcd"]
    assert list_findings(*nodes, seconds=seconds) == {(None, late)}
    # Where nothing happened since the beat, none was held back.
    assert list_findings(*nodes[:2], seconds=seconds) == {(None, 0)}


@pytest.mark.parametrize(
    ("zone", "key", "passes"), [("z", KEY, True), ("y", KEY, False), ("z", OTHER, False)]
)
def test_a_day_is_promised_in_the_name_and_under_the_key_of_the_logs_heads(
    zone: str, key: Ed25519PrivateKey, passes: bool
) -> None:
    """A witness signs one promise of a name and a key, and with more of them more values."""
    engine = Engine(RULES)
    log = [engine.apply(events.SlotAdvanced(1))]
    heads = [sign(engine, at=EPOCH_S + 601, key=KEY)]
    named = key.public_key().public_bytes_raw().hex()
    log.append(engine.apply(events.DayPromised(1, zone, days.commit_secret("s"), named)))
    heads.append(sign(engine, at=EPOCH_S + 602, key=KEY))
    lines = list(write_transcript_lines(log, zone="z", rules=RULES))
    problem = None if passes else f"a day was promised for zone {zone} under another key"
    assert verify_transcript(lines, witness=heads).problem == problem
    assert check_transcript(lines, witness=heads).problem == problem


def test_a_key_that_came_after_the_last_head_may_promise_days() -> None:
    """Who has an old head of a market whose key was replaced since finds its log in order."""
    engine = Engine(RULES)
    log = [engine.apply(events.SlotAdvanced(1))]
    heads = [sign(engine, at=EPOCH_S + 601, key=KEY)]
    named = OTHER.public_key().public_bytes_raw().hex()
    log.append(engine.apply(events.DayPromised(1, "z", days.commit_secret("s"), named)))
    lines = list(write_transcript_lines(log, zone="z", rules=RULES))
    assert verify_transcript(lines, witness=heads).problem is None
    assert check_transcript(lines, witness=heads).problem is None


def test_days_go_on_from_a_snapshot() -> None:
    engine = Engine(RULES)
    for event in (
        events.SlotAdvanced(1),
        events.DayPromised(
            1, "z", days.commit_secret("s"), "", KEY.public_key().public_bytes_raw().hex()
        ),
    ):
        promised = engine.apply(event)
    begin = engine.snapshot()
    promise = engine.day.promise
    assert promise is not None
    assert promise.entry_hash == promised.hash
    log = [engine.apply(events.SlotAdvanced(10))]
    signature = days.sign_promise(promise, sign=KEY.sign)
    log.append(engine.apply(events.DayOpened(1, "s", signature)))
    lines = list(write_transcript_lines(log, zone="z", snapshot=begin))
    assert (verify_transcript(lines).problem, check_transcript(lines).problem) == (None, None)
    # The signature of another is none.
    with pytest.raises(ValueError, match="the witness of day 1 has not signed"):
        days.open_day(
            days.DayValue("", promise=promise),
            day=1,
            secret="s",
            witness_signature=days.sign_promise(promise, sign=OTHER.sign),
            today=1,
        )


@pytest.mark.parametrize("text", ["AB", " ab", "a b", "abab", "", "xx", "ab\n"])
def test_bytes_have_one_hex(text: str) -> None:
    assert read_hex("ab", length=1) == b"\xab"
    with pytest.raises(ValueError, match="hex"):
        read_hex(text, length=1)
