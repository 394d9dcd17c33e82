"""Calls of functions in answers: in the form in which a model's chat template writes them.

Models are trained to call by their template's form, so the form is read off the template: it
writes a conversation with a call, and what stands around the call's JSON is what a model writes.
"""

from __future__ import annotations

import json
import re
from collections.abc import Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import Any

from marketplace.common.errors import UserError
from marketplace.fleet.text_encoder import TokenizerFiles, load_text_encoder
from workers.protocol.conversation_split import split_conversation
from workers.protocol.record_types import Segment
from workers.protocol.token_layout import TemplateError

#: Calls that are read of one answer.
CALLS_MAX = 32
_NAME, _ARGUMENTS = "look_it_up", {"subject": "probe"}
_PROBE_TOOL = {
    "type": "function",
    "function": {
        "name": _NAME,
        "description": "Looks a subject up.",
        "parameters": {"type": "object", "properties": {"subject": {"type": "string"}}},
    },
}
_PROBE_CALL = {
    "id": "probeCall",
    "type": "function",
    "function": {"name": _NAME, "arguments": _ARGUMENTS},
}
#: What may begin the JSON of calls, and stand between two.
_BEGINS, _BETWEEN = ("{", "["), re.compile(r"[ \n;,]*")
_decoder = json.JSONDecoder()


@dataclass(frozen=True, slots=True)
class CallForm:
    """How a model writes a call: JSON with a name and arguments, after an opening."""

    opening: str
    #: The member that holds a call's arguments.
    key: str
    #: Calls stand in a list.
    is_list: bool

    @property
    def mark(self) -> str:
        """What every call comes after; empty: nothing but its JSON tells it from text."""
        return (self.opening.split() or [""])[-1]


@dataclass(frozen=True, slots=True)
class ToolCall:
    name: str
    #: JSON.
    arguments: str


@lru_cache(maxsize=8)
def find_call_form(files: TokenizerFiles) -> CallForm:
    """The form of a model's calls.

    Raises
    ------
    UserError
        ``unsupported_parameter``: its template has no place for calls, or writes them otherwise.
    """
    encoder = load_text_encoder(files)
    segments = (
        Segment("user", "probe", False),
        Segment("assistant", "", True, calls=json.dumps([_PROBE_CALL])),
    )
    try:
        examples = split_conversation(
            segments, json.dumps([_PROBE_TOOL]), encoder.render, stops=encoder.stops
        )
    except TemplateError:
        raise _refuse_tools("has no place for tools") from None
    written = "".join(text for pieces in examples for text, is_learnt in pieces if is_learnt)
    for place in (found.start() for found in re.finditer(r"[\[{]", written)):
        value = _decode(written[place:])[0]
        call = value[0] if isinstance(value, list) and value else value
        if isinstance(call, dict) and call.get("name") == _NAME:
            keys = [key for key, member in call.items() if member == _ARGUMENTS]
            if keys:
                return CallForm(written[:place], keys[0], isinstance(value, list))
    raise _refuse_tools("writes calls in a form that is not read here")


def _refuse_tools(what: str) -> UserError:
    message = f"The model's chat template {what}. Choose another model for tools."
    return UserError("unsupported_parameter", message, param="tools")


