"""What a row of each format looks like, from a JSON object or a CSV record."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import Any, cast

from workers.protocol.job_spec import DataFormat
from workers.protocol.record_keys import REQUIRED, list_ignored_keys, recognise, refuse_unknown_keys
from workers.protocol.record_messages import parse_message, parse_tools
from workers.protocol.record_types import CHAT_ROLES, Row, Segment, ValueRefusal

FORMAT_NAMES: dict[DataFormat, str] = {
    DataFormat.CHAT: "chat (messages)",
    DataFormat.COMPLETION: "prompt and completion",
    DataFormat.INSTRUCTION: "instruction and output",
    DataFormat.TEXT: "text",
    DataFormat.PREFERENCE: "preference (chosen and rejected)",
    DataFormat.CLASSIFICATION: "classification (text and label)",
}
_NOTHING = "so there is nothing to learn"
#: Formats whose rows may be conversations.
_SPOKEN = (DataFormat.CHAT, DataFormat.PREFERENCE)


def parse_row_object(
    value: Mapping[str, Any], *, line: int, data_format: DataFormat | None, max_messages: int
) -> Row:
    """The row an object is.

    Parameters
    ----------
    data_format : DataFormat or None
        The format of the file so far; ``None`` before its first row.

    Raises
    ------
    ValueRefusal
        With the path of the value that is wrong.
    """
    keys = frozenset(value)
    own = recognise(keys)
    if any(kind is data_format and required <= keys for kind, required in REQUIRED):
        own = data_format
    if own is None:
        raise refuse_unknown_keys(keys, data_format)
    if data_format is not None and own is not data_format:
        raise ValueRefusal(
            f"This row is {FORMAT_NAMES[own]}, but the file is {FORMAT_NAMES[data_format]}. "
            "Keep one format in a file."
        )
    segments, rejected, used = _SHAPES[own](value, max_messages)
    tools = parse_tools(_find_tools(value)) if own in _SPOKEN else ""
    for text in (tools, *(text for part in (*segments, *rejected) for text in _list_texts(part))):
        _check_characters(text)
    return Row(
        line=line,
        format=own,
        segments=segments,
        rejected=rejected,
        ignored_keys=list_ignored_keys(keys, own, used),
        tools=tools,
    )


def _find_tools(value: Mapping[str, Any]) -> Mapping[str, Any]:
    """Where tools stand: in the row, or beside the messages of OpenAI's preferences."""
    asked = value.get("input")
    return cast(dict[str, Any], asked) if isinstance(asked, dict) else value


def _list_texts(segment: Segment) -> tuple[str, ...]:
    return segment.text, segment.calls, segment.reasoning, segment.call_id, segment.name


_Shape = tuple[tuple[Segment, ...], tuple[Segment, ...], frozenset[str]]


#: Who speaks in a ShareGPT turn, by the role that it has in a chat.
_SPEAKERS = {
    "human": "user",
    "user": "user",
    "gpt": "assistant",
    "assistant": "assistant",
    "system": "system",
}


def _read_turns(turns: Any) -> list[dict[str, Any]]:
    """ShareGPT's turns (``from`` and ``value``) as messages."""
    if not isinstance(turns, list):
        raise ValueRefusal("conversations must be a list of turns.", "conversations")
    messages: list[dict[str, Any]] = []
    for index, turn in enumerate(cast(list[Any], turns)):
        if not isinstance(turn, dict) or not {"from", "value"} <= cast(dict[str, Any], turn).keys():
            raise ValueRefusal(
                "A turn of a conversation has from and value.", "conversations", index
            )
        fields = cast(dict[str, Any], turn)
        role = _SPEAKERS.get(str(fields["from"]))
        if role is None:
            raise ValueRefusal(
                "A turn is from human, gpt or system.", "conversations", index, "from"
            )
        messages.append({"role": role, "content": fields["value"]})
    return messages


