"""Asking models with OpenAI's own client: a node takes the question and sends the words."""

from __future__ import annotations

import hashlib
import json

import openai
import pydantic
import pytest

from marketplace.common import clock
from marketplace.jobs.models import Artifact
from marketplace.jobs.services import dispatch_slots
from marketplace.payments.holds import HoldRequest, place_holds
from marketplace.payments.models import AccountKind, LedgerAccount
from marketplace.payments.selectors import get_wallet
from marketplace.questions.answering import record_written, sweep_questions
from marketplace.questions.asking import ANSWERED_WITHIN, QuestionTerms, ask_question
from marketplace.questions.models import AskedQuestion, QuestionStatus
from marketplace.questions.prices import find_rate
from tests import builders
from tests import job_builders as build
from tests import market_builders as market
from tests.waiting import until
from workers.protocol.generation import (
    LikelyToken,
    TokenBias,
    Written,
    WrittenToken,
)
from workers.protocol.reports import Fault, SliceEnd

pytestmark = pytest.mark.django_db(transaction=True)

MESSAGES = [{"role": "user", "content": "hello"}]


@pytest.fixture
def zone():
    return market.zone(work_costs={})


def test_a_base_model_answers_and_the_nodes_provider_is_paid(ask, runtime, owner, node, zone):
    before = get_wallet(organisation=owner).available_micros
    answer = ask(temperature=0, stop=["\n"], seed=3, top_p=0.5)
    [choice] = answer.choices
    assert (choice.message.content, choice.finish_reason) == ("Hi there", "stop")
    assert choice.message.role == "assistant"
    [(question, adapter)] = runtime.asked
    assert adapter is None
    assert question.adapter is None
    assert [(turn.role, turn.content) for turn in question.turns] == [("user", "hello")]
    settings = (question.max_tokens, question.temperature, question.top_p, question.seed)
    assert settings == (10, 0.0, 0.5, 3)
    assert question.stop == ("\n",)
    usage = answer.usage
    assert usage.completion_tokens == 3
    assert usage.total_tokens == usage.prompt_tokens + 3
    price = -(-usage.total_tokens * find_rate(zone) // 1_000_000)
    assert price > 1000
    assert usage.cost == f"{price / 1e6:.6f}"
    assert get_wallet(organisation=owner).available_micros == before - price
    assert get_wallet(organisation=owner).held_micros == 0
    earned = LedgerAccount.objects.get(
        organisation=node.provider.organisation, kind=AccountKind.EARNINGS_PENDING
    )
    assert earned.balance_micros == price


def test_parameters_that_change_nothing_are_taken(ask):
    tool = {"type": "function", "function": {"name": "f"}}
    answer = ask(
        tools=[tool],
        tool_choice="none",
        response_format={"type": "text"},
        frequency_penalty=0,
        presence_penalty=0.0,
        logit_bias={},
        extra_body={"repetition_penalty": 1.0},
    )
    assert answer.choices[0].message.content == "Hi there"


def test_words_are_streamed_as_they_are_written(ask):
    chunks = list(ask(stream=True, stream_options={"include_usage": True}))
    assert chunks[0].choices[0].delta.role == "assistant"
    text = "".join(chunk.choices[0].delta.content or "" for chunk in chunks if chunk.choices)
    assert text == "Hi there"
    finishes = [chunk.choices[0].finish_reason for chunk in chunks if chunk.choices]
    assert finishes[-1] == "stop"
    assert set(finishes[:-1]) == {None}
    assert chunks[-1].usage.completion_tokens == 3
    assert len({chunk.id for chunk in chunks}) == 1


def test_an_adapter_answers_under_its_own_name(client, ask, runtime, owner, zone, node):
    job = build.job(zone, (0, node), organisation=owner)
    finish(job, node)
    [name] = [model.id for model in client.models.list() if model.id.startswith("ft:")]
    assert ask(model=name).model == name
    [(question, adapter)] = runtime.asked
    assert adapter == b"zip"
    assert question.adapter.spec.rank == 8
    with pytest.raises(openai.NotFoundError):
        ask(model=name[:-1] + "0")


def test_a_checkpoint_answers_by_the_name_that_the_list_gives(
    client, ask, runtime, owner, zone, node
):
    job = build.job(zone, (0, node), organisation=owner)
    finish(job, node)
    checkpoint = market.checkpoint(job, step=4)
    [listed] = client.fine_tuning.jobs.checkpoints.list(job.pk).data
    name = listed.fine_tuned_model_checkpoint
    assert name.endswith(":ckpt-step-4")
    assert client.models.retrieve(name).id == name
    assert ask(model=name).model == name
    [(question, adapter)] = runtime.asked
    artifact = Artifact.everything.get(checkpoint=checkpoint)
    assert question.adapter.name == artifact.pk
    assert hashlib.sha256(adapter).hexdigest() == artifact.sha256
    with pytest.raises(openai.NotFoundError):
        ask(model=f"{name}0")
    with pytest.raises(openai.BadRequestError, match="goes with its job"):
        client.models.delete(name)


def finish(job, node):
    """The job on its node, up to its end."""
    starts_at = market.slot_at(job.zone, job.cells[0][0])
    type(node).objects.filter(pk=node.pk).update(last_heartbeat_at=starts_at)
    dispatch_slots(now=starts_at)
    market.end_slice(job, status=SliceEnd.FINISHED, now=starts_at)
    sha256 = hashlib.sha256(b"zip").hexdigest()
    Artifact.objects.filter(job=job).update(sha256=sha256)
    type(node).objects.filter(pk=node.pk).update(last_heartbeat_at=clock.now())


def test_probabilities_of_tokens_are_given(ask, runtime):
    token = WrittenToken("Hi", -0.5, (LikelyToken("Hi", -0.5), LikelyToken("Ho", -1.5)))
    runtime.script = [Written("", "Hi", tokens=(token,), answer_tokens=1, finish="length")]
    answer = ask(logprobs=True, top_logprobs=2)
    assert runtime.asked[0][0].top_tokens == 2
    [content] = answer.choices[0].logprobs.content
    assert (content.token, content.logprob) == ("Hi", -0.5)
    assert [(one.token, one.logprob) for one in content.top_logprobs] == [
        ("Hi", -0.5),
        ("Ho", -1.5),
    ]
    assert answer.choices[0].finish_reason == "length"


def test_words_that_cannot_be_stored_are_left_out(ask, runtime):
    odd = WrittenToken("a\0", -0.5, (LikelyToken("\0b", -1.5),))
    runtime.script = [Written("", "a\0b", tokens=(odd,), answer_tokens=2, finish="stop")]
    answer = ask(logprobs=True)
    assert answer.choices[0].message.content == "ab"
    [content] = answer.choices[0].logprobs.content
    assert (content.token, content.top_logprobs[0].token) == ("a", "b")


def test_a_prompt_is_continued(client, zone, runtime):
    answer = client.completions.create(model=zone.name, prompt="Say", max_tokens=5)
    assert answer.choices[0].text == "Hi there"
    assert runtime.asked[0][0].prompt == "Say"
    parts = client.completions.create(model=zone.name, prompt="Say", max_tokens=5, stream=True)
    assert "".join(part.choices[0].text for part in parts) == "Hi there"


def test_what_changes_the_choice_of_tokens_comes_to_the_node(ask, runtime):
    ask(
        frequency_penalty=1.5,
        presence_penalty=-0.5,
        logit_bias={"7": -100},
        extra_body={"top_k": 20},
    )
    [(question, _)] = runtime.asked
    assert (question.frequency_penalty, question.presence_penalty) == (1.5, -0.5)
    assert (question.logit_bias, question.top_k) == ((TokenBias(7, -100.0),), 20)


def test_several_answers_have_seeds_of_their_own_and_each_is_paid(ask, runtime, owner):
    before = get_wallet(organisation=owner).available_micros
    answer = ask(n=3, seed=2**63 - 1)
    assert [(one.index, one.message.content) for one in answer.choices] == [
        (0, "Hi there"),
        (1, "Hi there"),
        (2, "Hi there"),
    ]
    seeds = {question.seed for question, _ in runtime.asked}
    assert seeds == {2**63 - 1, -(2**63), -(2**63) + 1}
    prices = [
        -(-(one.prompt_tokens + one.answer_tokens) * one.rate_micros // 1_000_000)
        for one in AskedQuestion.objects.all()
    ]
    assert len(prices) == 3
    assert before - get_wallet(organisation=owner).available_micros == sum(prices)
    assert answer.usage.completion_tokens == 9
    assert answer.usage.cost == f"{sum(prices) / 1e6:.6f}"


def test_of_several_answers_all_are_asked_or_none_is(connect, zone, node):
    rate = find_rate(zone)
    one = -(-1010 * rate // 1_000_000)
    poor = connect(builders.organisation(usd=f"{one * 1.5 / 1e6:.6f}"))
    with pytest.raises(openai.APIStatusError) as refused:
        poor.chat.completions.create(model=zone.name, messages=MESSAGES, max_tokens=1000, n=2)
    assert (refused.value.status_code, refused.value.code) == (402, "insufficient_funds")
    assert not AskedQuestion.objects.exists()


def test_a_prompt_that_is_too_long_has_the_code_that_tools_look_for(ask, runtime):
    runtime.script = [
        Written("", finish="too_long", reason="The prompt has 9 tokens.", fault=Fault.USER)
    ]
    with pytest.raises(openai.BadRequestError, match="9 tokens") as refused:
        ask()
    assert refused.value.code == "context_length_exceeded"
    with pytest.raises(openai.BadRequestError) as refused:
        ask(messages=[{"role": "user", "content": "x" * 200_001}])
    assert refused.value.code == "context_length_exceeded"


def test_what_the_node_refuses_costs_nothing(ask, runtime, owner):
    before = get_wallet(organisation=owner).available_micros
    runtime.script = [Written("", finish="error", reason="Too long.", fault=Fault.USER)]
    with pytest.raises(openai.BadRequestError, match="Too long"):
        ask()
    runtime.script = [Written("", finish="error", reason="Broken.", fault=Fault.SYSTEM)]
    with pytest.raises(openai.InternalServerError, match="Broken"):
        ask(stream=True)
    assert get_wallet(organisation=owner).available_micros == before


def test_an_owner_who_leaves_ends_the_answer_and_pays_what_was_written(ask, runtime, owner):
    before = get_wallet(organisation=owner).available_micros
    runtime.script = [Written("", "Hi", answer_tokens=1)]
    stream = ask(stream=True)
    assert next(iter(stream)).choices[0].delta.role == "assistant"
    stream.close()
    question = wait_for_end()
    assert question.status == QuestionStatus.CANCELLED
    paid = before - get_wallet(organisation=owner).available_micros
    assert paid == -(-(question.prompt_tokens + 1) * question.rate_micros // 1_000_000)
    ended = record_written(
        node=question.node, items=[Written(question.token, " more")], now=clock.now()
    )
    assert ended == [question.token]


def wait_for_end():
    until(lambda: not AskedQuestion.objects.get().is_open, what="the question ended")
    return AskedQuestion.objects.get()


def test_a_question_that_no_node_answers_ends_and_is_refunded(zone, node, owner):
    before = get_wallet(organisation=owner).available_micros
    question = ask_question(
        organisation=owner,
        asked_by=None,
        zone=zone,
        artifact=None,
        terms=QuestionTerms(prompt="x"),
        now=clock.now(),
    )
    assert get_wallet(organisation=owner).held_micros > 0
    late = clock.now() + ANSWERED_WITHIN
    assert sweep_questions(now=late) == 1
    assert sweep_questions(now=late) == 0
    question.refresh_from_db()
    assert question.status == QuestionStatus.FAILED
    assert get_wallet(organisation=owner).available_micros == before


def test_a_node_cannot_charge_more_tokens_than_its_text_has(ask, runtime, zone):
    runtime.script = [Written("", "Hi", answer_tokens=10_000, finish="stop")]
    assert ask(max_tokens=1000).usage.completion_tokens == 2


def test_without_money_or_without_a_node_there_is_no_answer(connect, client, ask, zone, node):
    poor = connect(builders.organisation())
    with pytest.raises(openai.APIStatusError) as refused:
        poor.chat.completions.create(model=zone.name, messages=MESSAGES)
    assert (refused.value.status_code, refused.value.code) == (402, "insufficient_funds")
    type(node).objects.filter(pk=node.pk).update(status="offline")
    with pytest.raises(openai.InternalServerError) as refused:
        client.with_options(max_retries=0).chat.completions.create(
            model=zone.name, messages=MESSAGES
        )
    assert refused.value.code == "no_node"
    assert not AskedQuestion.objects.exists()


def form(schema):
    return {"type": "json_schema", "json_schema": {"name": "f", "schema": schema}}


class Parcel(pydantic.BaseModel):
    weight: int
    address: str


def test_a_schema_comes_to_the_node_in_its_own_order_and_its_answer_is_parsed(
    client, runtime, zone
):
    text = '{"weight": 3, "address": "x"}'
    runtime.script = [Written("", text, answer_tokens=9, finish="stop")]
    answer = client.chat.completions.parse(
        model=zone.name, messages=MESSAGES, response_format=Parcel
    )
    assert answer.choices[0].message.parsed == Parcel(weight=3, address="x")
    schema = json.loads(runtime.asked[0][0].schema)
    assert list(schema["properties"]) == ["weight", "address"]
    assert schema["additionalProperties"] is False


def test_a_schema_that_the_node_cannot_follow_costs_nothing_and_says_so(ask, runtime, owner):
    before = get_wallet(organisation=owner).available_micros
    reason = "The schema takes too much to compile."
    runtime.script = [Written("", finish="schema", reason=reason, fault=Fault.USER)]
    with pytest.raises(openai.BadRequestError, match="too much to compile") as refused:
        ask(response_format={"type": "json_object"})
    assert (refused.value.code, refused.value.param) == ("invalid_schema", "response_format")
    assert json.loads(runtime.asked[0][0].schema) == {"type": "object"}
    assert get_wallet(organisation=owner).available_micros == before


def test_wrong_questions_are_refused(client, zone, node):
    tool = {"type": "function", "function": {"name": "f"}}
    wrong = [
        ({"messages": []}, "messages"),
        ({"messages": [{"role": "robot", "content": "x"}]}, "messages.0.role"),
        ({"temperature": 3}, "temperature"),
        ({"n": 9}, "n"),
        ({"n": 2, "stream": True}, "n"),
        ({"tools": [tool]}, "tools"),
        ({"tools": [tool], "tool_choice": "auto"}, "tools"),
        ({"response_format": {"type": "xml"}}, "response_format"),
        ({"response_format": {"type": "json_schema"}}, "response_format"),
        ({"response_format": form({"$ref": "http://x/y"})}, "response_format"),
        ({"frequency_penalty": 2.5}, "frequency_penalty"),
        ({"presence_penalty": -3}, "presence_penalty"),
        ({"logit_bias": {"hello": -100}}, "logit_bias"),
        ({"logit_bias": {"5": -101}}, "logit_bias.5"),
        ({"extra_body": {"top_k": -1}}, "top_k"),
        ({"extra_body": {"min_p": 0.1}}, "min_p"),
        ({"stop": ["x"] * 5}, "stop"),
        ({"max_tokens": 0}, "max_tokens"),
    ]
    for changed, param in wrong:
        asked = {"model": zone.name, "messages": MESSAGES} | changed
        with pytest.raises(openai.BadRequestError) as refused:
            client.chat.completions.create(**asked)
        assert refused.value.param == param, refused.value.body
    assert not AskedQuestion.objects.exists()


def test_a_question_that_cannot_be_paid_writes_no_adapter(client, zone, node, owner):
    job = build.job(zone, (0, node), organisation=owner)
    finish(job, node)
    market.checkpoint(job, step=4)
    [listed] = client.fine_tuning.jobs.checkpoints.list(job.pk).data
    rest = get_wallet(organisation=owner).available_micros
    place_holds(wanted=[HoldRequest(owner.pk, rest, "hold_all")], now=clock.now())
    with pytest.raises(openai.APIStatusError) as caught:
        client.chat.completions.create(model=listed.fine_tuned_model_checkpoint, messages=MESSAGES)
    assert (caught.value.status_code, caught.value.code) == (402, "insufficient_funds")
    assert not Artifact.everything.exclude(checkpoint=None).exists()
    assert not AskedQuestion.objects.exists()
