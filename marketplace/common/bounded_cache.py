"""A dictionary as a cache that forgets its oldest values."""

from __future__ import annotations

from typing import TypeVar

_Key = TypeVar("_Key")
_Value = TypeVar("_Value")


def remember(known: dict[_Key, _Value], key: _Key, value: _Value, *, most: int) -> _Value:
    """Keep a value, and forget the oldest beyond ``most``."""
    while len(known) >= most:
        known.pop(next(iter(known)), None)
    known[key] = value
    return value
