"""Rows are mended without inventing text."""

from __future__ import annotations

import json
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from workers.preparation.reading import RawRow
from workers.preparation.repair import RepairedRow, RowDroppedError, repair_row
from workers.preparation.roles import (
    ANSWERS,
    CONTEXTS,
    HISTORIES,
    KNOWN_ROLES,
    LABELS,
    LISTS,
    QUESTIONS,
    SYSTEMS,
    TEXTS,
)
from workers.preparation.texts import iter_texts, join_texts


def repair(value: Any, *, to_chat: bool = True) -> RepairedRow:
    text = value if isinstance(value, str) else json.dumps(value)
    return repair_row(RawRow(1, text), to_chat=to_chat)


def chat(*turns: tuple[str, str]) -> dict[str, Any]:
    return {"messages": [{"role": role, "content": content} for role, content in turns]}


SOUND = chat(("system", "Be kind."), ("user", "Hi"), ("assistant", "Hello"))


def test_a_sound_row_stays_as_it_is() -> None:
    row = repair(SOUND)
    assert row.value == SOUND
    assert row.reasons == ()


@pytest.mark.parametrize(
    "text",
    [
        "{'prompt': 'Hi', 'completion': 'Hello',}",
        '{"prompt": "Hi" "completion": "Hello"}',
        '{"prompt": “Hi”, "completion": "Hello"}',
        '{prompt: "Hi", completion: "Hello"}',
    ],
)
def test_broken_json_is_mended(text: str) -> None:
    row = repair(text, to_chat=False)
    assert row.value == {"prompt": "Hi", "completion": "Hello"}
    assert row.reasons == ("Broken JSON was mended.",)


def test_a_row_that_was_cut_off_is_dropped_not_completed() -> None:
    with pytest.raises(RowDroppedError, match="cut off"):
        repair('{"prompt": "Hi", "completion": "It left our ware')


@pytest.mark.parametrize("text", ["plain words", "[1, 2]", "{}", "null"])
def test_what_is_no_object_is_dropped(text: str) -> None:
    with pytest.raises(RowDroppedError, match="not a JSON object"):
        repair(text)


@pytest.mark.parametrize(
    "text",
    [
        '{"prompt": "Hi", "prompt": "Bye", "completion": "Hello"}',
        '{"Prompt": "Hi", "prompt ": "Bye", "completion": "Hello"}',
        '{"messages": [{"role": "user", "content": "Hi", "Content": "Bye"}]}',
    ],
)
def test_a_key_that_stands_twice_is_refused_not_chosen_from(text: str) -> None:
    with pytest.raises(RowDroppedError, match=r"Key '(prompt|content)' stands twice"):
        repair(text)


def test_numbers_that_training_cannot_read_become_null() -> None:
    row = repair('{"text": "Hi", "score": NaN, "size": 1e999, "share": 0.5}')
    assert row.value == {"text": "Hi", "score": None, "size": None, "share": 0.5}
    assert row.reasons == ("Numbers that are not finite became null.",)


def test_deep_nesting_is_dropped() -> None:
    with pytest.raises(RowDroppedError, match="nested"):
        repair('{"a": ' * 40 + "1" + "}" * 40)
    with pytest.raises(RowDroppedError):
        repair("{'a': " * 20_000 + "1" + "}" * 20_000)


@pytest.mark.parametrize(
    ("value", "asked"),
    [
        ({"question": "Hi", "answer": "Hello"}, "Hi"),
        ({"Prompt ": "Hi", "RESPONSE": "Hello"}, "Hi"),
        ({"instruction": "Say", "input": "Hi", "output": "Hello"}, "Say\n\nHi"),
        ({"prompt": "Hi", "completion": "Hello"}, "Hi"),
    ],
)
def test_questions_and_answers_become_chats(value: dict[str, str], asked: str) -> None:
    assert repair(value).value == chat(("user", asked), ("assistant", "Hello"))


def test_without_to_chat_only_names_change() -> None:
    row = repair({"question": "Hi", "answer": "Hello"}, to_chat=False)
    assert row.value == {"prompt": "Hi", "completion": "Hello"}


def test_other_spellings_of_a_conversation_are_read() -> None:
    turns = [{"speaker": "Human", "text": "Hi"}, {"from": "gpt", "value": "Hello"}]
    wanted = chat(("user", "Hi"), ("assistant", "Hello"))
    assert repair({"conversation": turns}).value == wanted
    assert repair({"messages": json.dumps(wanted["messages"])}).value == wanted


