"""Conversations with tools: calls, answers to them, forced calls, whole and streamed."""

from __future__ import annotations

import json

import openai
import pytest

from marketplace.common import clock
from marketplace.common.errors import UserError
from marketplace.questions.answering import hand_out_questions, record_written, sweep_questions
from marketplace.questions.asking import (
    ANSWERED_WITHIN,
    CONTEXT_EXCEEDED,
    PROMPT_CHARS_MAX,
    REFUSED_MAX,
    REFUSED_WITHIN,
    QuestionTerms,
    ask_question,
    ask_questions,
    count_prompt,
)
from marketplace.questions.models import AskedQuestion
from tests import market_builders as market
from tests.unit.marketplace.questions.test_tool_calls import (
    CALLED,
    NOW_JSON,
    QWEN,
    TEMPLATES,
    TOOLS,
    write_tokenizer,
)
from workers.protocol.generation import BAD_SCHEMA, ChatTurn, Written
from workers.protocol.reports import Fault

pytestmark = pytest.mark.django_db(transaction=True)


@pytest.fixture
def zone(tmp_path):
    """A zone whose model has Qwen's template."""
    (tmp_path / "base").mkdir()
    folder = write_tokenizer(tmp_path / "base", (TEMPLATES / "qwen3.jinja").read_text())
    return market.zone(work_costs={}, tokenizer_source=str(folder))


def say(text):
    return [Written("", text, answer_tokens=5, finish="stop")]


def test_a_model_calls_and_is_told_the_answer(ask, runtime):
    runtime.script = say(f"I look.\n{CALLED}")
    answer = ask(tools=TOOLS)
    [choice] = answer.choices
    assert (choice.finish_reason, choice.message.content) == ("tool_calls", "I look.")
    [call] = choice.message.tool_calls
    assert (call.type, call.function.name) == ("function", "weather")
    assert json.loads(call.function.arguments) == {"town": "Rome"}
    question = runtime.asked[0][0]
    assert json.loads(question.tools) == TOOLS
    assert (question.schema, question.opening) == ("", "")

    runtime.script = say("It is sunny.")
    told = {"role": "tool", "tool_call_id": call.id, "content": "sunny"}
    messages = [{"role": "user", "content": "Rome?"}, choice.message, told]
    answer = ask(tools=TOOLS, messages=messages)
    assert answer.choices[0].message.content == "It is sunny."
    assert answer.choices[0].message.tool_calls is None
    _, called, tool = runtime.asked[1][0].turns
    assert json.loads(called.calls)[0]["function"]["arguments"] == {"town": "Rome"}
    assert (tool.role, tool.content, tool.call_id) == ("tool", "sunny", call.id)
    # The market counts what the node reads: the tools and the call stand in the prompt.
    [first, second] = AskedQuestion.objects.order_by("pk")
    assert second.prompt_tokens > first.prompt_tokens > 100


@pytest.mark.parametrize(
    ("choice", "names"),
    [
        ("required", ["weather", "time"]),
        ({"type": "function", "function": {"name": "time"}}, ["time"]),
    ],
)
def test_a_call_is_forced_by_its_schema_after_the_forms_opening(ask, runtime, choice, names):
    runtime.script = say(NOW_JSON)
    answer = ask(tools=TOOLS, tool_choice=choice)
    [call] = answer.choices[0].message.tool_calls
    assert (call.function.name, answer.choices[0].message.content) == ("time", None)
    question = runtime.asked[0][0]
    assert question.opening == QWEN.opening
    schema = json.loads(question.schema)
    calls = schema.get("anyOf", [schema])
    assert [one["properties"]["name"]["const"] for one in calls] == names


def test_a_node_that_reads_no_schemas_and_tools_is_given_none(owner, zone, node):
    now = clock.now()
    said = (ChatTurn("user", "Rome?"), ChatTurn("tool", "sunny", call_id="1"))
    terms = [
        QuestionTerms(prompt="a", schema="{}"),
        QuestionTerms(prompt="a", tools=json.dumps(TOOLS)),
        QuestionTerms(turns=said),
        QuestionTerms(prompt="a"),
    ]
    asked = ask_questions(
        organisation=owner, asked_by=None, zone=zone, artifact=None, terms=terms, now=now
    )
    old, new = (
        hand_out_questions(node=node, room=8, takes_forms=takes, now=now) for takes in (False, True)
    )
    assert [one.token for one in old] == [asked[3].token]
    assert {one.token for one in new} == {one.token for one in asked[:3]}


