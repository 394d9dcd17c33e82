"""What columns are for: guessed from their names as the repair does, or said by the owner."""

from __future__ import annotations

import io
import json
from pathlib import Path
from typing import Any

import pytest

from workers.preparation import PreparationPlan, PreparationSettings, prepare_dataset
from workers.preparation.roles import PlannedColumn, guess_roles
from workers.preparation.settings import PreparationSettingsError

ROW = {"frage": "Wo?", "antwort": "In Bern.", "notiz": "Er war in Eile.", "quelle": "Ein Brief."}
ROLES = {"frage": "prompt", "antwort": "completion", "notiz": "context", "quelle": "left_out"}


def prepare(folder: Path, *rows: dict[str, Any], **options: Any) -> PreparationPlan:
    data = "\n".join(json.dumps(row) for row in rows).encode()
    return prepare_dataset(io.BytesIO(data), folder, PreparationSettings(**options))


def read(folder: Path) -> list[Any]:
    return [json.loads(line) for line in (folder / "train.jsonl").read_text().splitlines()]


def test_columns_that_a_program_cannot_name_are_listed_and_taken_as_their_owner_says(
    tmp_path: Path,
) -> None:
    before = prepare(tmp_path, ROW)
    assert before.rows_kept == 0
    assert before.columns[0] == PlannedColumn("antwort", 1, "In Bern.", "")
    after = prepare(tmp_path, ROW, roles=ROLES)
    assert after.rows_kept == 1
    assert {column.name: column.role for column in after.columns} == ROLES
    assert read(tmp_path) == [
        {
            "messages": [
                {"role": "user", "content": "Er war in Eile.\n\nWo?"},
                {"role": "assistant", "content": "In Bern."},
            ]
        }
    ]
    assert after.keys == {
        "Key 'antwort' was taken as completion.": 1,
        "Key 'context' was put before what is asked.": 1,
        "Key 'frage' was taken as prompt.": 1,
        "Key 'notiz' was taken as context.": 1,
        "Key 'quelle' was left out, as its owner said.": 1,
    }


def test_a_column_without_a_role_is_left_out_of_no_row_in_silence(tmp_path: Path) -> None:
    roles = {name: role for name, role in ROLES.items() if name != "quelle"}
    made = prepare(tmp_path, ROW, roles=roles)
    assert made.rows_kept == 0
    assert "Key 'quelle' holds text that has no place in a row." in made.keys
    beside = prepare(tmp_path, ROW | {"prompt": "What else?"}, roles=ROLES)
    assert beside.rows_kept == 0
    assert "Key 'prompt' stands beside 'frage', which is taken as prompt." in beside.keys


def test_two_columns_of_a_role_for_one_are_refused_and_nothing_becomes_a_text(
    tmp_path: Path,
) -> None:
    roles = {"one": "prompt", "two": "prompt", "a": "completion"}
    made = prepare(tmp_path, {"one": "Why?", "two": "How?", "a": "So."}, roles=roles)
    assert made.rows_kept == 0
    assert made.keys == {"Keys 'one' and 'two' are both taken as prompt.": 1}
    prepare(tmp_path, {"one": None, "two": "How?", "a": "So."}, roles=roles)
    assert read(tmp_path)[0]["messages"][0]["content"] == "How?"
    listed = {"q": "Why?", "a": "So.", "one": None, "two": ["First."]}
    said = {"q": "prompt", "a": "completion", "one": "context", "two": "context"}
    assert prepare(tmp_path, listed, roles=said).rows_kept == 0
    prepare(tmp_path, listed | {"one": 5, "two": "Steps."}, roles=said)
    assert read(tmp_path)[0]["messages"][0]["content"] == "5\n\nSteps.\n\nWhy?"


CHAT = [{"role": "user", "content": "Why?"}, {"role": "assistant", "content": "So."}]


def test_what_an_owner_says_belongs_to_a_chat_is_put_into_it(tmp_path: Path) -> None:
    row = {"messages": CHAT, "note": "It rained.", "past": [["Hi", "Ho"]], "rest": "Two words"}
    said = {"note": "context", "past": "history"}
    made = prepare(tmp_path, row, roles=said)
    assert read(tmp_path) == [
        {
            "messages": [
                {"role": "user", "content": "Hi"},
                {"role": "assistant", "content": "Ho", "weight": 0},
                {"role": "user", "content": "It rained.\n\nWhy?"},
                CHAT[1],
            ],
            "rest": "Two words",
        }
    ]
    assert made.keys["Key 'rest' is not trained on."] == 1


def test_what_stays_in_a_sound_row_and_is_not_trained_on_is_counted(tmp_path: Path) -> None:
    row = {"messages": CHAT, "context": "It rained.", "tools": []}
    made = prepare(tmp_path, row, row | {"messages": CHAT[:1]}, drop_duplicates=False)
    assert read(tmp_path) == [row]
    assert made.keys == {"Key 'context' is not trained on.": 1}
    assert {column.name for column in made.columns} == {"messages", "context"}


def test_several_columns_of_one_role_are_joined_in_their_order(tmp_path: Path) -> None:
    row = {"q": "Why?", "a": "So.", "one": "First.", "two": "Second."}
    roles = {"q": "prompt", "a": "completion", "two": "context", "one": "context"}
    prepare(tmp_path, row, roles=roles)
    assert read(tmp_path)[0]["messages"][0]["content"] == "Second.\n\nFirst.\n\nWhy?"


@pytest.mark.parametrize(
    ("names", "roles"),
    [
        (("context", "question", "answer", "id"), ("context", "prompt", "completion", "left_out")),
        (("instruction", "input", "output"), ("prompt", "input", "completion")),
        (("input", "output"), ("prompt", "completion")),
        (("review", "sentiment"), ("text", "label")),
        (("conversations", "system"), ("messages", "system")),
        (("system", "question", "chosen", "rejected"), ("system", "prompt", "", "")),
        (("frage", "answer"), ("", "")),
    ],
)
def test_roles_are_guessed_as_the_repair_reads_names(
    names: tuple[str, ...], roles: tuple[str, ...]
) -> None:
    assert tuple(guess_roles(names).values()) == roles


def test_a_role_that_there_is_not_is_refused() -> None:
    with pytest.raises(PreparationSettingsError, match="Role 'answer' of column 'a' is not known"):
        PreparationSettings(roles={"a": "answer"})
