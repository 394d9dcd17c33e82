"""A message of a chat: as a row of a file has it, and as a chat template is given it."""

from __future__ import annotations

import hashlib
import json
import string
from collections.abc import Mapping, Sequence
from typing import Any, cast

from workers.protocol.record_keys import (
    MESSAGE_KEYS,
    refuse_unknown_message_key,
    refuse_unknown_role,
)
from workers.protocol.record_types import CHAT_ROLES, Segment, ValueRefusal

#: Other names of roles, as OpenAI writes and has written them.
_ROLE_NAMES = {"developer": "system", "function": "tool"}
#: Of an answer by sound; nothing of them is text.
_SOUND_KEYS = ("audio",)
_IDENTIFIER_CHARS = 9
_IDENTIFIER_LETTERS = string.ascii_letters + string.digits

Path = tuple[str | int, ...]


def parse_message(value: Any, path: Path, *, train: bool) -> Segment:
    """The segment that a message is.

    Parameters
    ----------
    path
        Where in the row the message stands.
    train
        Whether answers are learnt here at all.

    Raises
    ------
    ValueRefusal
        With the path of the value that is wrong.
    """
    if not isinstance(value, dict):
        raise ValueRefusal("A message must be an object with role and content.", *path)
    message = cast(dict[str, Any], value)
    unknown = sorted(set(message) - MESSAGE_KEYS)
    if unknown:
        if {"from", "value"} <= set(message):
            raise ValueRefusal(
                "Keys from and value are not known in a message. Use role and content.", *path
            )
        raise ValueRefusal(refuse_unknown_message_key(unknown[0]), *path, unknown[0])
    role = message.get("role")
    if role is None:
        raise ValueRefusal("A message has no role. Use system, user, assistant or tool.", *path)
    role = _ROLE_NAMES.get(role, role) if isinstance(role, str) else role
    if role not in CHAT_ROLES:
        raise ValueRefusal(refuse_unknown_role(role), *path, "role")
    role = cast(str, role)
    trained = _read_weight(message, role, path) and train and role == "assistant"
    calls = _read_calls(message, role, path)
    text = _read_content(message, path, has_calls=bool(calls))
    if trained and not text.strip() and not calls:
        raise ValueRefusal(
            "The assistant reply is empty, so there is nothing to learn.",
            *(*path, "content"),
            is_empty=True,
        )
    return Segment(
        role,
        text,
        trained,
        calls=calls,
        reasoning=_read_text(message, "reasoning_content", path) if role == "assistant" else "",
        call_id=_read_text(message, "tool_call_id", path),
        name=_read_text(message, "name", path) if role == "tool" else "",
    )


def write_messages(segments: Sequence[Segment]) -> list[dict[str, Any]]:
    """A conversation as chat templates take it; ``parse_message`` reads each message again.

    Identifiers of calls are nine letters and digits, which some templates insist on. A tool's
    message that names no call answers the first that none before it has answered.
    """
    messages: list[dict[str, Any]] = []
    open_calls: list[str] = []
    for segment in segments:
        message = _write_message(segment)
        open_calls += [call["id"] for call in message.get("tool_calls", ())]
        if segment.role == "tool":
            if open_calls and "tool_call_id" not in message:
                message["tool_call_id"] = open_calls[0]
            if message.get("tool_call_id") in open_calls:
                open_calls.remove(message["tool_call_id"])
        messages.append(message)
    return messages


def _write_message(segment: Segment) -> dict[str, Any]:
    message: dict[str, Any] = {"role": segment.role, "content": segment.text}
    if segment.calls:
        calls = json.loads(segment.calls)
        message["tool_calls"] = [call | {"id": _spell_identifier(call["id"])} for call in calls]
    if segment.reasoning:
        # gpt-oss has a name of its own for it
        message["reasoning_content"] = message["thinking"] = segment.reasoning
    if segment.call_id:
        message["tool_call_id"] = _spell_identifier(segment.call_id)
    if segment.name:
        message["name"] = segment.name
    return message


def parse_tools(row: Mapping[str, Any]) -> str:
    """The functions that a row lets the model call, as JSON; empty where there are none.

    Raises
    ------
    ValueRefusal
        When one of them has no name.
    """
    key = "tools" if row.get("tools") is not None else "functions"
    listed = row.get(key)
    if listed is None:
        return ""
    if not isinstance(listed, list):
        raise ValueRefusal("Tools must be a list of functions.", key)
    tools: list[dict[str, Any]] = []
    for index, one in enumerate(cast(list[Any], listed)):
        fields = cast(dict[str, Any], one) if isinstance(one, dict) else {}
        function = fields.get("function", fields)
        if not isinstance(function, dict) or not _is_name(cast(dict[str, Any], function)):
            raise ValueRefusal("A tool must be a function with a name.", key, index)
        tools.append({"type": "function", "function": function})
    return _write_json(tools, key) if tools else ""


