"""The messages of a chat in the spelling that training reads."""

from __future__ import annotations

import json
from typing import Any, cast

from workers.preparation.mended_json import Repair, fold_keys
from workers.preparation.roles import DETAILS
from workers.protocol.record_json import read_pairs
from workers.protocol.record_types import CHAT_ROLES

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


def read_list(value: Any) -> list[Any] | None:
    """Read a list of turns, also where it was written as a text; ``None`` for anything else."""
    if isinstance(value, str) and value.lstrip()[:1] == "[":
        try:
            value = json.loads(value, object_pairs_hook=read_pairs)
        except (ValueError, RecursionError):
            return None
    return cast(list[Any], value) if isinstance(value, list) else None


def rename_message(turn: Any, repair: Repair) -> Any:
    """Give a message's keys and role the names that training reads."""
    if not isinstance(turn, dict):
        return turn
    found = fold_keys(cast(dict[str, Any], turn))
    for old, new in _MESSAGE_NAMES.items():
        if old in found and new not in found:
            found[new] = found.pop(old)
            repair.note(f"Key '{old}' of a message became '{new}'.")
    name = next((name for name in _CONTENT_NAMES if name in found), None)
    if name is not None and "content" not in found:
        found["content"] = found.pop(name)
        repair.note(f"Key '{name}' of a message became 'content'.")
    for name in sorted(DETAILS & found.keys()):
        del found[name]
        repair.note(f"Key '{name}' of a message was left out.")
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


def drop_silent_messages(messages: list[Any], repair: Repair) -> list[Any]:
    """Leave out what teaches nothing: silent messages, and questions after the last answer."""
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
