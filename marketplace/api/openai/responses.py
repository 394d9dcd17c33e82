"""``/v1/responses`` in its plain form: a conversation in, text and calls out; nothing is stored.

A request is read as the one of ``/v1/chat/completions`` that says the same, and answered as it.
"""

from __future__ import annotations

import itertools
from collections.abc import Coroutine, Mapping, Sequence
from functools import partial
from typing import Any

from drf_spectacular.types import OpenApiTypes
from drf_spectacular.utils import OpenApiResponse, extend_schema
from rest_framework import serializers as s
from rest_framework.request import Request

from marketplace.api.answers import AsStored, ConstantText, usd
from marketplace.api.market.requests import check_body
from marketplace.api.openai import schemas
from marketplace.api.openai.chat import answer_request, build_chat_terms
from marketplace.api.openai.chat_requests import (
    ChatRequest,
)
from marketplace.api.openai.chat_values import Reply, Words, read_answer, sum_usage
from marketplace.api.openai.response_requests import ResponseRequest
from marketplace.api.openai.views import OpenAiView
from marketplace.common.errors import UserError
from marketplace.questions.models import AskedQuestion
from marketplace.questions.tool_calls import CallReader, CallStream, ToolCall

#: Members with the same meaning under another name, and those with the same name.
_RENAMED = {"max_output_tokens": "max_completion_tokens"}
_SAME = ("model", "temperature", "top_p", "stream", "parallel_tool_calls")
_EMPTY_PART = {"type": "output_text", "text": "", "annotations": [], "logprobs": []}


class ModelResponseSerializer(AsStored):
    id = s.CharField()
    object = ConstantText("response")
    created_at = s.IntegerField(help_text="When it was made, in Unix seconds.")
    status = s.CharField(help_text="completed, or incomplete at max_output_tokens.")
    model = s.CharField(help_text="The model as it was asked for.")
    output = s.ListField(child=s.DictField(), help_text="A message, and calls of functions.")
    usage = s.DictField(help_text="Tokens used, and what they cost.")


class ResponsesView(OpenAiView):
    scopes = {"POST": "models:use"}
    throttle_kind = "questions"

    @extend_schema(
        operation_id="create_response",
        request=ResponseRequest,
        responses={
            200: ModelResponseSerializer,
            (200, "text/event-stream"): OpenApiResponse(OpenApiTypes.STR),
            **schemas.ERRORS,
            402: schemas.ERROR,
            503: schemas.ERROR,
        },
    )
    def post(self, request: Request) -> Coroutine[Any, Any, Any]:
        asked = check_body(ResponseRequest, request.data)
        chat = check_body(ChatRequest, _build_chat(asked))
        shape = partial(ResponseShape, echo=_build_echo(asked))
        return answer_request(request, chat, build_chat_terms(chat), shape)


def _build_chat(asked: Mapping[str, Any]) -> dict[str, Any]:
    """The request of a conversation that says the same."""
    chat = {name: asked[name] for name in _SAME if name in asked}
    chat |= {to: asked[name] for name, to in _RENAMED.items() if name in asked}
    chat["messages"] = asked["input"]
    if asked.get("instructions"):
        system = {"role": "developer", "content": asked["instructions"]}
        chat["messages"] = [system, *asked["input"]]
    match (asked.get("text") or {}).get("format"):
        case {"type": "json_schema"} as form:
            chat["response_format"] = {"type": "json_schema", "json_schema": form}
        case None:
            pass
        case form:
            chat["response_format"] = form
    chat["tools"] = [_build_tool(tool) for tool in asked.get("tools") or ()]
    choice = asked.get("tool_choice")
    if isinstance(choice, dict):
        choice = {"type": choice.get("type"), "function": {"name": choice.get("name")}}
    return chat | {"tool_choice": choice}


def _build_tool(tool: Mapping[str, Any]) -> dict[str, Any]:
    if tool.get("type") != "function":
        raise UserError(
            "unsupported_parameter", "Only tools of type function are called.", param="tools"
        )
    return {"type": "function", "function": {k: v for k, v in tool.items() if k != "type"}}


def _build_echo(asked: Mapping[str, Any]) -> dict[str, Any]:
    """What a response repeats of its request."""
    named = ("instructions", "max_output_tokens", "temperature", "top_p")
    return {name: asked.get(name) for name in named} | {
        "text": asked.get("text") or {"format": {"type": "text"}},
        "tools": asked.get("tools") or [],
        "tool_choice": asked.get("tool_choice") or "auto",
        "parallel_tool_calls": asked.get("parallel_tool_calls") is not False,
    }