def _chat(value: Mapping[str, Any], max_messages: int) -> _Shape:
    if "messages" not in value:
        turns = value["conversations"]
        try:
            shape = _chat({"messages": _read_turns(turns)}, max_messages)
        except ValueRefusal as refusal:
            # The same place in the row as it is written.
            names = {"messages": "conversations", "content": "value", "role": "from"}
            path = (names.get(str(step), step) for step in refusal.path)
            raise ValueRefusal(refusal.message, *path) from None
        return shape[0], shape[1], frozenset({"conversations"})
    segments = _messages(value["messages"], ("messages",), max_messages, train=True)
    if not any(segment.role == "assistant" for segment in segments):
        raise ValueRefusal(
            f"There is no assistant message, {_NOTHING}. Add the reply the model should give.",
            "messages",
        )
    if not any(segment.train for segment in segments):
        raise ValueRefusal(
            f"Every assistant message has weight 0, {_NOTHING}. Give one of them weight 1.",
            "messages",
        )
    return segments, (), frozenset({"messages"})


def _completion(value: Mapping[str, Any], _max_messages: int) -> _Shape:
    prompt = _text(value, "prompt", what="prompt", empty_ok=True)
    completion = _text(value, "completion", what="completion")
    segments = (Segment("prompt", prompt, False), Segment("completion", completion, True))
    return segments, (), frozenset({"prompt", "completion"})


def _instruction(value: Mapping[str, Any], _max_messages: int) -> _Shape:
    instruction = _text(value, "instruction", what="instruction")
    extra = _text(value, "input", what="input", empty_ok=True) if value.get("input") else ""
    output = _text(value, "output", what="output")
    asked = f"{instruction}\n\n{extra}" if extra.strip() else instruction
    segments = (Segment("user", asked, False), Segment("assistant", output, True))
    return segments, (), frozenset({"instruction", "input", "output"})


def _plain(value: Mapping[str, Any], _max_messages: int) -> _Shape:
    return (Segment("text", _text(value, "text", what="text"), True),), (), frozenset({"text"})


def _classification(value: Mapping[str, Any], _max_messages: int) -> _Shape:
    label = value["label"]
    if isinstance(label, int) and not isinstance(label, bool):
        label = str(label)
    text = _text(value, "text", what="text")
    named = _text({"label": label}, "label", what="label")
    segments = (Segment("text", text, False), Segment("label", named.strip(), True))
    return segments, (), frozenset({"text", "label"})


def _preference(value: Mapping[str, Any], max_messages: int) -> _Shape:
    if "preferred_output" in value:
        return _preference_openai(value, max_messages)
    used = frozenset({"prompt", "chosen", "rejected"})
    prompt = value.get("prompt")
    chosen = _answer(value["chosen"], "chosen", max_messages)
    rejected = _answer(value["rejected"], "rejected", max_messages)
    if chosen == rejected:
        raise ValueRefusal(
            "The chosen and the rejected answer are the same, so there is nothing to prefer.",
            "rejected",
        )
    if isinstance(prompt, list):
        asked = _messages(cast(list[Any], prompt), ("prompt",), max_messages, train=False)
    elif prompt is None:
        asked, chosen, rejected = _common_prompt(chosen, rejected)
    else:
        role = "prompt" if chosen[0].role == "completion" else "user"
        asked = (Segment(role, _text(value, "prompt", what="prompt", empty_ok=True), False),)
    if len({_spoken(part) for part in (asked, chosen, rejected) if part}) > 1:
        raise ValueRefusal(
            "Prompt, chosen and rejected must all be texts, or all be lists of messages.", "chosen"
        )
    return (*asked, *chosen), (*asked, *rejected), used


def _preference_openai(value: Mapping[str, Any], max_messages: int) -> _Shape:
    asked_value = value["input"]
    if not isinstance(asked_value, dict) or "messages" not in asked_value:
        raise ValueRefusal("Input must be an object with messages.", "input")
    asked = _messages(
        cast(dict[str, Any], asked_value)["messages"],
        ("input", "messages"),
        max_messages,
        train=False,
    )
    preferred = _answer(value["preferred_output"], "preferred_output", max_messages)
    other = _answer(value["non_preferred_output"], "non_preferred_output", max_messages)
    if preferred == other:
        raise ValueRefusal(
            "The preferred and the other answer are the same, so there is nothing to prefer.",
            "non_preferred_output",
        )
    for key, answer in (("preferred_output", preferred), ("non_preferred_output", other)):
        if _spoken(answer) != "chat":
            raise ValueRefusal(f"Key {key} must be a list of messages.", key)
    used = frozenset({"input", "preferred_output", "non_preferred_output"})
    return (*asked, *preferred), (*asked, *other), used


