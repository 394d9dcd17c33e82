"""``client.responses`` in its plain form, whole and streamed."""

from __future__ import annotations

import json

import openai
import pydantic
import pytest

from marketplace.questions.models import AskedQuestion
from tests import market_builders as market
from tests.unit.marketplace.api.openai.test_tools import say
from tests.unit.marketplace.questions.test_tool_calls import (
    CALLED,
    NOW_JSON,
    TEMPLATES,
    TIME,
    WEATHER,
    write_tokenizer,
)
from workers.protocol.generation import ChatTurn, Written

pytestmark = pytest.mark.django_db(transaction=True)
TOOLS = [{"type": "function", **one} for one in (WEATHER, TIME)]


@pytest.fixture
def zone(tmp_path):
    (tmp_path / "base").mkdir()
    folder = write_tokenizer(tmp_path / "base", (TEMPLATES / "qwen3.jinja").read_text())
    return market.zone(work_costs={}, tokenizer_source=str(folder))


@pytest.fixture
def respond(client, zone, runtime):
    def create(**asked):
        return client.responses.create(model=zone.name, **({"input": "hello"} | asked))

    return create


def test_a_text_is_answered(respond, runtime):
    answer = respond(instructions="Be brief.", max_output_tokens=9, temperature=0)
    assert (answer.output_text, answer.status) == ("Hi there", "completed")
    usage = answer.usage
    assert usage.output_tokens == 3
    assert usage.total_tokens == usage.input_tokens + 3
    question = runtime.asked[0][0]
    assert question.turns == (ChatTurn("system", "Be brief."), ChatTurn("user", "hello"))
    assert (question.max_tokens, question.temperature) == (9, 0.0)


def test_an_answer_that_was_cut_is_incomplete(respond, runtime):
    runtime.script = [Written("", "Hi", answer_tokens=1, finish="length")]
    answer = respond()
    assert (answer.status, answer.incomplete_details.reason) == ("incomplete", "max_output_tokens")


class Parcel(pydantic.BaseModel):
    weight: int


def test_a_form_is_followed_and_parsed(client, zone, runtime):
    runtime.script = say('{"weight": 3}')
    answer = client.responses.parse(model=zone.name, input="hello", text_format=Parcel)
    assert answer.output_parsed == Parcel(weight=3)
    assert json.loads(runtime.asked[0][0].schema)["required"] == ["weight"]


def test_events_build_the_response_that_a_whole_answer_is(client, zone, runtime):
    runtime.script = say(f"I look.\n{CALLED}")
    with client.responses.stream(model=zone.name, input="hello", tools=TOOLS) as stream:
        events = list(stream)
        answer = stream.get_final_response()
    assert answer.output_text.strip() == "I look."
    assert [item.type for item in answer.output] == ["message", "function_call"]
    assert [event.sequence_number for event in events] == list(range(len(events)))
    kinds = [event.type for event in events]
    assert (kinds[0], kinds[-1]) == ("response.created", "response.completed")
    assert kinds.count("response.output_item.added") == 2
    assert kinds.count("response.output_item.done") == 2


def test_a_call_and_its_output_are_given_back(respond, runtime):
    runtime.script = say(NOW_JSON)
    answer = respond(tools=TOOLS, tool_choice={"type": "function", "name": "time"})
    [call] = answer.output
    assert (call.type, call.name, call.arguments) == ("function_call", "time", "{}")
    output = {"type": "function_call_output", "call_id": call.call_id, "output": "noon"}
    question = {"role": "user", "content": [{"type": "input_text", "text": "Time?"}]}
    runtime.script = say("It is noon.")
    answer = respond(tools=TOOLS, input=[question, *answer.output, output])
    assert answer.output_text == "It is noon."
    user, called, tool = runtime.asked[1][0].turns
    assert user == ChatTurn("user", "Time?")
    assert json.loads(called.calls)[0]["id"] == call.call_id
    assert (tool.role, tool.content, tool.call_id) == ("tool", "noon", call.call_id)


def test_what_is_not_done_is_refused(client, zone, node):
    wrong = [
        {"previous_response_id": "resp_1"},
        {"background": True},
        {"input": [{"type": "item_reference", "id": "msg_1"}]},
        {"input": []},
        {"tools": [{"type": "web_search"}]},
        {"text": {"format": {"type": "grammar"}}},
    ]
    for changed in wrong:
        with pytest.raises(openai.BadRequestError):
            client.responses.create(**({"model": zone.name, "input": "hello"} | changed))
    assert not AskedQuestion.objects.exists()