def test_silent_messages_and_a_last_question_are_left_out() -> None:
    row = repair(chat(("user", "Hi"), ("assistant", "Hello"), ("user", "Bye"), ("assistant", " ")))
    assert row.value == chat(("user", "Hi"), ("assistant", "Hello"))
    assert row.reasons == (
        "Empty messages were left out.",
        "Messages after the last answer were left out.",
    )


def test_a_conversation_without_an_answer_is_dropped() -> None:
    with pytest.raises(RowDroppedError, match="no assistant message"):
        repair(chat(("user", "Hi")))


def test_garbled_characters_are_mended_and_others_left() -> None:
    kept = " \u2013 \u201csoon\u201d \ufb01 \uff11"
    row = repair({"text": f"weâ€™ll call{kept}"})
    assert row.value == {"text": f"we\u2019ll call{kept}"}
    assert row.reasons == ("Garbled characters were mended.",)


def test_labels_and_texts_are_recognised() -> None:
    row = repair({"review": "Lovely", "sentiment": "good", "id": "7"})
    assert row.value == {"text": "Lovely", "label": "good"}


def test_preferences_stay_preferences() -> None:
    value = {"prompt": "Hi", "chosen": "Hello", "rejected": "Go away"}
    assert repair(value).value == value


def test_what_belongs_to_a_preference_is_put_into_its_prompt() -> None:
    row = repair({"system": "Be kind.", "question": "Hi", "chosen": "Hello", "rejected": "Go"})
    assert row.value == {"prompt": "Be kind.\n\nHi", "chosen": "Hello", "rejected": "Go"}
    assert row.reasons == (
        "Key 'question' became 'prompt'.",
        "Key 'system' was put before what is asked.",
    )


def test_details_of_a_message_are_left_out_with_a_word() -> None:
    turns = [{**turn, "timestamp": 3} for turn in SOUND["messages"]]
    row = repair({"messages": turns})
    assert row.value == SOUND
    assert row.reasons == ("Key 'timestamp' of a message was left out.",)


@pytest.mark.parametrize(
    ("value", "words"),
    [
        ({"system": "Be kind.", "prompt": "", "completion": "Hello"}, "asks nothing"),
        ({"question": "Hi", "answer": "Hello", "备注": "他很着急"}, "备注"),
        ({"messages": "Hi", "conversations": SOUND["messages"]}, "beside each other"),
    ],
)
def test_a_text_that_has_no_place_refuses_its_row(value: dict[str, Any], words: str) -> None:
    with pytest.raises(RowDroppedError, match=words):
        repair(value)


def test_tool_calls_survive() -> None:
    call = {"id": "1", "type": "function", "function": {"name": "f", "arguments": "{}"}}
    value = {
        "messages": [
            {"role": "user", "content": "Hi"},
            {"role": "assistant", "content": None, "tool_calls": [call]},
        ]
    }
    assert repair(value).value == value


@pytest.mark.parametrize(
    ("value", "turns"),
    [
        (
            {"context": "Ada wrote it.", "question": "Who wrote it?", "answer": "Ada."},
            [("user", "Ada wrote it.\n\nWho wrote it?"), ("assistant", "Ada.")],
        ),
        (
            {"instruction": "Translate.", "input": "Good day", "response": "Bonjour"},
            [("user", "Translate.\n\nGood day"), ("assistant", "Bonjour")],
        ),
        (
            {"instruction": "Translate.", "input": "Good day", "output": "Bonjour"},
            [("user", "Translate.\n\nGood day"), ("assistant", "Bonjour")],
        ),
        (
            {"system": "Be kind.", "question": "Who?", "answer": "Ada."},
            [("system", "Be kind."), ("user", "Who?"), ("assistant", "Ada.")],
        ),
        (
            {"system_prompt": "Be kind.", "question": "Who?", "response": "Ada."},
            [("system", "Be kind."), ("user", "Who?"), ("assistant", "Ada.")],
        ),
        (
            {"system": "Be kind.", "conversations": [{"from": "human", "value": "Hi"}]}
            | {"messages": None, "id": "row-7"},
            None,
        ),
    ],
)
def test_what_belongs_to_a_question_is_kept(
    value: dict[str, Any], turns: list[tuple[str, str]] | None
) -> None:
    if turns is None:
        value["conversations"].append({"from": "gpt", "value": "Hello"})
        turns = [("system", "Be kind."), ("user", "Hi"), ("assistant", "Hello")]
        assert repair(value).value["messages"] == chat(*turns)["messages"]
    else:
        assert repair(value).value == chat(*turns)


