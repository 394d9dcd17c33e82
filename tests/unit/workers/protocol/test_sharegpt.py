"""ShareGPT's conversations are read as chats."""

from __future__ import annotations

import io
import json
from typing import Any

import pytest

from workers.protocol.job_spec import DataFormat
from workers.protocol.records import LineError, Row, read_rows


def read(*rows: Any) -> list[Row | LineError]:
    text = "".join(json.dumps(row) + "\n" for row in rows)
    return list(read_rows(io.BytesIO(text.encode()), name="chats.jsonl"))


def turn(speaker: str, value: Any) -> dict[str, Any]:
    return {"from": speaker, "value": value}


def test_a_conversation_is_the_chat_it_stands_for() -> None:
    turns = [turn("system", "Be brief."), turn("human", "Hello?"), turn("gpt", "Hello.")]
    messages = [
        {"role": "system", "content": "Be brief."},
        {"role": "user", "content": "Hello?"},
        {"role": "assistant", "content": "Hello."},
    ]
    [shared], [chat] = read({"conversations": turns}), read({"messages": messages})
    assert isinstance(shared, Row)
    assert isinstance(chat, Row)
    assert (shared.format, shared.segments) == (DataFormat.CHAT, chat.segments)
    assert shared.segments[-1].text == "Hello."
    assert shared.ignored_keys == ()


@pytest.mark.parametrize(
    ("turns", "words"),
    [
        ("Hello", "conversations must be a list of turns."),
        ([turn("tool", "x"), turn("gpt", "y")], "A turn is from human, gpt or system."),
        ([{"from": "gpt"}], "A turn of a conversation has from and value."),
        ([turn("human", "x")], "There is no assistant message"),
        ([turn("human", "x"), turn("gpt", "")], "so there is nothing to learn"),
    ],
)
def test_a_turn_that_cannot_be_used_is_said_at_its_place(turns: Any, words: str) -> None:
    good = {"conversations": [turn("human", "a"), turn("gpt", "b")]}
    _, error = read(good, {"conversations": turns})
    assert isinstance(error, LineError)
    assert (error.line, error.fatal) == (2, False)
    assert words in error.message
    assert error.excerpt
