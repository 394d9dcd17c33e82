"""The one JSON text of a value: RFC 8785, the JSON Canonicalization Scheme (JCS).

Hashes and signatures of the log cover this text, so that any program with a JSON parser and a JCS
library can compute them.
"""

from __future__ import annotations

import json
from typing import Any

import rfc8785

#: Integers count no further than JSON's numbers, which are doubles, count exactly.
MOST_INTEGER = 2**53 - 1


def serialize_canonical(value: Any) -> str:
    """Give the one text of a value made of JSON's types; tuples are arrays.

    Raises
    ------
    ValueError
        If a value has no JSON, a number is not finite, or an integer is beyond ``MOST_INTEGER``.
    """
    return rfc8785.dumps(value).decode()


def parse_json(text: str) -> Any:
    """Read JSON whose numbers are doubles: integers too great to count with are floats.

    So what is read can be written again: the text of 1e20 has no point, and Python reads an
    integer of it.

    Raises
    ------
    ValueError
        If the text is not JSON, or an object has a key twice: others may read the other value.
    """
    return json.loads(text, parse_int=_read_integer, object_pairs_hook=_read_object)


def read_hex(text: str, *, length: int) -> bytes:
    """Give the bytes that a text names, which has one form only.

    Raises
    ------
    ValueError
        If there are more or fewer bytes, or the text is not their hex in small letters.
    """
    found = bytes.fromhex(text)
    if len(found) != length or found.hex() != text:
        raise ValueError(f"not the hex of {length} bytes in small letters")
    return found


def _read_object(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    found = dict(pairs)
    if len(found) != len(pairs):
        raise ValueError("an object has a key twice")
    return found


def _read_integer(digits: str) -> int | float:
    value = int(digits)
    return value if -MOST_INTEGER <= value <= MOST_INTEGER else float(digits)