@pytest.mark.parametrize(
    "history",
    [
        [["Was it?", "No."]],
        [{"from": "human", "value": "Was it?"}, {"from": "gpt", "value": "No."}],
    ],
)
def test_earlier_answers_are_kept_and_not_learnt(history: list[Any]) -> None:
    row = repair({"prompt": "And now?", "completion": "Yes.", "history": history})
    wanted = chat(("user", "Was it?"), ("assistant", "No."), ("user", "And now?"))["messages"]
    wanted[1]["weight"] = 0
    assert row.value == {"messages": [*wanted, {"role": "assistant", "content": "Yes."}]}


def test_a_context_is_kept_in_rows_that_stay_as_they_are() -> None:
    row = repair({"system": "S", "context": "C", "question": "Q", "answer": "A"}, to_chat=False)
    assert row.value == {"prompt": "S\n\nC\n\nQ", "completion": "A"}
    assert "Key 'context' was put before what is asked." in row.reasons


def test_a_key_with_text_that_nothing_explains_refuses_the_row() -> None:
    with pytest.raises(RowDroppedError, match="Key 'remarks' holds text that has no place"):
        repair({"question": "Who?", "answer": "Ada.", "remarks": "She was born in London."})


def test_what_describes_a_row_is_left_out_with_a_word_about_it() -> None:
    row = repair({"question": "Who?", "answer": "Ada.", "id": "a7", "url": "https://x.example/1"})
    assert row.value == chat(("user", "Who?"), ("assistant", "Ada."))
    assert row.reasons[1:3] == ("Key 'id' was left out.", "Key 'url' was left out.")


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("{'prompt': 'it''s', 'completion': 'ok'}", "without losing text"),
        (
            '{"prompt": "a", "completion": "b"} {"prompt": "c", "completion": "d"}',
            "holds two rows",
        ),
    ],
)
def test_json_that_cannot_be_mended_whole_is_refused(text: str, words: str) -> None:
    with pytest.raises(RowDroppedError, match=words):
        repair(text)


_NAMES = sorted(
    {*QUESTIONS, *ANSWERS, *CONTEXTS, *SYSTEMS, *HISTORIES, *TEXTS, *LABELS, *LISTS}
    | {"chosen", "rejected", "notes", "Prompt", "备注"}
)
_VALUES = ("text", "turns", "pairs", "list", "number", "nothing")


def build_value(name: str, kind: str) -> Any:
    """A value whose texts no other key has."""
    asked, told = f"{name} asked", f"{name} told"
    return {
        "text": asked,
        "turns": chat(("user", asked), ("assistant", told))["messages"],
        "pairs": [[asked, told]],
        "list": [asked],
        "number": 5,
        "nothing": None,
    }[kind]


@settings(max_examples=400)
@given(
    kinds=st.dictionaries(
        st.sampled_from(_NAMES),
        st.sampled_from(_VALUES[:1]) | st.sampled_from(_VALUES),
        min_size=2,
        max_size=6,
    ),
    roles=st.dictionaries(
        st.sampled_from([name.casefold() for name in _NAMES]),
        st.sampled_from(sorted(KNOWN_ROLES)),
        max_size=3,
    ),
    to_chat=st.booleans(),
)
def test_no_text_of_a_row_goes_without_a_word_about_its_key(
    kinds: dict[str, str], roles: dict[str, str], to_chat: bool
) -> None:
    value = {name: build_value(name, kind) for name, kind in kinds.items()}
    raw = RawRow(1, json.dumps(value))
    try:
        row = repair_row(raw, to_chat=to_chat, roles=roles)
    except RowDroppedError:
        return
    left = join_texts(row.value)
    for name, item in value.items():
        told = any(
            f"Key '{name.casefold()}' was left out" in reason
            or f"'{roles.get(name.casefold(), '')}' was left out" in reason
            for reason in row.reasons
        )
        assert told or all(text in left for text in iter_texts(item)), (name, row)