def list_call_names(segment: Segment) -> list[str]:
    """Functions that a message calls."""
    return [call["function"]["name"] for call in json.loads(segment.calls or "[]")]


def list_tool_names(tools: str) -> list[str]:
    """Functions that a row lets the model call."""
    return [tool["function"]["name"] for tool in json.loads(tools or "[]")]


def _read_weight(message: Mapping[str, Any], role: str, path: Path) -> bool:
    weight = message.get("weight")
    if weight is None:
        return True
    if isinstance(weight, bool) or not isinstance(weight, (int, float)) or weight not in (0, 1):
        raise ValueRefusal(
            "A weight must be 0 (do not learn this reply) or 1 (learn it).", *path, "weight"
        )
    if weight and role != "assistant":
        raise ValueRefusal(
            "Only assistant messages are learned. Leave the weight of others out, or make it 0.",
            *path,
            "weight",
        )
    return bool(weight)


def _read_calls(message: Mapping[str, Any], role: str, path: Path) -> str:
    """Calls in one spelling: arguments as an object, in the order they have."""
    key, calls = "tool_calls", message.get("tool_calls")
    if calls is None and message.get("function_call") is not None:
        # as OpenAI wrote calls before there were several
        key, calls = "function_call", [{"function": message["function_call"]}]
    if calls is None:
        return ""
    if role != "assistant":
        raise ValueRefusal(f"Only an assistant message may have {key}.", *path, key)
    if not isinstance(calls, list):
        raise ValueRefusal("tool_calls must be a list.", *path, key)
    found = [
        _read_call(call, (*path, key, index), number=index)
        for index, call in enumerate(cast(list[Any], calls))
    ]
    return _write_json(found, *path, key) if found else ""


def _read_call(value: Any, path: Path, *, number: int) -> dict[str, Any]:
    call = cast(dict[str, Any], value) if isinstance(value, dict) else {}
    function = call.get("function", call)
    if not isinstance(function, dict) or not _is_name(cast(dict[str, Any], function)):
        raise ValueRefusal("A call must name its function, with its arguments.", *path)
    fields = cast(dict[str, Any], function)
    arguments = fields.get("arguments", {})
    if isinstance(arguments, str):
        try:
            arguments = json.loads(arguments or "{}")
        except ValueError:
            arguments = None
    if not isinstance(arguments, dict):
        raise ValueRefusal("The arguments of a call must be a JSON object.", *path)
    identifier = call.get("id")
    return {
        "id": identifier if isinstance(identifier, str) and identifier else f"call_{number}",
        "type": "function",
        "function": {"name": fields["name"], "arguments": arguments},
    }


def _write_json(value: Any, *path: str | int) -> str:
    text = json.dumps(value, ensure_ascii=False)
    if "\\u0000" in text:
        raise ValueRefusal("A text holds a NUL character (\\u0000). Remove it.", *path)
    return text


def _is_name(function: Mapping[str, Any]) -> bool:
    name = function.get("name")
    return isinstance(name, str) and bool(name)


def _read_content(message: Mapping[str, Any], path: Path, *, has_calls: bool) -> str:
    for key in _SOUND_KEYS:
        if message.get(key) is not None:
            raise ValueRefusal("Only text can be learned from. Leave sound out.", *path, key)
    content = message.get("content")
    if content is None:
        # how a model that was not willing to answer said so
        content = message.get("refusal")
    if content is None and not has_calls:
        if "content" in message:
            raise ValueRefusal(
                "The content of this message is null. Write a text.", *path, "content"
            )
        raise ValueRefusal("A message has no content.", *path)
    return _join_parts(content, (*path, "content"))


def _join_parts(content: Any, path: Path) -> str:
    if content is None:
        return ""
    if isinstance(content, str):
        return content
    if not isinstance(content, list):
        raise ValueRefusal("The content of a message must be a text.", *path)
    parts: list[str] = []
    for index, part in enumerate(cast(list[Any], content)):
        fields = cast(dict[str, Any], part) if isinstance(part, dict) else {}
        text = fields.get("text", fields.get("refusal"))
        if not isinstance(text, str):
            raise ValueRefusal(
                "Only text can be learned from. Leave images, sound and files out.", *path, index
            )
        parts.append(text)
    return "".join(parts)


def _read_text(message: Mapping[str, Any], key: str, path: Path) -> str:
    value = message.get(key)
    if value is None:
        return ""
    if not isinstance(value, str):
        raise ValueRefusal(f"Key {key} must be a text.", *path, key)
    return value


def _spell_identifier(identifier: str) -> str:
    if len(identifier) == _IDENTIFIER_CHARS and identifier.isascii() and identifier.isalnum():
        return identifier
    digest = hashlib.sha256(identifier.encode()).digest()
    return "".join(_IDENTIFIER_LETTERS[byte % 62] for byte in digest[:_IDENTIFIER_CHARS])
