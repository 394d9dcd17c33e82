"""What is refused of a schema before a grammar is made of it."""

from __future__ import annotations

import pytest

from workers.protocol.answer_schema import (
    COUNT_MAX,
    PATTERN_CHARS_MAX,
    REFERENCES_MAX,
    SCHEMA_CHARS_MAX,
    SCHEMA_DEPTH_MAX,
    describe_schema_fault,
)


def nested(levels):
    schema = {}
    for _ in range(levels - 1):
        schema = {"items": schema}
    return schema


def chain(length, *, levels=1):
    """A schema with as many definitions, each of which refers to the next some levels below."""

    def build(number):
        inner = {"$ref": f"#/$defs/k{number + 1}"} if number < length else {"type": "string"}
        for _ in range(levels):
            inner = {"items": inner}
        return inner

    return {"$ref": "#/$defs/k1", "$defs": {f"k{n}": build(n) for n in range(1, length + 1)}}


@pytest.mark.parametrize(
    "schema",
    [
        {},
        nested(SCHEMA_DEPTH_MAX),
        {"pattern": "a" * PATTERN_CHARS_MAX, "maxItems": COUNT_MAX},
        {"$ref": "#/$defs/a", "$defs": {"a": {"type": "string"}}},
        {"title": "x" * (SCHEMA_CHARS_MAX - 13)},
        chain(REFERENCES_MAX),
    ],
)
def test_what_is_in_bounds_may_be_compiled(schema):
    assert describe_schema_fault(schema) is None


@pytest.mark.parametrize(
    ("schema", "said"),
    [
        ([], "JSON object"),
        ("{}", "JSON object"),
        (nested(SCHEMA_DEPTH_MAX + 1), "flatter"),
        (nested(100_000), "flatter"),
        ({"title": "x" * (SCHEMA_CHARS_MAX - 12)}, "20,001 characters"),
        ({"items": {"pattern": "a" * (PATTERN_CHARS_MAX + 1)}}, "A pattern has 501"),
        ({"maxLength": COUNT_MAX + 1}, "maxLength is 10001"),
        ({"items": {"$ref": "https://example.org/s.json"}}, "Put its definition"),
        (chain(REFERENCES_MAX + 1), "refers to 129 parts"),
        ({"x-guidance": {"lenient": True}}, "x-guidance"),
    ],
)
def test_what_is_out_of_bounds_is_refused_with_a_sentence(schema, said):
    assert said in (describe_schema_fault(schema) or "")
