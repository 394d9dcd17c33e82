"""``/v1/chat/completions`` and ``/v1/completions``: text by base models and by adapters.

A question waits for a node of the model's zone, which writes beside its training. Neither waiting
nor streaming holds a thread.
"""

from __future__ import annotations

import asyncio
import json
import secrets
import time
from collections.abc import AsyncGenerator, AsyncIterator, Callable, Coroutine, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from typing import Any

from django.http import StreamingHttpResponse
from drf_spectacular.types import OpenApiTypes
from drf_spectacular.utils import OpenApiResponse, extend_schema
from rest_framework.request import Request
from rest_framework.response import Response

from marketplace.accounts.models import Scope
from marketplace.api.callers import Standing, find_standing, get_caller
from marketplace.api.market.requests import check_body
from marketplace.api.openai import schemas
from marketplace.api.openai.chat_requests import ChatRequest, CompletionRequest
from marketplace.api.openai.chat_tools import find_tool_use
from marketplace.api.openai.chat_values import (
    AnswerShape,
    ChatShape,
    CompletionShape,
    CreateChatCompletionResponseSerializer,
    CreateCompletionResponseSerializer,
    Reply,
)
from marketplace.api.openai.names import find_model
from marketplace.api.openai.views import OpenAiView
from marketplace.common import clock
from marketplace.common.errors import UserError
from marketplace.common.problems import build_openai_error, build_problem_body
from marketplace.common.threads import run_in_thread
from marketplace.payments.freezes import check_not_frozen
from marketplace.questions.answering import cancel_question
from marketplace.questions.asking import (
    ANSWER_TOKENS_MAX,
    CONTEXT_EXCEEDED,
    INVALID_SCHEMA,
    QuestionTerms,
    ask_questions,
    check_questions,
)
from marketplace.questions.models import AskedQuestion, QuestionStatus
from marketplace.questions.serving import find_served_model, start_forwarding
from marketplace.questions.wakeups import written_listener
from workers.protocol.generation import BAD_SCHEMA, TOO_LONG

#: Seconds a waiting request trusts the listener before it looks itself.
LOOK_EVERY_S = 1.0
#: How long an answer may go on for somebody who may ask no more.
CHECK_EVERY_S = 2.0
DEFAULT_TOKENS = 256
_SEED_BITS = 31
#: Settings that questions have by the same names.
_SAMPLING = (
    *("temperature", "top_p", "top_k"),
    *("frequency_penalty", "presence_penalty", "logit_bias"),
)


class ChatView(OpenAiView):
    scopes = {"POST": "models:use"}
    throttle_kind = "questions"

    @extend_schema(
        operation_id="create_chat_completion",
        request=ChatRequest,
        responses={
            200: CreateChatCompletionResponseSerializer,
            (200, "text/event-stream"): OpenApiResponse(OpenApiTypes.STR),
            **schemas.ERRORS,
            402: schemas.ERROR,
            503: schemas.ERROR,
        },
    )
    def post(self, request: Request) -> Coroutine[Any, Any, Any]:
        asked = check_body(ChatRequest, request.data)
        return answer_request(request, asked, build_chat_terms(asked), ChatShape)


class CompletionView(OpenAiView):
    scopes = {"POST": "models:use"}
    throttle_kind = "questions"

    @extend_schema(
        operation_id="create_completion",
        request=CompletionRequest,
        responses={
            200: CreateCompletionResponseSerializer,
            (200, "text/event-stream"): OpenApiResponse(OpenApiTypes.STR),
            **schemas.ERRORS,
            402: schemas.ERROR,
            503: schemas.ERROR,
        },
    )
    def post(self, request: Request) -> Coroutine[Any, Any, Any]:
        asked = check_body(CompletionRequest, request.data)
        settings = _read_settings(
            asked, limit=asked.get("max_tokens") or 16, top_tokens=asked.get("logprobs")
        )
        terms = QuestionTerms(prompt=asked["prompt"], **settings)
        return answer_request(request, asked, terms, CompletionShape)


