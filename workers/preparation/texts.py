"""The texts inside a row object, wherever they stand."""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any, cast

#: Keys whose strings are names, not texts that people wrote.
_NAME_KEYS = frozenset({"role", "from", "label", "type", "id", "tool_call_id"})
#: Keys that describe tools to the model and are left as they are.
_SCHEMA_KEYS = frozenset({"tools", "functions", "parallel_tool_calls"})
#: Keys of what the model is asked, where a row is no chat.
_PROMPT_KEYS = ("prompt", "instruction", "input", "text")
_WORD = re.compile(r"\w+")
#: Scripts without spaces between words: Thai, Lao, Burmese, Khmer, Japanese, Chinese.
_UNSPACED = re.compile("[\u0e00-\u0eff\u1000-\u109f\u1780-\u17ff\u3040-\u30ff\u3400-\u9fff]")


def iter_texts(value: Any) -> Iterator[str]:
    """Every text of a row, in the order in which it is written."""
    if isinstance(value, str):
        yield value
    elif isinstance(value, list):
        for item in cast(list[Any], value):
            yield from iter_texts(item)
    elif isinstance(value, dict):
        for key, item in cast(dict[str, Any], value).items():
            if key in _SCHEMA_KEYS or (key in _NAME_KEYS and isinstance(item, str)):
                continue
            yield from iter_texts(item)


def map_texts(value: Any, change: Callable[[str], str]) -> Any:
    """The row with ``change`` applied to each of its texts; the row itself stays as it is."""
    if isinstance(value, str):
        return change(value)
    if isinstance(value, list):
        return [map_texts(item, change) for item in cast(list[Any], value)]
    if isinstance(value, dict):
        return {
            key: item
            if key in _SCHEMA_KEYS or (key in _NAME_KEYS and isinstance(item, str))
            else map_texts(item, change)
            for key, item in cast(dict[str, Any], value).items()
        }
    return value


def join_texts(value: Any) -> str:
    """All texts of a row, a line each."""
    return "\n".join(iter_texts(value))


def read_label(value: dict[str, Any]) -> str:
    """The class that a row names; empty for a row without one."""
    return str(value.get("label", ""))


def read_learnt(value: dict[str, Any]) -> tuple[str, ...]:
    """The answers of a chat that are learnt; empty for a row that is no chat."""
    messages = value.get("messages")
    if not isinstance(messages, list):
        return ()
    turns = [turn for turn in cast(list[Any], messages) if isinstance(turn, dict)]
    answers = [turn for turn in turns if turn.get("role") == "assistant"]
    return tuple(join_texts(turn) for turn in answers if turn.get("weight") != 0)


def find_prompt(value: dict[str, Any]) -> str:
    """What the model is asked in a row: everything before the last answer."""
    messages = value.get("messages")
    if isinstance(messages, list):
        turns = [turn for turn in cast(list[Any], messages) if isinstance(turn, dict)]
        asked = [turn for turn in turns if turn.get("role") not in ("assistant", "system")]
        return join_texts(asked)
    asked = [value[key] for key in _PROMPT_KEYS if value.get(key)]
    return join_texts(asked) if asked else join_texts(value)


@dataclass(frozen=True, slots=True)
class RowSides:
    """A row's texts by what they are for."""

    #: System prompts and tools: what stands around every question.
    frame: str
    #: What the model is asked; empty where a row is one text.
    asked: str
    #: What it learns: the last answer, both answers of a preference, or the text.
    learnt: str
    label: str


#: Keys of what the model learns, where a row is no chat.
_LEARNT_KEYS = (
    *("completion", "output", "chosen", "rejected", "preferred_output", "non_preferred_output"),
    "text",
)


def read_sides(value: dict[str, Any]) -> RowSides:
    """Take a row apart into what frames it, what is asked and what is learnt."""
    label = read_label(value)
    messages = value.get("messages")
    if not isinstance(messages, list):
        learnt = {key: value[key] for key in _LEARNT_KEYS if key in value}
        asked = {key: item for key, item in value.items() if key not in {*learnt, "label"}}
        return RowSides("", join_texts(asked), join_texts(learnt), label)
    turns = [turn for turn in cast(list[Any], messages) if isinstance(turn, dict)]
    frame = [turn for turn in turns if turn.get("role") in ("system", "developer")]
    talk = [turn for turn in turns if turn.get("role") not in ("system", "developer")]
    answer = talk[-1:] if talk and talk[-1].get("role") == "assistant" else []
    beside = {key: item for key, item in value.items() if key not in ("messages", "label")}
    written = json.dumps(beside, ensure_ascii=False, sort_keys=True) if beside else ""
    return RowSides(
        frame="\n".join(filter(None, (join_texts(frame), written))),
        asked=join_texts(talk[: len(talk) - len(answer)]),
        learnt=join_texts(answer),
        label=label,
    )


def has_words(text: str) -> bool:
    """Whether a text is more than a number, a date, an identifier or an address.

    Those have no spaces, and no signs of scripts that write none.
    """
    return len(text.split()) > 1 or bool(_UNSPACED.search(text))


def split_words(text: str) -> list[str]:
    """Words in lower case; for texts without spaces between words, characters in fours."""
    folded = text.casefold()
    words = _WORD.findall(folded)
    joined = "".join(words)
    if 2 * len(_UNSPACED.findall(joined)) > len(joined):
        return [joined[start : start + 4] for start in range(max(1, len(joined) - 3))]
    return words
