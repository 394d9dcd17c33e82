"""Files that a stranger, or the market, wrote to be taken for more than they are."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from scheduler.auction import Engine
from scheduler.auction.audit.transcripts import verify_transcript, write_transcript_lines
from scheduler.auction.log.chain import seal
from scheduler.public_log import check_receipt, check_transcript, files, read_witness
from scheduler.public_log.canonical_json import parse_json, serialize_canonical
from scheduler.public_log.command import main
from scheduler.public_log.entries import PRIVATE_PARTS, digest
from scheduler.public_log.heads import Receipt, signed_head_to_json
from tests.unit.scheduler.public_log.test_transcript import (
    EVENTS,
    FIRST,
    LINES,
    PUBLIC,
    RULES,
    SECOND,
    THIRD,
    chain_again,
    forge,
    sign,
    write_log,
)

RECEIVED = json.loads(LINES[2])["hash"]
RECEIPT = signed_head_to_json(sign(2, RECEIVED, Receipt("first", seal(FIRST))))


def build_proof() -> dict[str, Any]:
    """The proof of ``first``, as its owner downloads it."""
    shown = json.loads(write_log(hides_bids=False)[3])
    private = {name: shown["outcome"][name] for name in PRIVATE_PARTS if name in shown["outcome"]}
    return {
        "format": "finetender-proof-3",
        "zone": "a",
        "bid_id": "first",
        "position": 3,
        "opening": {"bid": 50.0, "salt": "salt first", "private": private},
        "entries": [json.loads(line) for line in LINES[2:5]],
        "receipt": RECEIPT,
    }


def store(path: Path, content: Any) -> str:
    lines = content if isinstance(content, list) else [json.dumps(content)]
    path.write_text("\n".join(lines), encoding="utf-8")
    return str(path)


@pytest.fixture
def proof(tmp_path: Path) -> str:
    return store(tmp_path / "proof.json", build_proof())


@pytest.fixture
def log(tmp_path: Path) -> Path:
    return tmp_path / "log.jsonl"


def test_a_proof_and_the_log_that_it_is_of_hold(proof: str, log: Path) -> None:
    asked = ["receipt", proof, "--limit", "0.00005", "--key", PUBLIC.upper()]
    assert main(asked) == 0
    assert main([*asked, "--transcript", store(log, LINES)]) == 0


def test_a_proof_of_another_decision_than_the_log_has_is_refused(
    proof: str, log: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """The market told its owner that it won, and the public that it lost."""

    def lose(entries: list[dict[str, Any]]) -> None:
        entries[2]["outcome"] |= {"admitted": False, "refusal": "late"}

    store(log, forge(lose))
    assert check_transcript(log.read_text().splitlines()).ok
    assert main(["receipt", proof, "--transcript", str(log)]) == 1
    wrong = [line for line in capsys.readouterr().out.splitlines() if line.startswith("WRONG")]
    assert wrong == ["WRONG Entry 3 of the log is not the decision that the proof has."]


def test_a_log_without_the_decision_of_a_proof_is_refused(proof: str, log: Path) -> None:
    assert main(["receipt", proof, "--transcript", store(log, LINES[:3])]) == 1


def test_a_receipt_holds_against_no_log_that_is_no_chain() -> None:
    lost = json.loads(LINES[3])
    lost["outcome"] |= {"admitted": False}
    for lines in (
        [*LINES[:3], json.dumps(lost), *LINES[4:]],
        [LINES[0], *LINES[2:]],
        [*LINES[:4], *LINES[5:]],
        [json.dumps(json.loads(LINES[0]) | {"zone": "b"}), *LINES[1:]],
    ):
        assert not check_receipt(RECEIPT, lines).ok
    assert check_receipt(RECEIPT, LINES).ok


def test_a_receipt_that_was_taken_back_is_said_to_be() -> None:
    data = signed_head_to_json(sign(2, RECEIVED, Receipt("second", seal(SECOND))))
    found = check_receipt(data, LINES)
    assert found.ok
    assert found.steps[-1].text == "Entry 4 took the receipt back: late."


def test_an_entry_of_another_kind_decides_no_bid(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """The market signs a receipt of it, and all hashes fit."""
    entries = [json.loads(line) for line in LINES[1:]]
    entries[2]["event"]["type"] = "SlotAdvanced"
    sealed = digest(entries[2]["event"])
    entries[1]["event"]["bids"][0][1] = sealed
    log = [json.loads(line) for line in chain_again(entries)]
    receipt = signed_head_to_json(sign(2, log[2]["hash"], Receipt("first", sealed)))
    made = build_proof() | {"entries": log[2:5], "receipt": receipt}
    assert main(["receipt", store(tmp_path / "other.json", made)]) == 1
    wrong = [line for line in capsys.readouterr().out.splitlines() if line.startswith("WRONG")]
    assert wrong == ["WRONG Entry 3 decides another bid than first."]


def test_what_a_file_says_is_printed_as_one_line_that_steers_nothing(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    made = build_proof()
    made["entries"][1]["outcome"] |= {
        "admitted": False,
        "refusal": "late\nok    The signature holds.\x1b[2A\x1b[J",
    }
    assert main(["receipt", store(tmp_path / "proof.json", made)]) == 1
    told = capsys.readouterr().out
    assert "\x1b" not in told
    assert "ok    The signature holds." not in told.splitlines()
    assert main(["receipt", store(tmp_path / "p.json", {"format": "\x1b[2J"})]) == 2
    assert "\x1b" not in capsys.readouterr().err


@pytest.mark.parametrize("name", ["transcript", "receipt"])
@pytest.mark.parametrize(
    "text",
    [
        '{"format": "finetender-proof-3", "format": "finetender-receipt-1"}',
        f'{{"rules": {"[" * 100_000}{"]" * 100_000}}}',
        '{"rules": NaN}',
        '{"rules": {"version": 1e400}}',
        '{"rules": {"version": -Infinity}}',
        '{"rules": {"version": ' + "1" * 5000 + "}}",
        "x" * 5000,
    ],
    ids=["twice", "deep", "nan", "great", "infinite", "digits", "long"],
)
def test_what_is_no_json_of_doubles_is_never_right(
    name: str, text: str, log: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    if text.startswith("x"):
        monkeypatch.setattr(files, "MOST_CHARACTERS", 1000)
    store(log, [text])
    assert main([name, str(log)]) == 2


def test_a_line_that_would_fill_the_memory_is_refused_before_it_is_read(
    log: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(files, "MOST_CHARACTERS", max(map(len, LINES)) + 1)
    assert main(["transcript", store(log, LINES)]) == 0
    assert main(["transcript", store(log, [*LINES, " " * 10_000])]) == 2
    assert "a line has more than" in capsys.readouterr().err


def test_nesting_beyond_what_is_read_or_written_is_no_json() -> None:
    with pytest.raises(ValueError, match="nested too deeply"):
        parse_json("[" * 100_000)
    deep: list[Any] = []
    for _ in range(5000):
        deep = [deep]
    with pytest.raises(ValueError, match="nested too deeply"):
        serialize_canonical(deep)
    with pytest.raises(ValueError, match="NaN is not JSON"):
        parse_json("NaN")


@pytest.mark.parametrize(
    "change",
    [{"position": 2.5}, {"position": "2"}, {"position": True}, {"position": -2}, {"hash": 5}],
    ids=str,
)
def test_what_is_only_like_a_signed_head_is_none(change: dict[str, Any]) -> None:
    """Read as 2, the position 2.5 would have the signature of 2."""
    data = RECEIPT | change
    with pytest.raises(ValueError, match=r"no whole number|no text"):
        check_receipt(data)
    with pytest.raises(ValueError, match="is not a head"):
        read_witness([json.dumps(data)])


def test_a_head_with_a_member_twice_is_none() -> None:
    text = json.dumps(signed_head_to_json(sign(2, RECEIVED)))
    assert read_witness([text])
    twice = text.replace('"position": 2', '"position": 9, "position": 2')
    with pytest.raises(ValueError, match="a key twice"):
        read_witness([twice])


def test_a_witness_of_nothing_but_what_a_snapshot_leaves_out_says_nothing() -> None:
    """Else a log written again would pass that begins after all heads that were signed."""
    engine = Engine(RULES)
    for event in EVENTS[:5]:
        engine.apply(event)
    snapshot = engine.snapshot()
    lines = list(
        write_transcript_lines([engine.apply(of) for of in EVENTS[5:]], zone="a", snapshot=snapshot)
    )
    early = [sign(2, RECEIVED), sign(3, "ab" * 32)]
    for found in (
        check_transcript(lines, witness=early),
        verify_transcript(lines, witness=early),
    ):
        assert (found.ok, found.position) == (False, 5)
        assert "all heads of the witness are of entries before 5" in (found.problem or "")
    at_begin = sign(5, json.loads(LINES[5])["hash"])
    assert check_transcript(lines, witness=[*early, at_begin]).ok


def test_another_seal_of_the_same_bid_is_refused() -> None:
    other = signed_head_to_json(sign(2, RECEIVED, Receipt("first", seal(THIRD))))
    assert not check_receipt(other, LINES).ok