def build_chat_terms(asked: Mapping[str, Any]) -> QuestionTerms:
    """What a checked ``ChatRequest`` asks, but for its tools."""
    limit = asked.get("max_completion_tokens") or asked.get("max_tokens")
    top_tokens = (asked.get("top_logprobs") or 0) if asked.get("logprobs") else None
    return QuestionTerms(
        turns=tuple(asked["messages"]),
        schema=asked.get("response_format") or "",
        **_read_settings(asked, limit=limit, top_tokens=top_tokens),
    )


def _read_settings(
    asked: Mapping[str, Any], *, limit: int | None, top_tokens: int | None
) -> dict[str, Any]:
    """What both kinds of question have in common; OpenAI's defaults where nothing is said."""
    own = {name: asked[name] for name in _SAMPLING if asked.get(name) is not None}
    seed = asked.get("seed")
    return {
        "max_tokens": min(limit or DEFAULT_TOKENS, ANSWER_TOKENS_MAX),
        **own,
        "seed": secrets.randbits(_SEED_BITS) if seed is None else seed,
        "stop": asked.get("stop") or (),
        "top_tokens": top_tokens,
    }


def answer_request(
    request: Request,
    asked: Mapping[str, Any],
    terms: QuestionTerms,
    shape: Callable[..., AnswerShape],
) -> Coroutine[Any, Any, Any]:
    """Ask the question; gives what waits for its answer."""
    who, standing = get_caller(request), find_standing(request, Scope.MODELS_USE)
    model = find_model(asked["model"], organisation=who.organisation)
    written_listener.listen()
    served_model = find_served_model(model.zone)
    use = find_tool_use(asked, model.zone)
    if use is not None:
        opening, schema = use.opening, use.schema or terms.schema
        terms = replace(terms, tools=use.tools, opening=opening, schema=schema)
    count = asked.get("n") or 1
    if count > 1 and asked.get("stream"):
        raise UserError(
            "unsupported_parameter", "A stream has one answer. Ask for n without it.", param="n"
        )
    question: dict[str, Any] = {
        "organisation": who.organisation,
        "asked_by": who.user,
        "api_key_id": who.key_id,
        "zone": model.zone,
        "terms": [replace(terms, seed=_step_seed(terms.seed, by=index)) for index in range(count)],
        "is_forwarded": served_model is not None,
        "now": clock.now(),
    }
    artifact = None
    if model.tuned is not None:
        if model.tuned.find_artifact() is None:
            check_questions(**question)
        artifact = model.tuned.take_artifact(now=clock.now())
    questions = ask_questions(artifact=artifact, **question)
    first = questions[0]
    reply = Reply(first.pk, asked["model"], int(first.created_at.timestamp()))
    reader = None if use is None else use.reader
    made = shape(reply, has_logprobs=terms.top_tokens is not None, reader=reader)
    with_usage = (asked.get("stream_options") or {}).get("include_usage", False)
    answer: Coroutine[Any, Any, Any] = (
        _stream(_Words(first.pk, standing), made, with_usage=with_usage)
        if asked.get("stream")
        else _wait([_Words(question.pk, standing) for question in questions], made)
    )
    return answer if served_model is None else _forward(questions, served_model, answer)


def _step_seed(seed: int, *, by: int) -> int:
    """The seed of another answer to the same question, in the range of seeds."""
    return (seed + by + 2**63) % 2**64 - 2**63


async def _forward(
    questions: Sequence[AskedQuestion], model: str, answer: Coroutine[Any, Any, Any]
) -> Any:
    """The answer, written by the operator's model server."""
    for question in questions:
        start_forwarding(question, model=model)
    return await answer


async def _wait(answers: Sequence[_Words], shape: AnswerShape) -> Response:
    """All answers whole; where one fails, the others end with it."""
    reading = [asyncio.ensure_future(_read_all(words)) for words in answers]
    try:
        parts = await asyncio.gather(*reading)
    finally:
        for task in reading:
            task.cancel()
        await asyncio.wait(reading)
    return Response(shape.build_whole(parts, [words.question for words in answers]))


