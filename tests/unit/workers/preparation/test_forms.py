"""A preparation leaves the form of rows that train as they stand, and gives it to the others."""

from __future__ import annotations

import io
import json
from collections import Counter
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.preparation_quality.mess import KINDS, make_mess
from workers.preparation import PreparationPlan, PreparationSettings, prepare_dataset
from workers.protocol.records import Row, read_rows

SYSTEM = "You write for a shop."
PASSAGES = [f"Passage {n} is about thing {n}." for n in range(30)]


def prepare(folder: Path, *rows: Any, **options: Any) -> PreparationPlan:
    data = "\n".join(json.dumps(row) for row in rows).encode()
    return prepare_dataset(io.BytesIO(data), folder, PreparationSettings(**options))


def read(folder: Path) -> list[Any]:
    return [json.loads(line) for line in (folder / "train.jsonl").read_text().splitlines()]


def chat(*texts: str) -> dict[str, Any]:
    roles = ("system", "user", "assistant")[-len(texts) :]
    turns = zip(roles, texts, strict=True)
    return {"messages": [{"role": role, "content": text} for role, text in turns]}


_WORD = st.sampled_from(["open", "Shop", "9", "été", "a\n\nb", "店"])
_TEXT = st.lists(_WORD, min_size=1, max_size=8).map(" ".join)
#: Every layout that training reads as it stands, with a row of which nothing has to be mended.
LAYOUTS: dict[str, st.SearchStrategy[dict[str, Any]]] = {
    "chat": st.one_of(st.builds(chat, _TEXT, _TEXT), st.builds(chat, _TEXT, _TEXT, _TEXT)),
    "ShareGPT": st.builds(
        lambda asked, told: {
            "conversations": [{"from": "human", "value": asked}, {"from": "gpt", "value": told}]
        },
        _TEXT,
        _TEXT,
    ),
    "completion": st.fixed_dictionaries({"prompt": st.just("") | _TEXT, "completion": _TEXT}),
    "instruction": st.fixed_dictionaries(
        {"instruction": _TEXT, "output": _TEXT}, optional={"input": st.just("") | _TEXT}
    ),
    "text": st.fixed_dictionaries({"text": _TEXT}),
    "classification": st.fixed_dictionaries({"text": _TEXT, "label": st.sampled_from("ab")}),
    "preference": st.fixed_dictionaries(
        {"prompt": _TEXT, "chosen": _TEXT.map("yes {}".format), "rejected": _TEXT}
    ),
}


@pytest.mark.parametrize("layout", LAYOUTS)
@settings(max_examples=25)
@given(data=st.data())
def test_rows_that_train_as_they_stand_train_token_for_token_as_before(
    layout: str, data: st.DataObject, tmp_path_factory: pytest.TempPathFactory
) -> None:
    rows = data.draw(st.lists(LAYOUTS[layout], min_size=1, max_size=6))
    folder = tmp_path_factory.mktemp("rows")
    prepare(folder, *rows, drop_duplicates=False)
    raw = io.BytesIO("\n".join(map(json.dumps, rows)).encode())
    prepared = io.BytesIO((folder / "train.jsonl").read_bytes())
    assert _list_segments(prepared) == _list_segments(raw)


def _list_segments(stream: io.BytesIO) -> list[Any]:
    """What the layout of tokens is made of."""
    rows = list(read_rows(stream, name="rows.jsonl"))
    assert all(isinstance(row, Row) for row in rows), rows
    return [(row.segments, row.rejected, row.tools) for row in rows if isinstance(row, Row)]


@pytest.mark.parametrize("kind", list(KINDS)[:7])
def test_a_mess_of_keys_and_signs_leaves_no_other_question_or_answer(
    kind: str, tmp_path: Path
) -> None:
    pairs = [(f"How much is thing {n}?", f"It is {n} francs.") for n in range(40)]
    clean = [chat(*([SYSTEM] * (n % 4 > 1)), *pair)["messages"] for n, pair in enumerate(pairs)]
    text = make_mess(KINDS[kind], clean, seed=1)
    prepare_dataset(io.BytesIO(text.encode()), tmp_path, PreparationSettings())
    made = [[turn["content"] for turn in row["messages"]] for row in read(tmp_path)]
    assert Counter(tuple(texts[-2:]) for texts in made) == Counter(pairs)
    if kind != "earlier turns in a key of their own":
        assert sum(texts[0] == SYSTEM for texts in made) == 20


def test_a_text_beside_a_question_stands_where_chats_of_the_file_have_it(tmp_path: Path) -> None:
    made = prepare(
        tmp_path,
        {"context": SYSTEM, "question": "Where is it?", "answer": "Here."},
        {"instruction": SYSTEM, "input": "Who is it?", "output": "Ann."},
        {"context": "A thing.", "question": "What is it?", "answer": "A thing."},
        *(chat(SYSTEM, f"When is {n}?", f"At {n}.") for n in range(4)),
        drop_duplicates=False,
    )
    assert read(tmp_path) == [
        chat(SYSTEM, "Where is it?", "Here."),
        chat(SYSTEM, "Who is it?", "Ann."),
        chat("A thing.\n\nWhat is it?", "A thing."),
        *(chat(SYSTEM, f"When is {n}?", f"At {n}.") for n in range(4)),
    ]
    assert made.keys == {
        "Keys 'question' and 'answer' became 'prompt' and 'completion'.": 2,
        "Key 'context' became the system message, which chats of the file have.": 1,
        "Key 'context' was put before what is asked.": 1,
        "Key 'instruction' became the system message, which chats of the file have.": 1,
    }
    assert made.summary.changed == {"repair": 3}


