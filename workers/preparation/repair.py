"""A raw row to an object that trains, with a sentence for each thing that was mended."""

from __future__ import annotations

import json
import math
from dataclasses import dataclass, field
from typing import Any, cast

import ftfy
import json_repair

from workers.preparation.reading import RawRow
from workers.preparation.texts import map_texts
from workers.protocol.job_spec import DataFormat
from workers.protocol.record_formats import FORMAT_NAMES, parse_row_object
from workers.protocol.record_keys import recognise
from workers.protocol.record_types import CHAT_ROLES, Limits, ValueRefusal

#: Names that people give to a question and to its answer, in the order of precedence.
_QUESTIONS = ("question", "query", "prompt", "instruction", "user", "human", "input", "request")
_ANSWERS = (
    "answer",
    "completion",
    "response",
    "output",
    "assistant",
    "reply",
    "gpt",
    "bot",
    "target",
)
_TEXTS = ("text", "content", "body", "document", "passage", "sentence", "review")
_LABELS = ("label", "class", "category", "sentiment", "intent")
_LISTS = ("messages", "conversations", "conversation", "dialog", "dialogue", "turns", "chat")
_ROLES = {
    "human": "user",
    "customer": "user",
    "client": "user",
    "question": "user",
    "gpt": "assistant",
    "bot": "assistant",
    "ai": "assistant",
    "model": "assistant",
    "agent": "assistant",
    "chatgpt": "assistant",
    "answer": "assistant",
    "developer": "system",
    "function": "tool",
}
_MESSAGE_NAMES = {"from": "role", "speaker": "role", "author": "role"}
_CONTENT_NAMES = ("content", "value", "text", "message", "body")


class RowDroppedError(Exception):
    """The row cannot be used; the message says why."""


@dataclass(frozen=True, slots=True)
class RepairedRow:
    """A row that trains."""

    line: int
    format: DataFormat
    value: dict[str, Any]
    #: A sentence for each thing that was mended; empty for a row that was sound.
    reasons: tuple[str, ...]


@dataclass(slots=True)
class _Repair:
    to_chat: bool
    limits: Limits
    reasons: list[str] = field(default_factory=list)

    def note(self, reason: str) -> None:
        if reason not in self.reasons:
            self.reasons.append(reason)


def repair_row(raw: RawRow, *, to_chat: bool, limits: Limits | None = None) -> RepairedRow:
    """Mend one row.

    Raises
    ------
    RowDroppedError
        When nothing sound can be made of it without inventing text.
    """
    if raw.refusal:
        raise RowDroppedError(raw.refusal)
    repair = _Repair(to_chat, limits or Limits())
    if raw.mended:
        repair.note(raw.mended)
    value = _parse(raw.text, repair) if raw.text is not None else dict(raw.cells or {})
    value = map_texts(value, lambda text: _mend_characters(text, repair))
    value = _rename(value, repair)
    if to_chat:
        value = _convert_to_chat(value, repair)
    try:
        row = parse_row_object(
            value, line=raw.line, data_format=None, max_messages=repair.limits.max_messages
        )
    except ValueRefusal as refusal:
        raise RowDroppedError(refusal.message) from None
    return RepairedRow(raw.line, row.format, value, tuple(repair.reasons))


def refuse_other_format(found: DataFormat, expected: DataFormat) -> str:
    """Why a row of another format than the file's is dropped."""
    return f"The row is {FORMAT_NAMES[found]}, but most of the file is {FORMAT_NAMES[expected]}."


def _parse(text: str, repair: _Repair) -> dict[str, Any]:
    try:
        value = json.loads(text)
    except (ValueError, RecursionError):
        if "{" not in text:
            raise RowDroppedError("The row is not a JSON object.") from None
        # A row that was cut off would come back well-formed, with half an answer.
        if not text.rstrip().rstrip(",;").endswith("}"):
            raise RowDroppedError("The row is cut off: it does not end with }.") from None
        if text.count("{") + text.count("[") > 10_000:
            raise RowDroppedError("The row has too many brackets to be mended.") from None
        try:
            value = json_repair.loads(text, skip_json_loads=True)
        except (ValueError, RecursionError):
            raise RowDroppedError("The row is not JSON and could not be mended.") from None
        repair.note("Broken JSON was mended.")
    if not isinstance(value, dict) or not value:
        raise RowDroppedError("The row is not a JSON object.")
    found = cast(dict[str, Any], value)
    if _depth(found) > repair.limits.max_depth:
        raise RowDroppedError(f"The row has more than {repair.limits.max_depth} nested levels.")
    return found


def _depth(value: Any) -> int:
    level, depth = [value], 0
    while level:
        depth += 1
        items: list[Any] = []
        for item in level:
            if isinstance(item, dict):
                items += cast(dict[str, Any], item).values()
            elif isinstance(item, list):
                items += cast(list[Any], item)
        level = [item for item in items if isinstance(item, (dict, list))]
    return depth


def _mend_characters(text: str, repair: _Repair) -> str:
    cleaned = text.replace("\x00", "")
    if not cleaned.isascii():
        cleaned = cleaned.encode("utf-8", "replace").decode("utf-8")
        cleaned = ftfy.fix_text(
            cleaned,
            normalization=None,
            uncurl_quotes=False,
            fix_character_width=False,
            fix_latin_ligatures=False,
            unescape_html=False,
        )
    if cleaned != text:
        repair.note("Garbled characters were mended.")
    return cleaned