async def _read_all(words: _Words) -> list[Part]:
    return [part async for part in words.read()]


async def _stream(words: _Words, shape: AnswerShape, *, with_usage: bool) -> StreamingHttpResponse:
    """Stream the answer once it begins, so that a refusal has a status of its own."""
    parts = words.read()
    first = await anext(parts, None)

    async def write() -> AsyncIterator[bytes]:
        for value in shape.build_opening():
            yield _event(value)
        try:
            if first is not None:
                for value in shape.build_part(first):
                    yield _event(value)
            async for part in parts:
                for value in shape.build_part(part):
                    yield _event(value)
        except UserError as error:
            problem = build_problem_body(code=error.code, detail=error.message, status=error.status)
            yield _event(build_openai_error(problem))
            return
        finally:
            await parts.aclose()
        for value in shape.build_end(words.question):
            yield _event(value)
        if with_usage:
            yield _event(shape.build_usage(words.question))
        yield shape.ending

    response = StreamingHttpResponse(write(), content_type="text/event-stream")
    response["Cache-Control"] = "no-store"
    # Proxies gather what they do not know to be a stream.
    response["X-Accel-Buffering"] = "no"
    return response


def _event(value: Mapping[str, Any]) -> bytes:
    named = f"event: {value['type']}\n" if "type" in value else ""
    return f"{named}data: {json.dumps(value, ensure_ascii=False)}\n\n".encode()


@dataclass(frozen=True, slots=True)
class Part:
    """Words of an answer, with their tokens where probabilities were asked for."""

    text: str
    tokens: tuple[Mapping[str, Any], ...]


class _Words:
    """The words of one answer as they are written; its owner leaving ends it.

    So does what would refuse its owner a new question: the words written by then are paid.
    """

    def __init__(self, question_id: str, standing: Standing) -> None:
        self._id = question_id
        self._standing, self._checked_at = standing, time.monotonic()
        #: As it was seen last.
        self.question: AskedQuestion

    async def read(self) -> AsyncGenerator[Part]:
        """Each part once.

        Raises
        ------
        UserError
            The answer failed; what was written before has been given.
        """
        characters = tokens = 0
        ended = False
        try:
            while True:
                # Listening before looking: words written in between are heard of.
                with written_listener.expecting(self._id) as written:
                    found = await run_in_thread(self._look)
                    text, more = found.text[characters:], tuple(found.tokens[tokens:])
                    ended = not found.is_open
                    if text or more:
                        characters, tokens = len(found.text), len(found.tokens)
                        yield Part(text, more)
                    if ended:
                        break
                    await asyncio.wait([asyncio.wrap_future(written)], timeout=LOOK_EVERY_S)
            if found.status != QuestionStatus.ANSWERED:
                raise _build_failure(found)
        finally:
            if not ended:
                # Its owner left. The task that waits may be cancelled: the work must not be.
                leaving = asyncio.ensure_future(run_in_thread(self._cancel))
                with suppress(asyncio.CancelledError):
                    await asyncio.shield(leaving)

    def _look(self) -> AskedQuestion:
        if time.monotonic() - self._checked_at >= CHECK_EVERY_S:
            self._standing.check(now=clock.now())
            organisation = self._standing.caller.organisation
            check_not_frozen(organisation, refused="Further words")
            self._checked_at = time.monotonic()
        self.question = AskedQuestion.objects.get(pk=self._id)
        return self.question

    def _cancel(self) -> None:
        cancel_question(question_id=self._id, now=clock.now())


def _build_failure(question: AskedQuestion) -> UserError:
    if question.finish == TOO_LONG:
        return UserError(CONTEXT_EXCEEDED, question.reason, param="messages")
    if question.finish == BAD_SCHEMA:
        param = "tools" if question.terms["tools"] else "response_format"
        return UserError(INVALID_SCHEMA, question.reason, param=param)
    if question.is_owners_fault:
        return UserError("invalid_prompt", question.reason, param="messages")
    return UserError(
        "not_answered",
        question.reason or "The answer was not written. Ask again.",
        status=503,
        extra={"retry": True},
    )
