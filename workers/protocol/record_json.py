"""One line of JSON to its object, with the place of whatever is wrong in it."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from typing import Any, cast

from workers.protocol.record_types import RowRefusal

#: A text, a bracket, or a bare word or number; possessive, so that hostile input
#: cannot make it back-track.
_TOKEN = re.compile(r'"[^"\\]*+(?:\\.[^"\\]*+)*+"|[\[\]{}:,]|[^\s\[\]{}:,"]++', re.DOTALL)

#: What json says of a fault, and how to say it to the owner of the file.
_REASONS = (
    ("Unterminated string", "The text starts a quote and never closes it, at character {at}."),
    (
        "Extra data",
        "The row ends before character {at} but the line goes on. "
        "Put one JSON object on each line.",
    ),
    ("Expecting ':'", "A colon is missing at character {at}."),
    ("Expecting ','", "A comma or a closing bracket is missing at character {at}."),
    ("Expecting property name", "A key in double quotes must stand at character {at}."),
    ("Illegal trailing comma", "There is a comma too many at character {at}."),
    (
        "Invalid control character",
        "There is a raw control character at character {at}. "
        "Write a tab as \\t and a line break as \\n.",
    ),
    (
        "Invalid \\",
        "The backslash at character {at} starts no known escape. Write \\\\ for a plain backslash.",
    ),
    ("Expecting value", "A value is missing at character {at}. Texts stand in double quotes."),
)


class DuplicateKeyError(ValueError):
    """A key stands twice in one object; the message is the key."""


class _ConstantError(Exception):
    pass


def parse_object(text: str, *, max_depth: int) -> dict[str, Any]:
    """The JSON object on one line.

    Raises
    ------
    RowRefusal
        With the characters that are wrong.
    """
    _check_depth(text, max_depth)
    try:
        value: Any = _DECODER.decode(text)
    except json.JSONDecodeError as error:
        raise _syntax_refusal(text, error) from None
    except DuplicateKeyError as error:
        raise _duplicate_refusal(text, str(error)) from None
    except _ConstantError as error:
        raise _constant_refusal(text, str(error)) from None
    except ValueError:
        raise RowRefusal("A number in this row has too many digits. Shorten it.") from None
    if not isinstance(value, dict):
        raise RowRefusal(
            "A row must be a JSON object in braces. Put one object on each line.", start=0
        )
    return cast(dict[str, Any], value)


def locate(text: str, path: tuple[str | int, ...]) -> tuple[int, int] | None:
    """Start and end of the value at ``path`` in one valid JSON text.

    A path that leads past what is there gives the opening bracket of the innermost
    list or object that it does reach.
    """
    reached: tuple[int, int] | None = None
    for kind, start, end, at in _walk(text):
        if kind == "key":
            continue
        if at == path:
            return (start, _closing(text, start)) if kind == "open" else (start, end)
        if kind == "open" and at == path[: len(at)]:
            reached = start, end
    return reached


def _walk(text: str) -> Iterator[tuple[str, int, int, tuple[str | int, ...]]]:
    """Every key, bare value and opening bracket of valid JSON, with its path."""
    path: list[str | int] = []
    expecting_key = False
    for token in _TOKEN.finditer(text):
        mark = token.group()
        if mark in ("[", "{"):
            yield "open", token.start(), token.end(), tuple(path)
            path.append(0 if mark == "[" else "")
            expecting_key = mark == "{"
        elif mark in ("]", "}"):
            path.pop()
            expecting_key = False
        elif mark == ",":
            key = path[-1]
            if isinstance(key, int):
                path[-1] = key + 1
            else:
                expecting_key = True
        elif mark == ":":
            expecting_key = False
        elif expecting_key:
            path[-1] = json.loads(mark)
            yield "key", token.start(), token.end(), tuple(path)
        else:
            yield "value", token.start(), token.end(), tuple(path)


def _closing(text: str, start: int) -> int:
    depth = 0
    for token in _TOKEN.finditer(text, start):
        mark = token.group()
        depth += (mark in ("[", "{")) - (mark in ("]", "}"))
        if depth == 0:
            return token.end()
    return len(text)


def _check_depth(text: str, max_depth: int) -> None:
    """Refuse nesting bombs before any recursive parser sees them."""
    if text.count("[") + text.count("{") <= max_depth:
        return
    depth = 0
    for token in _TOKEN.finditer(text):
        mark = token.group()
        depth += (mark in ("[", "{")) - (mark in ("]", "}"))
        if depth > max_depth:
            at = token.start()
            raise RowRefusal(
                f"There are more than {max_depth} brackets inside each other "
                f"at character {at + 1}. Flatten the row.",
                start=at,
                end=at + 1,
            )


def _syntax_refusal(text: str, error: json.JSONDecodeError) -> RowRefusal:
    at = error.pos
    if at >= len(text.rstrip()):
        return RowRefusal(
            "The line ends before its JSON does. Close the brackets and quotes.",
            start=max(0, len(text.rstrip()) - 1),
            end=len(text),
        )
    message = next(
        (reason for begins, reason in _REASONS if error.msg.startswith(begins)),
        "The row is not JSON at character {at}.",
    )
    end = None if error.msg.startswith("Unterminated") else at + 1
    return RowRefusal(message.format(at=at + 1), start=at, end=end)


def _duplicate_refusal(text: str, key: str) -> RowRefusal:
    seen: set[tuple[str | int, ...]] = set()
    for kind, start, end, at in _walk(text):
        if kind == "key" and at in seen and at[-1] == key:
            return RowRefusal(
                f"Key {show_name(key)} stands twice in one object.", start=start, end=end
            )
        if kind == "key":
            seen.add(at)
    return RowRefusal(f"Key {show_name(key)} stands twice in one object.")


def _constant_refusal(text: str, name: str) -> RowRefusal:
    message = f"The value {name} is no number in JSON. Write a number, or null."
    for kind, start, end, _ in _walk(text):
        if kind == "value" and text[start:end] == name:
            return RowRefusal(message, start=start, end=end)
    return RowRefusal(message)


def show_name(name: object) -> str:
    """A key or role from the file, short and safe enough to stand in a sentence."""
    text = re.sub(r"[^\x20-\x7e\xa0-\ud7ff]", "?", str(name))
    return text if len(text) <= 40 else f"{text[:39]}…"


def read_pairs(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    """Build an object for ``json``, which by itself takes the last of two values for one key.

    Raises
    ------
    DuplicateKeyError
        A key stands twice.
    """
    value = dict(pairs)
    if len(value) != len(pairs):
        seen: set[str] = set()
        for key, _ in pairs:
            if key in seen:
                raise DuplicateKeyError(key)
            seen.add(key)
    return value


def _constant(name: str) -> Any:
    raise _ConstantError(name)


_DECODER = json.JSONDecoder(object_pairs_hook=read_pairs, parse_constant=_constant)