@pytest.mark.parametrize(("chats", "is_set"), [(1, False), (3, False), (4, True)])
def test_instructions_keep_their_form_unless_many_chats_have_another(
    chats: int, is_set: bool, tmp_path: Path
) -> None:
    rows = [{"instruction": SYSTEM, "input": f"{n}?", "output": f"It is {n}."} for n in range(20)]
    others = [chat(SYSTEM, f"Who is {n}?", f"Ann {n}.") for n in range(chats)]
    made = prepare(tmp_path, *rows, *others, drop_duplicates=False)
    joined = chat(f"{SYSTEM}\n\n0?", "It is 0.")
    assert read(tmp_path)[0] == (chat(SYSTEM, "0?", "It is 0.") if is_set else joined)
    moved = "Key 'instruction' became the system message, which chats of the file have."
    assert made.keys.get(moved, 0) == 20 * is_set


def test_what_a_key_holds_as_often_stands_in_the_same_place_and_what_differs_does_not(
    tmp_path: Path,
) -> None:
    texts = [SYSTEM] * 5 + ["Be brief."] * 5 + PASSAGES
    rows = [
        {"context": text, "question": f"What is {n}?", "answer": f"It is {n}."}
        for n, text in enumerate(texts)
    ]
    prepare(tmp_path, *rows, chat(SYSTEM, "Who?", "Ann."), drop_duplicates=False)
    first = [row["messages"][0] for row in read(tmp_path)]
    systems = [turn["content"] for turn in first if turn["role"] == "system"]
    assert systems == [*texts[:10], SYSTEM]


def test_without_a_chat_that_has_it_a_text_is_no_system_message(tmp_path: Path) -> None:
    row = {"context": SYSTEM, "question": "Where is it?", "answer": "Here."}
    others = [row | {"question": f"Where is {n}?"} for n in range(20)]
    prepare(tmp_path, row, *others, chat("Who?", "Ann."), drop_duplicates=False)
    assert read(tmp_path)[0] == chat(f"{SYSTEM}\n\nWhere is it?", "Here.")
    # What the owner said a column holds is no guess.
    prepare(tmp_path, row, chat(SYSTEM, "Who?", "Ann."), roles={"context": "context"})
    assert read(tmp_path)[0] == chat(f"{SYSTEM}\n\nWhere is it?", "Here.")


def test_pairs_take_the_form_of_most_of_them_unless_rows_have_others(tmp_path: Path) -> None:
    sound = [{"prompt": f"Thing {n} is", "completion": f" number {n}"} for n in range(3)]
    other = {"question": "What is it?", "answer": "A thing."}
    made = prepare(tmp_path, *sound, other)
    assert read(tmp_path) == [*sound, {"prompt": "What is it?", "completion": "A thing."}]
    assert (made.summary.format, made.summary.changed) == ("completion", {"repair": 1})
    for another in (chat("Who?", "Ann."), {"instruction": "Who?", "output": "Ann."}):
        prepare(tmp_path, *sound, other, another)
        assert read(tmp_path)[0] == chat("Thing 0 is", "number 0")
        assert read(tmp_path)[-1] == chat("Who?", "Ann.")
    # The form of so many rows is no stray one's, nor that of rows which are filtered or no pairs.
    many = [{"prompt": f"Thing {n} is", "completion": f" number {n}"} for n in range(20)]
    long = chat("Who?", "Ann. " * 40)
    for stray in (
        {"text": "A thing."},
        {"text": "A thing.", "label": "good"},
        {"prompt": "What?", "chosen": "A thing.", "rejected": "None."},
        chat("Who?", "Ann."),
    ):
        made = prepare(tmp_path, *many, stray, drop_duplicates=False)
        assert read(tmp_path) == many
        assert (made.summary.changed, made.summary.dropped) == ({}, {"repair": 1})
    prepare(tmp_path, *many[:3], long, max_chars=100)
    assert read(tmp_path) == many[:3]
    made = prepare(tmp_path, *many, {"instruction": "Who?", "output": "Ann."})
    assert read(tmp_path)[-1] == {"prompt": "Who?", "completion": "Ann."}
    assert made.keys == {"Keys 'instruction' and 'output' became 'prompt' and 'completion'.": 1}
    prepare(tmp_path, *many[:19], chat("Who?", "Ann."))
    assert read(tmp_path)[0] == chat("Thing 0 is", "number 0")
    prepare(tmp_path, sound[0], other)
    assert read(tmp_path) == [chat("Thing 0 is", "number 0"), chat("What is it?", "A thing.")]
