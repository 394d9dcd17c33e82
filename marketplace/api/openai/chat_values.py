"""Answers as OpenAI's clients read them: conversations and completions, whole and in parts."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple, Protocol

from rest_framework import serializers as s

from marketplace.api.answers import Answer, AsStored, ConstantText, Usd
from marketplace.questions.models import AskedQuestion
from marketplace.questions.prices import compute_price
from marketplace.questions.tool_calls import CallReader, CallStream, ToolCall


class Words(Protocol):
    """Words of an answer, with their tokens where probabilities were asked for."""

    @property
    def text(self) -> str: ...

    @property
    def tokens(self) -> Sequence[Mapping[str, Any]]: ...


class AnswerShape(Protocol):
    """How answers to one request are written, whole or in events."""

    @property
    def ending(self) -> bytes:
        """What a stream ends with."""
        ...

    def build_whole(
        self, answers: Sequence[Sequence[Words]], questions: Sequence[AskedQuestion]
    ) -> dict[str, Any]: ...

    def build_opening(self) -> list[dict[str, Any]]: ...
    def build_part(self, part: Words) -> list[dict[str, Any]]: ...
    def build_end(self, question: AskedQuestion) -> list[dict[str, Any]]: ...
    def build_usage(self, question: AskedQuestion) -> dict[str, Any]: ...


@dataclass(frozen=True, slots=True)
class Reply:
    """What every part of an answer says of it."""

    question_id: str
    model: str
    #: Unix seconds.
    created: int


class AnswerUsage(NamedTuple):
    """What answers to one request took together."""

    prompt_tokens: int
    answer_tokens: int
    cost: int


def sum_usage(questions: Sequence[AskedQuestion]) -> AnswerUsage:
    """Add up what answers took; each read the prompt."""
    prompts = sum(question.prompt_tokens for question in questions)
    answers = sum(question.answer_tokens for question in questions)
    cost = sum(
        compute_price(
            tokens=question.prompt_tokens + question.answer_tokens,
            rate_micros=question.rate_micros,
        )
        for question in questions
    )
    return AnswerUsage(prompts, answers, cost)


class CompletionUsageSerializer(Answer):
    prompt_tokens = s.IntegerField(help_text="Tokens of the question.")
    completion_tokens = s.IntegerField(source="answer_tokens", help_text="Tokens of the answer.")
    total_tokens = s.IntegerField(help_text="Tokens of both.")
    cost = Usd("What they cost.")

    def get_total_tokens(self, usage: AnswerUsage) -> int:
        return usage.prompt_tokens + usage.answer_tokens


class CreateChatCompletionResponseSerializer(AsStored):
    id = s.CharField()
    object = ConstantText("chat.completion")
    created = s.IntegerField(help_text="When it was made, in Unix seconds.")
    model = s.CharField(help_text="The model as it was asked for.")
    choices = s.ListField(child=s.DictField(), help_text="The answer, with why it ended.")
    usage = CompletionUsageSerializer(help_text="Tokens used, and what they cost.")


class CreateCompletionResponseSerializer(CreateChatCompletionResponseSerializer):
    object = ConstantText("text_completion")


def read_answer(parts: Sequence[Words], reader: CallReader | None) -> tuple[str, list[ToolCall]]:
    """The text of a whole answer, and its calls."""
    text = "".join(part.text for part in parts)
    return (text, []) if reader is None else reader.read(text)


class ChatShape:
    """``chat.completion`` and its chunks.

    Parameters
    ----------
    reader
        Finds calls in the answer, where it may have some.
    """

    ending = b"data: [DONE]\n\n"

    def __init__(
        self, reply: Reply, *, has_logprobs: bool, reader: CallReader | None = None
    ) -> None:
        self._reply = reply
        self._has_logprobs = has_logprobs
        self._reader = reader
        self._stream = CallStream(reader)

    def build_whole(
        self, answers: Sequence[Sequence[Words]], questions: Sequence[AskedQuestion]
    ) -> dict[str, Any]:
        choices = [
            self._build_choice(index, parts, question.finish)
            for index, (parts, question) in enumerate(zip(answers, questions, strict=True))
        ]
        return self._build("chat.completion", choices) | {"usage": _show_usage(questions)}

    def _build_choice(self, index: int, parts: Sequence[Words], finish: str) -> dict[str, Any]:
        text, calls = read_answer(parts, self._reader)
        message: dict[str, Any] = {"role": "assistant", "content": text, "refusal": None}
        if calls:
            shown = self._show_calls(calls, number=index)
            message |= {"content": text or None, "tool_calls": shown}
        return {
            "index": index,
            "message": message,
            "logprobs": self._build_logprobs([token for part in parts for token in part.tokens]),
            "finish_reason": "tool_calls" if calls else finish,
        }

    def _show_calls(self, calls: Sequence[ToolCall], *, number: int = 0) -> list[dict[str, Any]]:
        """Of the answer of a number, those of one request."""
        return [
            {
                "id": f"call_{self._reply.question_id}_{number}_{index}",
                "type": "function",
                "function": {"name": call.name, "arguments": call.arguments},
            }
            for index, call in enumerate(calls)
        ]

    def build_opening(self) -> list[dict[str, Any]]:
        return [self._build_chunk({"role": "assistant", "content": ""})]

    def build_part(self, part: Words) -> list[dict[str, Any]]:
        text = self._stream.add(part.text)
        return [self._build_chunk({"content": text}, tokens=part.tokens)]

    def build_end(self, question: AskedQuestion) -> list[dict[str, Any]]:
        rest, calls = self._stream.finish()
        chunks = [self._build_chunk({"content": rest})] if rest else []
        if calls:
            shown = enumerate(self._show_calls(calls))
            deltas = [{"index": index} | call for index, call in shown]
            chunks.append(self._build_chunk({"tool_calls": deltas}))
        finish = "tool_calls" if calls else question.finish
        return [*chunks, self._build_chunk({}, finish=finish)]

    def build_usage(self, question: AskedQuestion) -> dict[str, Any]:
        return self._build("chat.completion.chunk", []) | {"usage": _show_usage([question])}

    def _build_chunk(
        self,
        delta: Mapping[str, Any],
        *,
        tokens: Sequence[Mapping[str, Any]] = (),
        finish: str | None = None,
    ) -> dict[str, Any]:
        choice = {
            "index": 0,
            "delta": delta,
            "logprobs": self._build_logprobs(tokens) if tokens else None,
            "finish_reason": finish,
        }
        return self._build("chat.completion.chunk", [choice])

    def _build(self, kind: str, choices: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
        return {
            "id": f"chatcmpl-{self._reply.question_id}",
            "object": kind,
            "created": self._reply.created,
            "model": self._reply.model,
            "choices": list(choices),
        }

    def _build_logprobs(self, tokens: Sequence[Mapping[str, Any]]) -> dict[str, Any] | None:
        if not self._has_logprobs:
            return None
        content = [
            _build_token(token)
            | {"top_logprobs": [_build_token(other) for other in token["likeliest"]]}
            for token in tokens
        ]
        return {"content": content, "refusal": None}


def _show_usage(questions: Sequence[AskedQuestion]) -> dict[str, Any]:
    return CompletionUsageSerializer.show(sum_usage(questions))


def _build_token(token: Mapping[str, Any]) -> dict[str, Any]:
    text = token["text"]
    return {"token": text, "logprob": token["logprob"], "bytes": list(text.encode())}


class CompletionShape:
    """``text_completion``, whole and in parts; it has no calls."""

    ending = ChatShape.ending

    def __init__(
        self, reply: Reply, *, has_logprobs: bool, reader: CallReader | None = None
    ) -> None:
        self._reply = reply
        self._has_logprobs = has_logprobs

    def build_whole(
        self, answers: Sequence[Sequence[Words]], questions: Sequence[AskedQuestion]
    ) -> dict[str, Any]:
        choices = []
        for index, (parts, question) in enumerate(zip(answers, questions, strict=True)):
            text = "".join(part.text for part in parts)
            tokens = [token for part in parts for token in part.tokens]
            choices.append(self._build_choice(text, tokens, question.finish, index=index))
        return self._build(choices) | {"usage": _show_usage(questions)}

    def build_opening(self) -> list[dict[str, Any]]:
        return []

    def build_part(self, part: Words) -> list[dict[str, Any]]:
        return [self._build([self._build_choice(part.text, part.tokens, None)])]

    def build_end(self, question: AskedQuestion) -> list[dict[str, Any]]:
        return [self._build([self._build_choice("", (), question.finish)])]

    def build_usage(self, question: AskedQuestion) -> dict[str, Any]:
        return self._build([]) | {"usage": _show_usage([question])}

    def _build_choice(
        self,
        text: str,
        tokens: Sequence[Mapping[str, Any]],
        finish: str | None,
        *,
        index: int = 0,
    ) -> dict[str, Any]:
        return {
            "index": index,
            "text": text,
            "logprobs": self._build_logprobs(tokens),
            "finish_reason": finish,
        }

    def _build(self, choices: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
        return {
            "id": f"cmpl-{self._reply.question_id}",
            "object": "text_completion",
            "created": self._reply.created,
            "model": self._reply.model,
            "choices": list(choices),
        }

    def _build_logprobs(self, tokens: Sequence[Mapping[str, Any]]) -> dict[str, Any] | None:
        if not self._has_logprobs:
            return None
        return {
            "tokens": [token["text"] for token in tokens],
            "token_logprobs": [token["logprob"] for token in tokens],
            "top_logprobs": [
                {other["text"]: other["logprob"] for other in token["likeliest"]}
                for token in tokens
            ],
            "text_offset": [],
        }
