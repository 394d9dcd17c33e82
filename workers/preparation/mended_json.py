"""The text of one row to an object, mended where nothing of it is lost."""

from __future__ import annotations

import json
import math
import re
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass, field
from typing import Any, cast

import ftfy
import json_repair

from workers.preparation.forms import OpenPair
from workers.protocol.record_json import DuplicateKeyError, read_pairs, show_name
from workers.protocol.record_types import Limits

_LETTER = re.compile(r"\w")
_ESCAPED = re.compile(r"\\(?:u[0-9a-fA-F]{4}|.)")


class RowDroppedError(Exception):
    """The row cannot be used; the message says why."""


@dataclass(slots=True)
class Repair:
    """How rows are to be, and what was mended of one."""

    to_chat: bool
    limits: Limits
    reasons: list[str] = field(default_factory=list)
    #: Roles that the row's owner gave to its columns.
    said: set[str] = field(default_factory=set)
    #: Set where the row is a prompt and completion that may become a chat.
    pair: OpenPair | None = None

    def note(self, reason: str) -> None:
        if reason not in self.reasons:
            self.reasons.append(reason)


def parse_row(text: str, repair: Repair) -> dict[str, Any]:
    """Read the object of a row.

    Raises
    ------
    RowDroppedError
        It is none, and cannot be mended to one without losing text.
    """
    try:
        value = _decode(text, repair)
    except DuplicateKeyError as twice:
        key = show_name(twice)
        raise RowDroppedError(f"Key '{key}' stands twice in one object.") from None
    except (ValueError, RecursionError):
        if "{" not in text:
            raise RowDroppedError("The row is not a JSON object.") from None
        # A row that was cut off would come back well-formed, with half an answer.
        if not text.rstrip().rstrip(",;").endswith("}"):
            raise RowDroppedError("The row is cut off: it does not end with }.") from None
        if text.count("{") + text.count("[") > 10_000:
            raise RowDroppedError("The row has too many brackets to be mended.") from None
        value = _mend_json(text, repair)
        repair.note("Broken JSON was mended.")
    if not isinstance(value, dict) or not value:
        raise RowDroppedError("The row is not a JSON object.")
    found = cast(dict[str, Any], value)
    if _depth(found) > repair.limits.max_depth:
        raise RowDroppedError(f"The row has more than {repair.limits.max_depth} nested levels.")
    return found


def _mend_json(text: str, repair: Repair) -> Any:
    """Mend broken JSON.

    Raises
    ------
    RowDroppedError
        It could not be mended, or not without losing letters.
    """
    with suppress(ValueError, RecursionError):
        _, end = json.JSONDecoder().raw_decode(text.lstrip())
        if text.lstrip()[end:].lstrip(" ,;").startswith("{"):
            raise RowDroppedError("The line holds two rows. Give each a line of its own.")
    try:
        value = json_repair.loads(text, skip_json_loads=True)
    except (ValueError, RecursionError):
        raise RowDroppedError("The row is not JSON and could not be mended.") from None
    mended = json.dumps(value, ensure_ascii=False)
    if _count_letters(mended) < _count_letters(text[text.index("{") :]):
        raise RowDroppedError("The row is not JSON and could not be mended without losing text.")
    return _decode(mended, repair)


def _decode(text: str, repair: Repair) -> Any:
    """Read JSON, with null for numbers that JSON cannot write."""

    def lose(_: str) -> None:
        repair.note("Numbers that are not finite became null.")

    def read_number(digits: str) -> float | None:
        number = float(digits)
        return number if math.isfinite(number) else lose(digits)

    return json.loads(
        text, object_pairs_hook=read_pairs, parse_constant=lose, parse_float=read_number
    )


def fold_keys(value: Mapping[str, Any]) -> dict[str, Any]:
    """The object with its keys in lower case and without spaces around them.

    Raises
    ------
    RowDroppedError
        Two keys differ in nothing else.
    """
    found: dict[str, Any] = {}
    for key, item in value.items():
        plain = key.strip().casefold()
        if plain in found:
            raise RowDroppedError(f"Key '{show_name(plain)}' stands twice, in other letters.")
        found[plain] = item
    return found


def _count_letters(text: str) -> int:
    return len(_LETTER.findall(_ESCAPED.sub("", text)))


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


def mend_characters(text: str, repair: Repair) -> str:
    """Mend what was garbled by a wrong encoding."""
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
