"""JSON schemas that answers follow: what is refused before any grammar is made of one.

A schema comes from outside and is compiled on a provider's machine. The library that does so bounds
its own work; these bounds keep its recursion and its input small.
"""

from __future__ import annotations

import json
from typing import Any, cast

#: Most characters of a schema as JSON, of one of its patterns, and levels below each other.
SCHEMA_CHARS_MAX, PATTERN_CHARS_MAX, SCHEMA_DEPTH_MAX = 20_000, 500, 32
#: Largest bound on a count, such as ``maxItems``.
COUNT_MAX = 10_000
#: Places that a schema refers to: the library's recursion goes from one to the next.
REFERENCES_MAX = 128
#: What the library reads orders for itself from.
_LIBRARYS_OWN = "x-guidance"
_COUNTS = frozenset(
    {
        *("minItems", "maxItems", "minLength", "maxLength"),
        *("minProperties", "maxProperties"),
    }
)


def describe_schema_fault(schema: Any) -> str | None:
    """What is wrong with a schema, as a sentence for its owner; ``None``: it may be compiled."""
    if not isinstance(schema, dict):
        return "A schema is a JSON object."
    if _LIBRARYS_OWN in schema:
        return f"{_LIBRARYS_OWN!r} is not read here. Leave it out."
    # Bounded here before anything recurses into it.
    level: list[Any] = [schema]
    references: set[str] = set()
    for _ in range(SCHEMA_DEPTH_MAX):
        if fault := next(filter(None, map(_describe_fault, level)), None):
            return fault
        references.update(filter(None, map(_find_reference, level)))
        level = [inner for value in level for inner in _list_inner(value)]
    if level:
        return f"The schema has more than {SCHEMA_DEPTH_MAX} levels. Make it flatter."
    if len(references) > REFERENCES_MAX:
        return f"The schema refers to {len(references)} parts; at most {REFERENCES_MAX} are read."
    characters = len(json.dumps(schema))
    if characters > SCHEMA_CHARS_MAX:
        return f"The schema has {characters:,} characters; at most {SCHEMA_CHARS_MAX:,} are read."
    return None


def _list_inner(value: Any) -> list[Any]:
    if isinstance(value, dict):
        return list(cast(dict[str, Any], value).values())
    return cast(list[Any], value) if isinstance(value, list) else []


def _find_reference(value: Any) -> str | None:
    reference = cast(dict[str, Any], value).get("$ref") if isinstance(value, dict) else None
    return reference if isinstance(reference, str) else None


def _describe_fault(value: Any) -> str | None:
    """What is wrong with one part of a schema, without what is in it."""
    if not isinstance(value, dict):
        return None
    part = cast(dict[str, Any], value)
    reference, pattern = _find_reference(part), part.get("pattern")
    if reference is not None and not reference.startswith("#"):
        return f"$ref {reference[:60]!r} is elsewhere. Put its definition into $defs."
    if isinstance(pattern, str) and len(pattern) > PATTERN_CHARS_MAX:
        return f"A pattern has {len(pattern)} characters; at most {PATTERN_CHARS_MAX} are read."
    for name in sorted(_COUNTS & part.keys()):
        count = part[name]
        if isinstance(count, (int, float)) and count > COUNT_MAX:
            return f"{name} is {count}; at most {COUNT_MAX:,} can be followed."
    return None
