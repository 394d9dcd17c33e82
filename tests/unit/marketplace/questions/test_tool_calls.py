"""Calls in the form of each chat template: found, told from text, and forced by schema."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import pytest

from marketplace.common.errors import UserError
from marketplace.fleet.base_models import find_tokenizer_files
from marketplace.questions.tool_calls import (
    CallForm,
    CallReader,
    ToolCall,
    build_call_schema,
    find_call_form,
)
from tests.unit.workers.training.test_grammars import END, VOCABULARY, write
from tests.unit.workers.training_builders import byte_tokenizer
from workers.models import find_bundled_path
from workers.training.grammars import Grammars

TEMPLATES = Path(__file__).parents[3] / "data" / "chat_templates"
WEATHER = {
    "name": "weather",
    "description": "Looks outside.",
    "parameters": {
        "type": "object",
        "properties": {"town": {"$ref": "#/$defs/town"}, "at": {"type": "integer"}},
        "required": ["town"],
        "$defs": {"town": {"type": "string"}},
    },
}
TIME = {"name": "time"}
TOOLS = [{"type": "function", "function": one} for one in (WEATHER, TIME)]
#: As Llama 3: a call is JSON alone, and its arguments are named parameters.
LLAMA = (
    "{% if tools %}{{ tools | tojson }}{% endif %}{% for m in messages %}<|{{ m.role }}|>"
    "{% if m.tool_calls %}{% set f = m.tool_calls[0].function %}"
    '{"name": "{{ f.name }}", "parameters": {{ f.arguments | tojson }}}'
    "{% else %}{{ m.content }}{% endif %}<|end|>{% endfor %}"
    "{% if add_generation_prompt %}<|assistant|>{% endif %}"
)
#: As gpt-oss: the name does not stand in the JSON.
OTHER = (
    "{% if tools %}{{ tools | tojson }}{% endif %}{% for m in messages %}<|{{ m.role }}|>"
    "{% if m.tool_calls %}{% set f = m.tool_calls[0].function %}"
    "to={{ f.name }} {{ f.arguments | tojson }}{% else %}{{ m.content }}{% endif %}<|end|>"
    "{% endfor %}{% if add_generation_prompt %}<|assistant|>{% endif %}"
)
NO_PLACE = "{% for m in messages %}{{ m.content }}{% endfor %}"
QWEN = CallForm("<think>\n\n</think>\n\n<tool_call>\n", "arguments", is_list=False)


def write_tokenizer(folder, template):
    """The bundled model's tokenizer with another chat template."""
    bundled = find_bundled_path("bundled:finetender-tiny")
    for name in ("tokenizer.json", "tokenizer_config.json", "generation_config.json"):
        shutil.copy(bundled / name, folder)
    (folder / "chat_template.jinja").write_text(template)
    return folder


def find_form(folder, template):
    return find_call_form(find_tokenizer_files(str(write_tokenizer(folder, template))))


@pytest.mark.parametrize(
    ("template", "form"),
    [
        ((TEMPLATES / "qwen3.jinja").read_text(), QWEN),
        ((TEMPLATES / "mistral.jinja").read_text(), CallForm("[TOOL_CALLS] ", "arguments", True)),
        (LLAMA, CallForm("", "parameters", is_list=False)),
    ],
)
def test_the_form_of_calls_is_read_off_the_template(tmp_path, template, form):
    assert find_form(tmp_path, template) == form


@pytest.mark.parametrize(("template", "said"), [(OTHER, "a form that"), (NO_PLACE, "no place")])
def test_a_template_without_a_form_for_calls_is_refused(tmp_path, template, said):
    with pytest.raises(UserError, match=said) as refused:
        find_form(tmp_path, template)
    assert (refused.value.code, refused.value.param) == ("unsupported_parameter", "tools")


NAMES = frozenset({"weather", "time"})
ROME, NOW = ToolCall("weather", '{"town": "Rome"}'), ToolCall("time", "{}")
ROME_JSON = '{"name": "weather", "arguments": {"town": "Rome"}}'
NOW_JSON = '{"name": "time", "arguments": {}}'
CALLED = f"<tool_call>\n{ROME_JSON}\n</tool_call>"
MARKED, HALF = CALLED.replace("Rome", "x <tool_call> y"), CALLED.replace("Rome", "\\ud83d")


