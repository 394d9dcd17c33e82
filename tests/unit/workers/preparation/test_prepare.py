"""A whole preparation: what goes in, what comes out, and what is said of the difference."""

from __future__ import annotations

import io
import json
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from workers.preparation import (
    PreparationSettings,
    PreparationSettingsError,
    inspect_dataset,
    prepare_dataset,
)
from workers.preparation.changes import name_kind
from workers.preparation.plan import PreparationSummary
from workers.preparation.reading import UnreadableFileError
from workers.protocol.records import LineError, Row, read_rows

EMAIL = "anna@example.org"
MESSY = "\n".join(
    [
        '{"prompt": "How do I reset my password?", "completion": "Click the link."}',
        '{"Prompt": "how do I reset  my password?", "Response": "Click the link."}',
        "{'prompt': 'When are you open', 'completion': 'From nine to five',}",
        '{"prompt": "Where is my order?", "completion": "It left our ware',
        json.dumps({"question": f"Write to {EMAIL}", "answer": "Done."}),
        json.dumps({"text": "A lonely paragraph about nothing."}),
        json.dumps(
            {
                "prompt": "Was kostet der Versand nach Österreich für drei Bücher?",
                "completion": "Der Versand kostet für bis zu fünf Bücher vier Euro neunzig.",
            }
        ),
    ]
).encode()


def prepare(data: bytes, folder: Path, **options: Any) -> PreparationSummary:
    folder.mkdir(exist_ok=True)
    return prepare_dataset(io.BytesIO(data), folder, PreparationSettings(**options)).summary


def lines_of(path: Path) -> list[Any]:
    return [json.loads(line) for line in path.read_text("utf-8").splitlines()]


def test_a_messy_file_becomes_rows_that_train(tmp_path: Path) -> None:
    summary = prepare(MESSY, tmp_path, mask_personal_data=True, languages=("en",))
    rows = lines_of(tmp_path / "train.jsonl")
    assert [[turn["content"] for turn in row["messages"]] for row in rows] == [
        ["How do I reset my password?", "Click the link."],
        ["When are you open", "From nine to five"],
        ["Write to [EMAIL_1]", "Done."],
    ]
    assert (summary.rows_in, summary.rows_out, summary.rows_held_out) == (7, 3, 0)
    assert summary.dropped == {"repair": 2, "filters": 1, "duplicates": 1}
    assert summary.changed["personal_data"] == 1
    assert summary.masked == {"email": 1}
    assert summary.notes == ("Names of people are not found and not masked.",)
    assert json.loads((tmp_path / "report.json").read_text("utf-8"))["rows_out"] == 3


@pytest.mark.parametrize(
    ("reason", "kind"),
    [
        ("Key 'from' of a message became 'role'.", "A message's key got the name it trains by."),
        ("Keys 'q' and 'a' became 'prompt' and 'completion'.", "A row's keys got the names it"),
        ("Role 'gpt' became 'assistant'.", "A message's role got the name it trains by."),
        ("Personal data were replaced: 2 email, 1 iban.", "Personal data were replaced."),
        ("The row has the same text as line 1,204.", "The row has the same text as an earlier"),
        ("The row has 3 characters, fewer than 10.", "The row has … characters, fewer than …."),
    ],
)
def test_kinds_of_reasons_are_sentences_that_fit_every_row(reason: str, kind: str) -> None:
    assert name_kind(reason).startswith(kind)


def test_every_dropped_line_is_named_with_its_reason(tmp_path: Path) -> None:
    prepare(MESSY, tmp_path, languages=("en",))
    dropped = {
        change["line"]: (change["step"], change["reasons"])
        for change in lines_of(tmp_path / "changes.jsonl")
        if change["action"] == "dropped"
    }
    assert dropped == {
        2: ("duplicates", ["The row has the same text as line 1."]),
        4: ("repair", ["The row is cut off: it does not end with }."]),
        6: ("repair", ["The row is text, but most of the file is chat (messages)."]),
        7: ("filters", ["The row is in the language 'de', not in en."]),
    }


def test_no_file_of_a_masked_result_holds_what_was_masked(tmp_path: Path) -> None:
    long = "x" * 190 + f" {EMAIL} and more"
    data = MESSY + b"\n" + json.dumps({"question": long, "answer": "Yes."}).encode()
    prepare(data, tmp_path, mask_personal_data=True)
    for path in tmp_path.iterdir():
        text = path.read_text("utf-8")
        assert EMAIL not in text, path.name
        assert "anna@" not in text, path.name


