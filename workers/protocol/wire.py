"""Frozen dataclasses to plain JSON values and back, strictly.

A message from the other side of the network is hostile until it parses: missing keys, wrong types
and non-finite numbers are refused with the path of the value that is wrong. Unknown keys are
ignored, as the other side may be of a later release; settings that people write are read with
``from_json``, which refuses them.
"""

from __future__ import annotations

import dataclasses
import functools
import json
import math
import types
import typing
from collections.abc import Sequence
from enum import StrEnum
from typing import Any, TypeVar, cast

T = TypeVar("T")


class ProtocolError(ValueError):
    """The message is not one of the protocol's; the text names the value."""


def to_json(value: Any) -> Any:
    """The plain JSON value (dict, list, str, number, bool, None) of a message."""
    if dataclasses.is_dataclass(value) and not isinstance(value, type):
        return {f.name: to_json(getattr(value, f.name)) for f in dataclasses.fields(value)}
    if isinstance(value, StrEnum):
        return value.value
    if isinstance(value, (list, tuple)):
        return [to_json(item) for item in cast(Sequence[Any], value)]
    if isinstance(value, dict):
        return {str(key): to_json(item) for key, item in cast(dict[Any, Any], value).items()}
    return value


def from_json(kind: type[T], value: Any, *, ignores_unknown: bool = False) -> T:
    """Build ``kind`` from a plain JSON value.

    Parameters
    ----------
    ignores_unknown : bool
        Skip keys that the message does not have, at any depth, instead of refusing them.

    Raises
    ------
    ProtocolError
        When the value is not exactly a message of that kind.
    """
    return _parse(kind, value, kind.__name__, ignores_unknown)


def dumps(value: Any) -> str:
    """Canonical JSON: sorted keys, no spaces, no NaN; equal values, equal bytes."""
    return json.dumps(to_json(value), sort_keys=True, separators=(",", ":"), allow_nan=False)


def loads(kind: type[T], text: str | bytes) -> T:
    """A message in a JSON text, without the keys that this release does not know."""
    try:
        value = json.loads(text)
        # An escape may bring in half of a surrogate pair, which no text can hold.
        json.dumps(value, ensure_ascii=False).encode()
    except (ValueError, RecursionError) as error:
        raise ProtocolError(f"{kind.__name__} is not JSON: {error}") from None
    return from_json(kind, value, ignores_unknown=True)


def _parse(kind: Any, value: Any, path: str, ignores_unknown: bool) -> Any:
    origin = typing.get_origin(kind)
    if origin in (types.UnionType, typing.Union):
        return _parse_union(kind, value, path, ignores_unknown)
    if origin is tuple:
        item_kind = typing.get_args(kind)[0]
        if not isinstance(value, list):
            raise ProtocolError(f"{path} must be a list, not {type(value).__name__}")
        items = cast(list[Any], value)
        return tuple(
            _parse(item_kind, item, f"{path}[{i}]", ignores_unknown) for i, item in enumerate(items)
        )
    if origin is dict:
        item_kind = typing.get_args(kind)[1]
        members = _object(value, path)
        return {
            key: _parse(item_kind, item, f"{path}.{key}", ignores_unknown)
            for key, item in members.items()
        }
    if dataclasses.is_dataclass(kind):
        return _parse_dataclass(kind, value, path, ignores_unknown)
    return _parse_scalar(kind, value, path)


def _parse_union(kind: Any, value: Any, path: str, ignores_unknown: bool) -> Any:
    options = typing.get_args(kind)
    if value is None and type(None) in options:
        return None
    rest = [option for option in options if option is not type(None)]
    for option in rest[:-1]:
        try:
            return _parse(option, value, path, ignores_unknown)
        except ProtocolError:
            continue
    return _parse(rest[-1], value, path, ignores_unknown)


def _parse_dataclass(kind: Any, value: Any, path: str, ignores_unknown: bool) -> Any:
    members = _object(value, path)
    hints = _hints(kind)
    fields = {f.name: f for f in dataclasses.fields(kind)}
    unknown = sorted(set(members) - set(fields))
    if unknown and not ignores_unknown:
        raise ProtocolError(f"{path} has unknown keys: {', '.join(unknown)}")
    arguments: dict[str, Any] = {}
    for name, spec in fields.items():
        if name in members:
            arguments[name] = _parse(hints[name], members[name], f"{path}.{name}", ignores_unknown)
        elif spec.default is dataclasses.MISSING and spec.default_factory is dataclasses.MISSING:
            raise ProtocolError(f"{path}.{name} is missing")
    try:
        return kind(**arguments)
    except ProtocolError:
        raise
    except ValueError as error:
        raise ProtocolError(f"{path}: {error}") from None


@functools.cache
def _hints(kind: Any) -> dict[str, Any]:
    """The resolved types of a message's fields."""
    return typing.get_type_hints(kind)


def _object(value: Any, path: str) -> dict[str, Any]:
    if not isinstance(value, dict):
        raise ProtocolError(f"{path} must be an object, not {type(value).__name__}")
    return {str(key): item for key, item in cast(dict[Any, Any], value).items()}


def _parse_scalar(kind: Any, value: Any, path: str) -> Any:
    if kind is Any:
        return value
    if isinstance(kind, type) and issubclass(kind, StrEnum):
        try:
            return kind(value)
        except ValueError:
            allowed = ", ".join(member.value for member in kind)
            raise ProtocolError(f"{path} must be one of {allowed}, not {value!r}") from None
    if kind is float and isinstance(value, (int, float)) and not isinstance(value, bool):
        try:
            number = float(value)
        except OverflowError:
            number = math.inf
        if not math.isfinite(number):
            raise ProtocolError(f"{path} must be a finite number")
        return number
    if isinstance(value, bool) is not (kind is bool) or not isinstance(value, kind):
        raise ProtocolError(f"{path} must be {kind.__name__}, not {type(value).__name__}")
    return value
