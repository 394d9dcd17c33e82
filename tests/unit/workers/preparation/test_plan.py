"""The plan of a preparation: what an owner is shown is what is done."""

from __future__ import annotations

import hashlib
import io
import json
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from workers.preparation import PreparationPlan, PreparationSettings, prepare_dataset
from workers.preparation.changes import EXAMPLES_SHOWN, ChangedRow
from workers.preparation.plan import DuplicateGroup, PlannedStep
from workers.preparation.reading import UnreadableFileError
from workers.preparation.texts import iter_texts


def plan(data: bytes, folder: Path, **options: Any) -> PreparationPlan:
    folder.mkdir(exist_ok=True)
    return prepare_dataset(
        io.BytesIO(data), folder, PreparationSettings(**options), count_tokens=count_words
    )


def count_words(text: str) -> int:
    return len(text.split())


def write(*rows: dict[str, Any]) -> bytes:
    return "\n".join(map(json.dumps, rows)).encode()


ROWS = write(
    {"question": "When are you open?", "answer": "From nine to five.", "context": "A shop."},
    {"question": "Where are you?", "answer": "In Bern.", "id": 7},
    {"question": "Where  are you?", "answer": "in Bern."},
    {"question": "Who is it?", "answer": "Anna.", "remark": "Asked by a man in a hurry."},
)


def test_a_plan_says_what_each_step_does_to_how_many_rows(tmp_path: Path) -> None:
    made = plan(ROWS, tmp_path)
    assert made.steps == (
        PlannedStep("reading", 4, 4, 0, 31, 31),
        PlannedStep("repair", 4, 3, 3, 31, 20),
        PlannedStep("filters", 3, 3, 0, 20, 20),
        PlannedStep("duplicates", 3, 2, 0, 20, 15),
        PlannedStep("personal_data", 2, 2, 0, 15, 15),
    )
    assert made.rows_kept == 2


def test_a_plan_counts_every_key_that_is_renamed_joined_left_out_or_in_the_way(
    tmp_path: Path,
) -> None:
    assert plan(ROWS, tmp_path).keys == {
        "Keys 'question' and 'answer' became 'prompt' and 'completion'.": 3,
        "Key 'context' was put before what is asked.": 1,
        "Key 'id' was left out.": 1,
        "Key 'remark' holds text that has no place in a row.": 1,
    }


def test_a_plan_shows_rows_before_and_after_and_the_row_of_a_group_that_stays(
    tmp_path: Path,
) -> None:
    made = plan(ROWS, tmp_path)
    stays = (
        '{"messages": [{"role": "user", "content": "Where are you?"}, '
        '{"role": "assistant", "content": "In Bern."}]}'
    )
    same = stays.replace("Where are", "Where  are").replace("In Bern", "in Bern")
    assert made.groups == (DuplicateGroup(2, stays, 1, ((3, same),)),)
    left_out = made.examples["repair"]["Key … was left out."]
    before = '{"question": "Where are you?", "answer": "In Bern.", "id": 7}'
    assert left_out == [ChangedRow(2, before, stays)]


def test_a_plan_shows_ten_rows_of_a_kind(tmp_path: Path) -> None:
    rows = [{"question": f"How much is {n}?", "answer": f"{n} francs."} for n in range(30)]
    kinds = plan(write(*rows), tmp_path).examples["repair"]
    assert {len(shown) for shown in kinds.values()} == {EXAMPLES_SHOWN}


def test_a_plan_hides_what_is_masked(tmp_path: Path) -> None:
    data = write({"question": "Write to anna@example.org", "answer": "Done."})
    made = plan(data, tmp_path, mask_personal_data=True)
    assert "anna@" not in json.dumps([made.keys, str(made.examples), str(made.groups)])


_WORDS = st.lists(st.sampled_from(["open", "shop", "9", "a@b.org", "é", "  "]), max_size=6)
_TEXT = _WORDS.map(" ".join)
_KEYS = st.sampled_from(["question", "prompt", "answer", "output", "context", "id", "text", "x"])
_LINE = st.one_of(
    st.dictionaries(_KEYS, _TEXT, max_size=4).map(json.dumps),
    st.dictionaries(_KEYS, _TEXT, max_size=3).map(lambda row: str(row)),
    st.just('{"prompt": "cut o'),
)


@settings(max_examples=120)
@given(
    lines=st.lists(_LINE, min_size=1, max_size=12),
    mask=st.booleans(),
    share=st.sampled_from([0.0, 0.2, 0.5]),
)
def test_what_is_done_is_what_was_planned(
    lines: list[str], mask: bool, share: float, tmp_path_factory: pytest.TempPathFactory
) -> None:
    data = "\n".join(lines).encode()
    try:
        planned = plan(data, tmp_path_factory.mktemp("plan"), mask_personal_data=mask)
    except UnreadableFileError:
        return
    folder = tmp_path_factory.mktemp("done")
    done = plan(data, folder, mask_personal_data=mask, validation_share=share)
    assert done.digest == planned.digest
    files = [
        path for name in ("train", "validation") if (path := folder / f"{name}.jsonl").exists()
    ]
    rows = [row for path in files for row in path.read_bytes().splitlines(keepends=True)]
    assert len(rows) == planned.rows_kept
    assert planned.steps[-1].tokens_after == sum(
        count_words(" ".join(iter_texts(json.loads(row)))) for row in rows
    )
    origins = [json.loads(line) for line in (folder / "origins.jsonl").read_text().splitlines()]
    assert [origin["row"] for origin in origins if origin["file"] == "train.jsonl"] == list(
        range(1, done.summary.rows_out + 1)
    )
    assert len({origin["row_id"] for origin in origins}) == len(rows)
    if not share:
        assert hashlib.sha256(b"".join(rows)).hexdigest() == planned.rows_sha256
    assert planned.steps[-1].rows_after == planned.rows_kept


def test_other_settings_or_rows_are_another_plan(tmp_path: Path) -> None:
    digests = {
        plan(ROWS, tmp_path / "1").digest,
        plan(ROWS, tmp_path / "2", drop_duplicates=False).digest,
        plan(ROWS, tmp_path / "3", languages=("en",)).digest,
        plan(ROWS.replace(b"Bern", b"Basel"), tmp_path / "4").digest,
    }
    assert len(digests) == 4