def _answer(value: Any, key: str, max_messages: int) -> tuple[Segment, ...]:
    if isinstance(value, str):
        return (Segment("completion", _text({key: value}, key, what=f"{key} answer"), True),)
    if not isinstance(value, list):
        raise ValueRefusal(f"Key {key} must be a text or a list of messages.", key)
    segments = _messages(cast(list[Any], value), (key,), max_messages, train=True)
    if not segments[-1].train:
        raise ValueRefusal(f"The last message of {key} must be the assistant's answer.", key)
    return segments


def _common_prompt(
    chosen: tuple[Segment, ...], rejected: tuple[Segment, ...]
) -> tuple[tuple[Segment, ...], tuple[Segment, ...], tuple[Segment, ...]]:
    """Split off what both answers begin with; it is the prompt when none was given."""
    if chosen[0].role == "completion" and rejected[0].role == "completion":
        left, right = chosen[0].text, rejected[0].text
        limit = min(len(left), len(right))
        same = next((i for i in range(limit) if left[i] != right[i]), limit)
        cut = left.rfind(" ", 0, same) if same else -1
        cut = max(cut, left.rfind("\n", 0, same))
        if cut <= 0 or not left[cut:].strip() or not right[cut:].strip():
            return (), chosen, rejected
        return (
            (Segment("prompt", left[:cut], False),),
            (Segment("completion", left[cut:], True),),
            (Segment("completion", right[cut:], True),),
        )
    limit = min(len(chosen), len(rejected)) - 1
    same = next((i for i in range(limit) if chosen[i] != rejected[i]), max(limit, 0))
    asked = tuple(replace(part, train=False) for part in chosen[:same])
    return asked, chosen[same:], rejected[same:]


def _spoken(segments: tuple[Segment, ...]) -> str:
    return "chat" if segments[0].role in CHAT_ROLES else "plain"


def _messages(
    value: Any, path: tuple[str | int, ...], max_messages: int, *, train: bool
) -> tuple[Segment, ...]:
    if not isinstance(value, list):
        raise ValueRefusal(
            f"{_title(path)} must be a list of objects with role and content.", *path
        )
    messages = cast(list[Any], value)
    if not messages:
        raise ValueRefusal(f"{_title(path)} is an empty list, {_NOTHING}.", *path)
    if len(messages) > max_messages:
        raise ValueRefusal(f"A row may have at most {max_messages:,} messages.", *path)
    return tuple(
        parse_message(message, (*path, index), train=train)
        for index, message in enumerate(messages)
    )


def _title(path: tuple[str | int, ...]) -> str:
    return str(path[-1]).capitalize()


def _text(value: Mapping[str, Any], key: str, *, what: str, empty_ok: bool = False) -> str:
    text = value.get(key)
    if not isinstance(text, str):
        raise ValueRefusal(f"The {what} must be a text.", key)
    if not empty_ok and not text.strip():
        raise ValueRefusal(f"The {what} is empty, {_NOTHING}.", key)
    return text


def _check_characters(text: str) -> None:
    """Escapes can spell characters that no tokenizer and no database takes."""
    if "\x00" in text:
        raise ValueRefusal("A text holds a NUL character (\\u0000). Remove it.")
    if not text.isascii():
        try:
            text.encode("utf-8")
        except UnicodeEncodeError as error:
            code = f"\\u{ord(text[error.start]):04x}"
            raise ValueRefusal(
                f"A text holds half of a character pair ({code}). Write both halves, or neither."
            ) from None


_SHAPES: dict[DataFormat, Callable[[Mapping[str, Any], int], _Shape]] = {
    DataFormat.CHAT: _chat,
    DataFormat.COMPLETION: _completion,
    DataFormat.INSTRUCTION: _instruction,
    DataFormat.TEXT: _plain,
    DataFormat.PREFERENCE: _preference,
    DataFormat.CLASSIFICATION: _classification,
}