def test_held_out_rows_share_no_prompt_with_training_rows(tmp_path: Path) -> None:
    rows = [
        {"prompt": f"question {n // 3}", "completion": f"answer number {n}"} for n in range(300)
    ]
    data = "\n".join(map(json.dumps, rows)).encode()
    summary = prepare(data, tmp_path, validation_share=0.1, drop_duplicates=False)
    assert (summary.rows_out, summary.rows_held_out) == (270, 30)

    def prompts(name: str) -> set[str]:
        return {row["prompt"] for row in lines_of(tmp_path / name)}

    assert prompts("train.jsonl").isdisjoint(prompts("validation.jsonl"))
    prepare(data, tmp_path / "again", validation_share=0.1, drop_duplicates=False, seed=1)
    assert (tmp_path / "again" / "validation.jsonl").read_bytes() != (
        tmp_path / "validation.jsonl"
    ).read_bytes()


def test_nothing_is_held_out_unless_asked(tmp_path: Path) -> None:
    prepare(MESSY, tmp_path)
    assert not (tmp_path / "validation.jsonl").exists()


def test_what_is_no_text_leaves_no_rows_behind(tmp_path: Path) -> None:
    with pytest.raises(UnreadableFileError):
        prepare(b"PK\x03\x04", tmp_path)
    assert [path.name for path in tmp_path.iterdir()] == ["changes.jsonl"]


@pytest.mark.parametrize(
    "wrong",
    [
        {"near_duplicate_similarity": 0.4},
        {"validation_share": 0.6},
        {"min_chars": 0},
        {"min_chars": 5, "max_chars": 4},
        {"languages": ("xx",)},
        {"phone_regions": ("XX",)},
    ],
)
def test_settings_out_of_range_are_refused(wrong: dict[str, Any]) -> None:
    with pytest.raises(PreparationSettingsError):
        PreparationSettings(**wrong)


def test_inspection_counts_what_preparation_would_find() -> None:
    report = inspect_dataset(io.BytesIO(MESSY))
    assert (report.rows, report.is_complete) == (7, True)
    assert (report.rows_unusable, report.rows_to_repair) == (1, 3)
    assert (report.exact_duplicates, report.near_duplicates) == (1, 0)
    assert report.personal_data == {"email": 1}
    assert report.languages["de"] == 1
    assert inspect_dataset(io.BytesIO(MESSY), max_rows=2).is_complete is False


_TEXT = st.text(max_size=40)
_ROW = st.one_of(
    st.fixed_dictionaries({"prompt": _TEXT, "completion": _TEXT}),
    st.fixed_dictionaries({"question": _TEXT, "answer": _TEXT}),
    st.fixed_dictionaries({"text": _TEXT}),
    st.fixed_dictionaries({"text": _TEXT, "label": st.sampled_from(["a", "b", 1])}),
    st.fixed_dictionaries(
        {
            "messages": st.lists(
                st.fixed_dictionaries(
                    {"role": st.sampled_from(["user", "assistant", "bot"]), "content": _TEXT}
                ),
                max_size=4,
            )
        }
    ),
    st.dictionaries(st.text(max_size=8), st.one_of(st.none(), st.booleans(), _TEXT), max_size=3),
)


@settings(max_examples=120)
@given(rows=st.lists(_ROW, max_size=8), mask=st.booleans(), to_chat=st.booleans())
def test_what_comes_out_trains_adds_up_and_needs_no_second_preparation(
    rows: list[Any], mask: bool, to_chat: bool, tmp_path_factory: pytest.TempPathFactory
) -> None:
    data = "\n".join(json.dumps(row) for row in rows).encode()
    folder = tmp_path_factory.mktemp("once")
    options = {"mask_personal_data": mask, "to_chat": to_chat}
    try:
        summary = prepare(data, folder, **options)
    except UnreadableFileError:
        assert not rows
        return
    result = (folder / "train.jsonl").read_bytes()
    assert summary.rows_in == summary.rows_out + sum(summary.dropped.values())
    if not summary.rows_out:
        assert result == b""
        return
    read = list(read_rows(io.BytesIO(result)))
    assert all(isinstance(row, Row) for row in read), read
    assert len(read) == summary.rows_out
    again = prepare(result, tmp_path_factory.mktemp("twice"), **options)
    assert (again.rows_out, again.dropped, again.changed) == (summary.rows_out, {}, {})


@settings(max_examples=150)
@given(data=st.binary(max_size=300))
def test_any_bytes_are_read_or_refused(
    data: bytes, tmp_path_factory: pytest.TempPathFactory
) -> None:
    folder = tmp_path_factory.mktemp("bytes")
    try:
        summary = prepare(data, folder)
    except UnreadableFileError:
        return
    rows = list(read_rows(io.BytesIO((folder / "train.jsonl").read_bytes())))
    errors = [row for row in rows if isinstance(row, LineError)]
    assert not errors or not summary.rows_out