@dataclass(frozen=True, slots=True)
class CallReader:
    """Finds calls in an answer.

    Parameters
    ----------
    names
        Functions that may be called.
    is_forced
        The answer is one call, and its opening is not in its text.
    most
        Calls that are taken.
    """

    form: CallForm
    names: frozenset[str]
    is_forced: bool = False
    most: int = CALLS_MAX

    def read(self, text: str) -> tuple[str, list[ToolCall]]:
        """What an answer says before its calls, and the calls; without any, all of it is text."""
        mark = "" if self.is_forced else self.form.mark
        if not mark or mark not in text:
            # The mark may be a special token, which is not in the text.
            calls, _ = self._read_calls(text, 0)
            return "" if calls else text, calls[: self.most]
        said, calls = text, []
        place = text.find(mark)
        for _ in range(CALLS_MAX):
            if place < 0:
                break
            found, end = self._read_calls(text, place + len(mark))
            if found and not calls:
                said = text[:place].rstrip()
            calls += found
            # A mark within a call's arguments is none.
            place = text.find(mark, end)
        return said, calls[: self.most]

    def find_certain(self, text: str) -> int:
        """Characters at the beginning of an answer that are text, whatever comes after them."""
        if self.is_forced or not text.strip() or text.lstrip().startswith(_BEGINS):
            return 0
        mark = self.form.mark
        if mark in text:
            return text.index(mark) if mark else len(text)
        lengths = range(min(len(mark) - 1, len(text)), 0, -1)
        return len(text) - next((n for n in lengths if text.endswith(mark[:n])), 0)

    def _read_calls(self, text: str, place: int) -> tuple[list[ToolCall], int]:
        """The calls from a place on, up to the first that is none or not whole, and their end."""
        calls: list[ToolCall] = []
        while len(calls) < CALLS_MAX:
            between = _BETWEEN.match(text, place)
            # It matches nothing too.
            assert between is not None
            begins = between.end()
            if not text.startswith(_BEGINS, begins):
                break
            value, end = _decode(text, begins)
            found = [
                self._read_call(one) for one in (value if isinstance(value, list) else [value])
            ]
            if not found or None in found:
                break
            calls += [call for call in found if call is not None]
            place = end
        return calls, place

    def _read_call(self, value: Any) -> ToolCall | None:
        match value:
            case {"name": str(name), self.form.key: dict(arguments)} if name in self.names:
                written = _write_arguments(arguments)
                return None if written is None else ToolCall(name, written)
        return None


class CallStream:
    """Text and calls of one answer, as its words come.

    Parameters
    ----------
    reader
        ``None``: there are no calls, and all of it is text.
    """

    def __init__(self, reader: CallReader | None) -> None:
        self._reader = reader
        self._text, self._given = "", 0

    def add(self, words: str) -> str:
        """What is certainly text now; what may be a call waits for the end."""
        if self._reader is None:
            return words
        self._text += words
        given, self._given = self._given, max(self._given, self._reader.find_certain(self._text))
        return self._text[given : self._given]

    def finish(self) -> tuple[str, list[ToolCall]]:
        """The text that waited, and the calls."""
        if self._reader is None:
            return "", []
        said, calls = self._reader.read(self._text)
        return said[self._given :], calls


def _decode(text: str, place: int = 0) -> tuple[Any, int]:
    """The JSON value at a place of a text, and where it ends; ``None``: there is none."""
    try:
        return _decoder.raw_decode(text, place)
    except (ValueError, RecursionError):
        return None, place


def _write_arguments(arguments: dict[str, Any]) -> str | None:
    """Arguments as JSON that can be sent; ``None``: a number in them is none of JSON's."""
    try:
        written = json.dumps(arguments, ensure_ascii=False, allow_nan=False)
        written.encode()
    except UnicodeEncodeError:
        # Half of a surrogate pair, which only an escape can say.
        return json.dumps(arguments)
    except (ValueError, RecursionError):
        return None
    return written


def build_call_schema(form: CallForm, functions: Sequence[dict[str, Any]]) -> dict[str, Any]:
    """The schema of one call of one of several functions, without the form's opening.

    Parameters
    ----------
    functions
        Each with a name, and maybe a schema of its parameters. They are known to be bounded
        (``answer_schema.describe_schema_fault``).
    """
    calls: list[dict[str, Any]] = []
    definitions: dict[str, Any] = {}
    for index, function in enumerate(functions):
        parameters = function.get("parameters") or {"type": "object", "additionalProperties": False}
        definitions[f"p{index}"] = _move_references(parameters, to=f"#/$defs/p{index}")
        call = {"name": {"const": function["name"]}, form.key: {"$ref": f"#/$defs/p{index}"}}
        calls.append(
            {
                "type": "object",
                "properties": call,
                "required": list(call),
                "additionalProperties": False,
            }
        )
    one: dict[str, Any] = calls[0] if len(calls) == 1 else {"anyOf": calls}
    if form.is_list:
        one = {"type": "array", "items": one, "minItems": 1, "maxItems": 1}
    return one | {"$defs": definitions}


def _move_references(value: Any, *, to: str) -> Any:
    """A schema that has moved to a place in another one."""
    if isinstance(value, list):
        return [_move_references(one, to=to) for one in value]
    if not isinstance(value, dict):
        return value
    moved = {name: _move_references(one, to=to) for name, one in value.items()}
    if isinstance(reference := value.get("$ref"), str) and reference.startswith("#"):
        moved["$ref"] = to + reference[1:]
    return moved