def test_a_question_that_no_node_could_read_says_so(owner, zone, node):
    now = clock.now()
    terms = [QuestionTerms(prompt="a", schema="{}"), QuestionTerms(prompt="a")]
    ask_questions(organisation=owner, asked_by=None, zone=zone, artifact=None, terms=terms, now=now)
    assert sweep_questions(now=now + ANSWERED_WITHIN) == 2
    reasons = {one.terms["schema"]: one.reason for one in AskedQuestion.objects.all()}
    assert reasons == {
        "{}": "No node that follows schemas and tools was free in time. Ask again.",
        "": "No node answered in time. Ask again.",
    }


def test_schemas_that_nodes_refuse_again_and_again_are_taken_no_more(owner, zone, node):
    now = clock.now()
    asked = {"organisation": owner, "asked_by": None, "zone": zone, "artifact": None}
    schema, plain = QuestionTerms(prompt="a", schema="{}"), QuestionTerms(prompt="a")
    for _ in range(REFUSED_MAX):
        question = ask_question(terms=schema, now=now, **asked)
        hand_out_questions(node=node, room=8, takes_forms=True, now=now)
        refused = Written(question.token, finish=BAD_SCHEMA, reason="No.", fault=Fault.USER)
        record_written(node=node, items=[refused], now=now)
    with pytest.raises(UserError, match="16 of your schemas") as error:
        ask_question(terms=schema, now=now, **asked)
    assert (error.value.code, error.value.status) == ("too_many_refused_schemas", 429)
    ask_question(terms=plain, now=now, **asked)
    ask_question(terms=schema, now=now + REFUSED_WITHIN, **asked)


@pytest.mark.parametrize("member", ["content", "calls", "call_id", "name"])
def test_all_that_a_turn_holds_counts_as_prompt(zone, member):
    values = {"role": "tool", "content": "x"} | {member: "x" * (PROMPT_CHARS_MAX + 1)}
    with pytest.raises(UserError, match="has 200,00") as refused:
        count_prompt(zone, QuestionTerms(turns=(ChatTurn(**values),)))
    assert refused.value.code == CONTEXT_EXCEEDED


def test_calls_are_streamed_whole_after_the_text_before_them(ask, runtime):
    text = f"I look.\n{CALLED}"
    pieces = [text[n : n + 7] for n in range(0, len(text), 7)]
    runtime.script = [Written("", piece, answer_tokens=n) for n, piece in enumerate(pieces)]
    runtime.script.append(Written("", "", answer_tokens=len(pieces), finish="stop"))
    deltas = [chunk.choices[0] for chunk in ask(tools=TOOLS, stream=True)]
    assert "".join(one.delta.content or "" for one in deltas).strip() == "I look."
    [calls] = [one.delta.tool_calls for one in deltas if one.delta.tool_calls]
    assert (calls[0].index, calls[0].function.name) == (0, "weather")
    assert deltas[-1].finish_reason == "tool_calls"


def test_without_parallel_calls_the_first_is_taken(ask, runtime):
    runtime.script = say(f"{CALLED}<tool_call>{NOW_JSON}</tool_call>")
    answer = ask(tools=TOOLS, parallel_tool_calls=False)
    assert [call.function.name for call in answer.choices[0].message.tool_calls] == ["weather"]


def test_what_cannot_be_done_with_tools_is_refused(client, zone, node):
    deep = {"name": "f", "parameters": {"$ref": "http://x/y"}}
    wrong = [
        ({"tools": [{"type": "function", "function": {"name": "a b"}}]}, "tools"),
        ({"tools": [TOOLS[0], TOOLS[0]]}, "tools"),
        ({"tools": [{"type": "function", "function": deep}]}, "tools"),
        ({"tools": TOOLS, "tool_choice": "some"}, "tool_choice"),
        (
            {"tools": TOOLS, "tool_choice": {"type": "function", "function": {"name": "bank"}}},
            "tool_choice",
        ),
        ({"tool_choice": "required"}, "tool_choice"),
        ({"tools": TOOLS, "response_format": {"type": "json_object"}}, "response_format"),
        ({"messages": [{"role": "user", "content": None}]}, "messages.0.content"),
        (
            {"messages": [{"role": "assistant", "tool_calls": [{"function": {"name": "f"}}] * 33}]},
            "messages.0.tool_calls",
        ),
    ]
    for changed, param in wrong:
        asked = {"model": zone.name, "messages": [{"role": "user", "content": "Hi"}]} | changed
        with pytest.raises(openai.BadRequestError) as refused:
            client.chat.completions.create(**asked)
        assert refused.value.param == param, refused.value.body
    assert not AskedQuestion.objects.exists()
