"""Messages as an earlier release sent and read them: recorded once for each protocol version.

``python -m tests.recorded_messages`` records the present version, where it is not recorded yet.
"""

from __future__ import annotations

import dataclasses
import json
import types
import typing
from enum import StrEnum
from pathlib import Path
from typing import Any

from workers.protocol import (
    checks,
    fault_checks,
    generation,
    job_spec,
    joining,
    messages,
    node_facts,
    plan_queue,
    probes,
    release_signing,
    reports,
    turns,
)
from workers.protocol.messages import PROTOCOL_VERSION
from workers.protocol.model_shape import BasePart
from workers.protocol.wire import from_json

FOLDER = Path(__file__).parent / "data" / "protocol"
MODULES = (
    messages,
    job_spec,
    node_facts,
    plan_queue,
    probes,
    reports,
    joining,
    checks,
    fault_checks,
    generation,
    turns,
    release_signing,
)
_PLAIN: dict[Any, Any] = {str: "text", int: 3, float: 1.5, bool: True, Any: {"any": 1}}
_OLD_TYPES: dict[str, Any] = {"str": str, "int": int, "float": float, "bool": bool, "any": Any}


def list_messages() -> dict[str, Any]:
    """Every message of the contract, by name."""
    found = {
        kind.__name__: kind
        for module in MODULES
        for kind in vars(module).values()
        if dataclasses.is_dataclass(kind) and kind.__module__ == module.__name__
    }
    # The others of its module are no message's.
    return found | {BasePart.__name__: BasePart}


def record() -> dict[str, Any]:
    """What is stored of a version: each message's fields, and a whole one of each."""
    kinds = list_messages()
    return {
        "fields": {name: describe_fields(kind) for name, kind in kinds.items()},
        "messages": {name: fill(kind) for name, kind in kinds.items()},
    }


def describe_fields(kind: Any) -> dict[str, Any]:
    hints = typing.get_type_hints(kind)
    return {
        field.name: {
            "type": describe_type(hints[field.name]),
            "required": field.default is dataclasses.MISSING
            and field.default_factory is dataclasses.MISSING,
        }
        for field in dataclasses.fields(kind)
    }


def describe_type(kind: Any) -> Any:
    """As JSON: a name, ``{"list": ...}``, ``{"map": ...}``, ``{"null": ...}`` or one of words."""
    origin, arguments = typing.get_origin(kind), typing.get_args(kind)
    if origin in (types.UnionType, typing.Union):
        (inner,) = [one for one in arguments if one is not type(None)]
        return {"null": describe_type(inner)}
    if origin is tuple:
        return {"list": describe_type(arguments[0])}
    if origin is dict:
        return {"map": describe_type(arguments[1])}
    if isinstance(kind, type) and issubclass(kind, StrEnum):
        return {"words": [member.value for member in kind]}
    return "any" if kind is Any else kind.__name__


def fill(kind: Any) -> Any:
    """A JSON value of a type with something in every field."""
    origin, arguments = typing.get_origin(kind), typing.get_args(kind)
    if origin in (types.UnionType, typing.Union):
        return fill(next(one for one in arguments if one is not type(None)))
    if origin is tuple:
        return [fill(arguments[0])]
    if origin is dict:
        return {"key": fill(arguments[1])}
    if dataclasses.is_dataclass(kind):
        hints = typing.get_type_hints(kind)
        return {field.name: fill(hints[field.name]) for field in dataclasses.fields(kind)}
    if isinstance(kind, type) and issubclass(kind, StrEnum):
        return next(iter(kind)).value
    return _PLAIN[kind]


def build_old_reader(recorded: dict[str, Any]) -> dict[str, Any]:
    """The classes that an earlier release read messages with, from what was recorded of them."""
    built: dict[str, Any] = {}

    def resolve(described: Any) -> Any:
        if isinstance(described, str):
            return _OLD_TYPES.get(described) or build(described)
        ((shape, inner),) = described.items()
        if shape == "words":
            return StrEnum("Words", {word.upper(): word for word in inner})
        kind = resolve(inner)
        return {"null": kind | None, "list": tuple[kind, ...], "map": dict[str, kind]}[shape]

    def build(name: str) -> Any:
        if name not in built:
            fields = sorted(
                recorded["fields"][name].items(), key=lambda pair: not pair[1]["required"]
            )
            built[name] = dataclasses.make_dataclass(
                name,
                [
                    (field, resolve(said["type"]))
                    if said["required"]
                    else (field, resolve(said["type"]), dataclasses.field(default=None))
                    for field, said in fields
                ],
            )
        return built[name]

    for name in recorded["fields"]:
        build(name)
    return built


def read_as_now(name: str, value: Any) -> Any:
    return from_json(list_messages()[name], value, ignores_unknown=True)


def main() -> None:
    path = FOLDER / f"v{PROTOCOL_VERSION}.json"
    if path.exists():
        raise SystemExit(f"{path} is recorded; raise PROTOCOL_VERSION for messages that change.")
    FOLDER.mkdir(exist_ok=True)
    path.write_text(json.dumps(record(), indent=1, sort_keys=True) + "\n")


if __name__ == "__main__":
    main()