@pytest.mark.parametrize(
    ("text", "said", "calls"),
    [
        ("It rains.", "It rains.", []),
        (CALLED, "", [ROME]),
        (f"I look.\n{CALLED}\n<tool_call>\n{NOW_JSON}\n</tool_call>", "I look.", [ROME, NOW]),
        # Cut off at the end, or another function, or arguments of another kind: it is text.
        (CALLED[:-20], CALLED[:-20], []),
        (CALLED.replace("weather", "bank"), CALLED.replace("weather", "bank"), []),
        (CALLED.replace('{"town": "Rome"}', "7"), CALLED.replace('{"town": "Rome"}', "7"), []),
        ('<tool_call>{"name": ["weather"]}', '<tool_call>{"name": ["weather"]}', []),
        ("<tool_call>" + "[" * 100_000, "<tool_call>" + "[" * 100_000, []),
        # The mark is a special token and was left out.
        (f"[{ROME_JSON}, {NOW_JSON}]", "", [ROME, NOW]),
        (f"{ROME_JSON}; {NOW_JSON}", "", [ROME, NOW]),
        ("[1, 2]", "[1, 2]", []),
        # The mark in a call's arguments; a cut second call; text with the mark before a call.
        (f"{MARKED}\n{CALLED}", "", [ToolCall("weather", '{"town": "x <tool_call> y"}'), ROME]),
        (f"{CALLED}\n{CALLED[:-20]}", "", [ROME]),
        (f"<tool_call> is it. {CALLED}", "<tool_call> is it.", [ROME]),
        # What cannot be sent as it stands, or is no JSON.
        (HALF, "", [ToolCall("weather", '{"town": "\\ud83d"}')]),
        (HALF.replace('"\\ud83d"', "NaN"), HALF.replace('"\\ud83d"', "NaN"), []),
        (HALF.replace('"\\ud83d"', "1e999"), HALF.replace('"\\ud83d"', "1e999"), []),
    ],
)
def test_calls_are_told_from_text(text, said, calls):
    assert CallReader(QWEN, NAMES).read(text) == (said, calls)


def test_only_what_cannot_be_a_call_is_certain():
    reader = CallReader(QWEN, NAMES)
    found = [reader.find_certain(text) for text in ("", " ", "I", "I <", "I <tool", "I <b")]
    assert found == [0, 0, 1, 2, 2, 4]
    assert reader.find_certain(f"I look. {CALLED}") == len("I look. ")
    assert reader.find_certain(" [1") == 0
    assert CallReader(QWEN, NAMES, is_forced=True).find_certain("I") == 0


def test_a_forced_call_has_the_schema_of_its_parameters_where_it_stands():
    schema = build_call_schema(QWEN, [WEATHER, TIME])
    assert schema["anyOf"][0]["properties"]["arguments"] == {"$ref": "#/$defs/p0"}
    moved = schema["$defs"]["p0"]["properties"]["town"]
    assert moved == {"$ref": "#/$defs/p0/$defs/town"}
    one = build_call_schema(CallForm("", "parameters", is_list=True), [TIME])
    assert (one["minItems"], one["maxItems"]) == (1, 1)
    assert one["items"]["properties"]["name"] == {"const": "time"}


@pytest.mark.parametrize(("seed", "is_list"), [(0, False), (1, False), (2, True), (3, True)])
def test_random_words_make_a_call_that_its_reader_finds(seed, is_list):
    form = CallForm("[CALLS]", "arguments", is_list)
    grammars = Grammars(byte_tokenizer(), stops={END}, vocabulary=VOCABULARY)
    bounded = {
        "properties": {"town": {"$ref": "#/$defs/town"}},
        "$defs": {"town": {"type": "string", "maxLength": 3}},
        "additionalProperties": False,
    }
    weather = WEATHER | {"parameters": WEATHER["parameters"] | bounded}
    schema = build_call_schema(form, [weather, TIME])
    text, is_whole = write(grammars, schema, seed=seed)
    assert is_whole
    said, [call] = CallReader(form, NAMES, is_forced=True).read(text)
    assert said == ""
    arguments = json.loads(call.arguments)
    assert arguments == {} if call.name == "time" else len(arguments["town"]) <= 3
