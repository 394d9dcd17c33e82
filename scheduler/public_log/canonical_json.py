"""The one JSON text of a value: RFC 8785, the JSON Canonicalization Scheme (JCS).

Hashes and signatures of the log cover this text, so that any program with a JSON parser and a JCS
library can compute them. It is written here without one, so that a verifier needs none.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Generator
from contextlib import contextmanager
from json.encoder import encode_basestring
from typing import Any, cast

#: Integers count no further than JSON's numbers, which are doubles, count exactly.
MOST_INTEGER = 2**53 - 1
#: Numbers are written with an exponent from here on (ECMA-262, Number::toString).
_MOST_DIGITS = 21


def serialize_canonical(value: Any) -> str:
    """Give the one text of a value made of JSON's types; tuples are arrays.

    Raises
    ------
    ValueError
        If a value has no JSON, a number is not finite, an integer is beyond ``MOST_INTEGER``, or
        it is nested too deeply.
    """
    pieces: list[str] = []
    with _refusing_depth():
        _write(value, pieces.append)
    text = "".join(pieces)
    if not text.isascii():
        # Halves of a pair of surrogates have no UTF-8.
        text.encode()
    return text


def parse_json(text: str) -> Any:
    """Read JSON whose numbers are doubles: integers too great to count with are floats.

    So what is read can be written again: the text of 1e20 has no point, and Python reads an
    integer of it.

    Raises
    ------
    ValueError
        If the text is not JSON, an object has a key twice (others may read the other value), or
        it is nested too deeply. A number beyond doubles is read and cannot be written again.
    """
    with _refusing_depth():
        return json.loads(
            text,
            parse_int=_read_integer,
            parse_constant=_refuse_constant,
            object_pairs_hook=_read_object,
        )


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


@contextmanager
def _refusing_depth() -> Generator[None]:
    try:
        yield
    except RecursionError:
        raise ValueError("it is nested too deeply") from None


def _write(value: Any, add: Callable[[str], None]) -> None:
    if isinstance(value, str):
        add(encode_basestring(value))
    elif isinstance(value, float):
        add(_write_float(value))
    elif value is None:
        add("null")
    elif value is True or value is False:
        add("true" if value else "false")
    elif isinstance(value, int):
        if not -MOST_INTEGER <= value <= MOST_INTEGER:
            raise ValueError(f"{value} exceeds the integers that JSON's doubles count exactly")
        add(int.__repr__(value))
    elif isinstance(value, dict):
        _write_object(cast("dict[Any, Any]", value), add)
    elif isinstance(value, list | tuple):
        separator = "["
        for item in cast("list[Any]", value):
            add(separator)
            _write(item, add)
            separator = ","
        add("]" if separator == "," else "[]")
    else:
        raise ValueError(f"{type(value).__name__} has no JSON")


def _write_object(members: dict[Any, Any], add: Callable[[str], None]) -> None:
    separator = "{"
    for name in _sort_names(members):
        add(separator)
        add(encode_basestring(name))
        add(":")
        _write(members[name], add)
        separator = ","
    add("}" if separator == "," else "{}")


def _sort_names(members: dict[Any, Any]) -> list[str]:
    """Names in the order of their UTF-16, which is that of letters but beyond the first plane."""
    if not all(isinstance(name, str) for name in members):
        raise ValueError("names of an object's members must be texts")
    if all(name.isascii() for name in members):
        return sorted(members)
    return sorted(members, key=lambda name: name.encode("utf-16be"))


def _write_float(value: float) -> str:
    """Write a number as ECMA-262 does: Python has the same digits in another form."""
    text = float.__repr__(value)
    if text.endswith(".0"):
        return "0" if value == 0 else text[:-2]
    mantissa, _, power = text.partition("e")
    if not power:
        if text[-1] in "fn":
            raise ValueError(f"{text} is not representable in JSON")
        return text
    exponent = int(power)
    sign = "-" if value < 0 else ""
    digits = mantissa.removeprefix("-").replace(".", "")
    if 0 < exponent < _MOST_DIGITS:
        return f"{sign}{digits.ljust(exponent + 1, '0')}"
    if -7 < exponent < 0:
        return f"{sign}0.{'0' * (-exponent - 1)}{digits}"
    return f"{mantissa}e{exponent:+d}"


def _read_object(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    found = dict(pairs)
    if len(found) != len(pairs):
        raise ValueError("an object has a key twice")
    return found


def _read_integer(digits: str) -> int | float:
    value = int(digits)
    return value if -MOST_INTEGER <= value <= MOST_INTEGER else float(digits)


def _refuse_constant(name: str) -> float:
    raise ValueError(f"{name} is not JSON")