class ResponseShape:
    """``response`` and its events."""

    ending = b""

    def __init__(
        self,
        reply: Reply,
        *,
        echo: Mapping[str, Any],
        has_logprobs: bool,
        reader: CallReader | None = None,
    ) -> None:
        self._reply = reply
        self._echo = echo
        self._reader = reader
        self._stream = CallStream(reader)
        self._numbers = itertools.count()
        #: What was streamed.
        self._text = ""

    def build_whole(
        self, answers: Sequence[Sequence[Words]], questions: Sequence[AskedQuestion]
    ) -> dict[str, Any]:
        text, calls = read_answer(answers[0], self._reader)
        return self._build(self._list_items(text, calls), questions[0])

    def build_opening(self) -> list[dict[str, Any]]:
        begun = self._build([], None)
        return [
            self._event("response.created", response=begun),
            self._event("response.in_progress", response=begun),
        ]

    def build_part(self, part: Words) -> list[dict[str, Any]]:
        return self._say(self._stream.add(part.text))

    def build_end(self, question: AskedQuestion) -> list[dict[str, Any]]:
        rest, calls = self._stream.finish()
        events = self._say(rest)
        items = self._list_items(self._text, calls)
        for index, item in enumerate(items):
            close = self._close_message if item["type"] == "message" else self._show_call
            events += close(index, item)
        whole = self._build(items, question)
        return [*events, self._event(f"response.{whole['status']}", response=whole)]

    def build_usage(self, question: AskedQuestion) -> dict[str, Any]:
        raise AssertionError("usage stands in the last event")

    def _say(self, text: str) -> list[dict[str, Any]]:
        if not text:
            return []
        events = [] if self._text else self._open_message()
        self._text += text
        place = self._place(0)
        delta = self._event("response.output_text.delta", **place, delta=text, logprobs=[])
        return [*events, delta]

    def _open_message(self) -> list[dict[str, Any]]:
        begun = self._build_message("") | {"status": "in_progress", "content": []}
        return [
            self._event("response.output_item.added", output_index=0, item=begun),
            self._event("response.content_part.added", **self._place(0), part=_EMPTY_PART),
        ]

    def _close_message(self, index: int, item: Mapping[str, Any]) -> list[dict[str, Any]]:
        place, [part] = self._place(index), item["content"]
        events = [] if self._text else self._open_message()
        return [
            *events,
            self._event("response.output_text.done", **place, text=part["text"], logprobs=[]),
            self._event("response.content_part.done", **place, part=part),
            self._event("response.output_item.done", output_index=index, item=item),
        ]

    def _show_call(self, index: int, item: Mapping[str, Any]) -> list[dict[str, Any]]:
        begun = {**item, "status": "in_progress", "arguments": ""}
        where = {"item_id": item["id"], "output_index": index}
        kind, arguments = "response.function_call_arguments", item["arguments"]
        return [
            self._event("response.output_item.added", output_index=index, item=begun),
            self._event(f"{kind}.delta", **where, delta=arguments),
            self._event(f"{kind}.done", **where, arguments=arguments, name=item["name"]),
            self._event("response.output_item.done", output_index=index, item=item),
        ]

    def _event(self, kind: str, **members: Any) -> dict[str, Any]:
        return {"type": kind, "sequence_number": next(self._numbers), **members}

    def _place(self, index: int) -> dict[str, Any]:
        return {"item_id": self._message_id, "output_index": index, "content_index": 0}

    @property
    def _message_id(self) -> str:
        return f"msg_{self._reply.question_id}"

    def _build_message(self, text: str) -> dict[str, Any]:
        return {
            "type": "message",
            "id": self._message_id,
            "status": "completed",
            "role": "assistant",
            "content": [_EMPTY_PART | {"text": text}],
        }

    def _list_items(self, text: str, calls: Sequence[ToolCall]) -> list[dict[str, Any]]:
        shown = [
            {
                "type": "function_call",
                "id": f"fc_{self._reply.question_id}_{index}",
                "call_id": f"call_{self._reply.question_id}_{index}",
                "name": call.name,
                "arguments": call.arguments,
                "status": "completed",
            }
            for index, call in enumerate(calls)
        ]
        return [*([] if calls and not text else [self._build_message(text)]), *shown]

    def _build(
        self, items: Sequence[Mapping[str, Any]], question: AskedQuestion | None
    ) -> dict[str, Any]:
        """The response; without a question it is under way."""
        status, is_cut = "in_progress", question is not None and question.finish == "length"
        if question is not None:
            status = "incomplete" if is_cut else "completed"
        return {
            "id": f"resp_{self._reply.question_id}",
            "object": "response",
            "created_at": self._reply.created,
            "status": status,
            "error": None,
            "incomplete_details": {"reason": "max_output_tokens"} if is_cut else None,
            "model": self._reply.model,
            "output": list(items),
            "previous_response_id": None,
            "store": False,
            "truncation": "disabled",
            "usage": None if question is None else _show_usage(question),
            **self._echo,
        }


def _show_usage(question: AskedQuestion) -> dict[str, Any]:
    used = sum_usage([question])
    return {
        "input_tokens": used.prompt_tokens,
        "input_tokens_details": {"cached_tokens": 0},
        "output_tokens": used.answer_tokens,
        "output_tokens_details": {"reasoning_tokens": 0},
        "total_tokens": used.prompt_tokens + used.answer_tokens,
        "cost": usd(used.cost),
    }