def _rename(value: dict[str, Any], repair: _Repair) -> dict[str, Any]:
    """Keys and messages in the spelling that the market reads."""
    found: dict[str, Any] = {}
    for key, item in value.items():
        plain = key.strip().casefold()
        found[plain if plain not in found else key] = item
    if found.keys() != value.keys():
        repair.note("Keys were written in lower case.")
    for name in _LISTS:
        turns = _read_list(found.get(name))
        if turns is not None:
            if name != "messages":
                repair.note(f"Key '{name}' became 'messages'.")
            messages = [_rename_message(turn, repair) for turn in turns]
            rest = {key: item for key, item in found.items() if key not in (name, "messages")}
            return {"messages": _drop_silent_messages(messages, repair)} | rest
    if recognise(frozenset(found)) is not None:
        return _as_text(found, repair)
    question = next((name for name in _QUESTIONS if name in found), None)
    answer = next((name for name in _ANSWERS if name in found), None)
    if question and answer:
        repair.note(f"Keys '{question}' and '{answer}' became 'prompt' and 'completion'.")
        return _as_text({"prompt": found[question], "completion": found[answer]}, repair)
    text = next((name for name in _TEXTS if name in found), None)
    label = next((name for name in _LABELS if name in found), None)
    if text and label:
        repair.note(f"Keys '{text}' and '{label}' became 'text' and 'label'.")
        return {"text": found[text], "label": found[label]}
    if text:
        repair.note(f"Key '{text}' became 'text'.")
        return _as_text({"text": found[text]}, repair)
    return found


def _as_text(value: dict[str, Any], repair: _Repair) -> dict[str, Any]:
    """Numbers where a text belongs, as text."""
    changed = dict(value)
    for key in ("prompt", "completion", "instruction", "output", "text"):
        item = value.get(key)
        if isinstance(item, bool) or not isinstance(item, (int, float)):
            continue
        if isinstance(item, float) and not math.isfinite(item):
            continue
        changed[key] = str(item)
        repair.note("Numbers were written as text.")
    return changed


def _read_list(value: Any) -> list[Any] | None:
    """A list of turns, also where it was written as a text."""
    if isinstance(value, str) and value.lstrip()[:1] == "[":
        try:
            value = json.loads(value)
        except (ValueError, RecursionError):
            return None
    return cast(list[Any], value) if isinstance(value, list) else None


def _rename_message(turn: Any, repair: _Repair) -> Any:
    if not isinstance(turn, dict):
        return turn
    found = {key.strip().casefold(): item for key, item in cast(dict[str, Any], turn).items()}
    for old, new in _MESSAGE_NAMES.items():
        if old in found and new not in found:
            found[new] = found.pop(old)
            repair.note(f"Key '{old}' of a message became '{new}'.")
    name = next((name for name in _CONTENT_NAMES if name in found), None)
    if name is not None and "content" not in found:
        found["content"] = found.pop(name)
        repair.note(f"Key '{name}' of a message became 'content'.")
    role = str(found.get("role", "")).strip().casefold()
    plain = role if role in CHAT_ROLES else _ROLES.get(role, role)
    if plain != found.get("role") and plain in CHAT_ROLES:
        repair.note(f"Role '{found.get('role')}' became '{plain}'.")
        found["role"] = plain
    content = found.get("content")
    if isinstance(content, (int, float)) and not isinstance(content, bool):
        found["content"] = str(content)
        repair.note("Numbers were written as text.")
    return found


def _drop_silent_messages(messages: list[Any], repair: _Repair) -> list[Any]:
    """Messages without a word, and what is asked after the last answer, teach nothing."""
    kept = [message for message in messages if not _is_silent(message)]
    if len(kept) != len(messages):
        repair.note("Empty messages were left out.")
    roles = [message.get("role") if isinstance(message, dict) else None for message in kept]
    if "assistant" in roles:
        last = len(roles) - roles[::-1].index("assistant")
        if last != len(kept) and None not in roles:
            repair.note("Messages after the last answer were left out.")
            kept = kept[:last]
    return kept


def _is_silent(message: Any) -> bool:
    if not isinstance(message, dict):
        return False
    fields = cast(dict[str, Any], message)
    content = fields.get("content")
    is_empty = content is None or (isinstance(content, str) and not content.strip())
    return is_empty and not fields.get("tool_calls")


def _convert_to_chat(value: dict[str, Any], repair: _Repair) -> dict[str, Any]:
    kind = recognise(frozenset(value))
    if kind is DataFormat.INSTRUCTION:
        asked, extra = value.get("instruction"), value.get("input")
        if isinstance(asked, str) and isinstance(extra, str) and extra.strip():
            asked = f"{asked}\n\n{extra}"
        answer = value.get("output")
    elif kind is DataFormat.COMPLETION:
        asked, answer = value.get("prompt"), value.get("completion")
    else:
        return value
    if not isinstance(asked, str) or not isinstance(answer, str) or not asked.strip():
        return value
    repair.note("Question and answer became chat messages.")
    messages = [
        {"role": "user", "content": asked.strip()},
        {"role": "assistant", "content": answer.strip()},
    ]
    system = value.get("system")
    if isinstance(system, str) and system.strip():
        messages.insert(0, {"role": "system", "content": system.strip()})
    return {"messages": messages}
