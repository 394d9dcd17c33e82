"""Answers that follow a schema, whatever a model would write; and schemas made to do harm."""

from __future__ import annotations

import contextlib
import json
import threading
import time
from concurrent.futures import ThreadPoolExecutor

import jsonschema
import pytest
import torch

from tests.unit.workers.protocol.test_answer_schema import chain
from tests.unit.workers.training_builders import byte_tokenizer
from workers.protocol.generation import Question
from workers.training.faults import SchemaFault
from workers.training.grammar_check import LIMITS, find_grammar_fault
from workers.training.grammars import Grammars
from workers.training.sampling import choose_token

END, VOCABULARY = 2, 261
QUESTION = Question("q", 0.0, base_model=None, temperature=1.0)  # type: ignore[arg-type]
PERSON = {
    "type": "object",
    "properties": {
        "surname": {"type": "string", "maxLength": 5},
        "age": {"type": "integer", "minimum": 0, "maximum": 120},
        "tags": {"type": "array", "items": {"enum": ["a", "b"]}, "maxItems": 2},
        "at": {"anyOf": [{"type": "null"}, {"$ref": "#/$defs/place"}]},
    },
    "required": ["surname", "age", "tags", "at"],
    "additionalProperties": False,
    "$defs": {
        "place": {
            "type": "object",
            "properties": {"x": {"type": "boolean"}},
            "required": ["x"],
            "additionalProperties": False,
        }
    },
}


@pytest.fixture(scope="module")
def grammars():
    """Of a model with two places more than its tokenizer has tokens."""
    return Grammars(byte_tokenizer(), stops={END}, vocabulary=VOCABULARY)


def write(grammars, schema, *, seed, most=600):
    """What a model of random words writes; whether it came to its end."""
    grammar = grammars.build(json.dumps(schema))
    random = torch.Generator().manual_seed(seed)
    written = []
    for _ in range(most):
        logits_V = torch.randn(VOCABULARY, generator=random)
        token = choose_token(
            logits_V, QUESTION, random, written=written, forbidden_V=grammar.find_forbidden()
        )
        if token == END:
            return byte_tokenizer().decode(written), True
        written.append(token)
        grammar.write(token)
        if grammar.is_whole:
            return byte_tokenizer().decode(written), True
    return byte_tokenizer().decode(written), False


@pytest.mark.parametrize("seed", range(12))
def test_random_words_follow_their_schema(grammars, seed):
    text, is_whole = write(grammars, PERSON, seed=seed)
    assert is_whole
    value = json.loads(text)
    jsonschema.validate(value, PERSON)
    # In the schema's order, which is not that of the alphabet.
    assert list(value) == ["surname", "age", "tags", "at"]


def test_an_answer_may_end_where_it_is_whole_and_nowhere_else(grammars):
    grammar = grammars.build('{"type": "integer"}')
    assert grammar.find_forbidden()[END]
    grammar.write(byte_tokenizer().convert_tokens_to_ids("7"))
    forbidden_V = grammar.find_forbidden()
    assert not forbidden_V[END]
    assert not grammar.is_whole
    # Neither other special tokens nor those that the tokenizer does not have.
    assert forbidden_V[[0, 1, 259, 260]].all()


HOSTILE = {
    "none": {"type": "thing"},
    "no such part": {"$ref": "#/$defs/missing"},
    "itself": {"$ref": "#"},
    "its own part": {"$ref": "#/$defs/a", "$defs": {"a": {"allOf": [{"$ref": "#/$defs/a"}]}}},
    "nothing": False,
    "a product": {
        "allOf": [
            {"anyOf": [{"properties": {f"p{n}_{m}": {"const": m}}} for m in range(8)]}
            for n in range(12)
        ]
    },
    "an impossible pattern": {"type": "string", "pattern": "^(?=b)a$"},
}


@pytest.mark.parametrize("kind", HOSTILE)
def test_a_hostile_schema_is_refused_soon_or_bounded(grammars, kind):
    began = time.thread_time()
    with pytest.raises(SchemaFault):
        write(grammars, HOSTILE[kind], seed=0, most=60)
    # Of this process, which the jobs share.
    assert time.thread_time() - began < 2.0


@pytest.mark.parametrize(
    "schema",
    [
        {"type": "array", "items": {"type": "array", "items": {"type": "array"}}, "minItems": 9000},
        {"type": "string", "maxLength": 10_000, "pattern": "^(a|b)*$"},
        {"type": "string", "pattern": "(a|aa)*b.{400}c" * 20},
        {"type": "string", "pattern": "((a{500}){500}){500}"},
        {"type": "object", "properties": {f"p{n}": {"type": "string"} for n in range(600)}},
    ],
)
def test_the_cost_of_a_token_is_bounded(grammars, schema):
    began = time.thread_time()
    with contextlib.suppress(SchemaFault):
        write(grammars, schema, seed=0, most=100)
    assert (time.thread_time() - began) / 100 < 0.05


def test_no_schema_at_all_is_refused(grammars):
    for text in ("", "{", "[" * 100_000, '"\\ud800"', '{"const": "\\ud800"}'):
        with pytest.raises(SchemaFault):
            grammars.build(text)


@pytest.mark.parametrize(
    ("schema", "words"),
    [
        ({"$ref": "#"}, "no text fits it."),
        ({"anyOf": [{"$ref": "#"}]}, "no text fits it."),
        ({"type": "nonsense"}, "Invalid type: nonsense"),
    ],
)
def test_the_reason_is_for_a_reader_and_has_no_state_of_the_library(grammars, schema, words):
    with pytest.raises(SchemaFault) as refused:
        grammars.build(json.dumps(schema))
    assert str(refused.value) == f"The schema cannot be followed: {words}"


def test_a_schema_that_takes_a_deep_stack_is_refused_by_the_check(grammars):
    # Within the bounds on levels and references, and 8 MB of stack would do.
    with pytest.raises(SchemaFault, match="takes too much to compile"):
        grammars.build(json.dumps(chain(100, levels=8)))


def test_a_schema_is_compiled_on_a_stack_of_its_own(grammars):
    usual = threading.stack_size(512 << 10)
    try:
        with ThreadPoolExecutor(1) as pool:
            # On the thread's own stack this ended the process.
            grammar = pool.submit(grammars.build, json.dumps(chain(64))).result()
    finally:
        threading.stack_size(usual)
    assert not grammar.find_forbidden().all()
    assert threading.stack_size() == usual


@pytest.mark.parametrize("count", [250, 700])
def test_a_plain_object_of_many_members_is_followed(grammars, count):
    schema = {"type": "object", "properties": {f"p{n}": {"type": "string"} for n in range(count)}}
    grammar = grammars.build(json.dumps(schema))
    for letter in '{"p1':
        grammar.write(byte_tokenizer().convert_tokens_to_ids(letter))
    assert not grammar.find_forbidden().all()


def test_a_schema_whose_first_words_cost_too_much_is_refused_before_any(monkeypatch):
    monkeypatch.setitem(LIMITS, "max_items_in_row", 1_000)
    schema = {"type": "object", "properties": {f"p{n}": {"type": "string"} for n in range(250)}}
    assert "Current row has 1007 items" in find_grammar_fault(json.dumps(schema))
    assert find_grammar_fault(json.dumps(PERSON)) == ""
