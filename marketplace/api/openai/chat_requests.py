"""What may be asked of models; members that OpenAI ignores are ignored here too."""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from typing import Any

from drf_spectacular.utils import extend_schema_field
from rest_framework import serializers

from marketplace.api.openai.chat_tools import NO_FORM, ToolChoiceField, ToolsField, build_tool_rules
from marketplace.api.openai.message_requests import MESSAGES_MAX, TEXT, MessageRequest, TextField
from marketplace.api.text_patterns import NO_NUL
from marketplace.common.errors import UserError
from marketplace.questions.asking import INVALID_SCHEMA
from workers.protocol.answer_schema import describe_schema_fault
from workers.protocol.generation import (
    BIAS_MAX,
    BIASED_MAX,
    QUESTIONS_MAX,
    STOP_CHARS_MAX,
    STOPS_MAX,
    TOP_TOKENS_MAX,
    TokenBias,
)

_TOKEN = re.compile("[0-9]{1,9}")


_STOP = {"type": "string", "minLength": 1, "maxLength": STOP_CHARS_MAX, "pattern": NO_NUL}


@extend_schema_field({"anyOf": [_STOP, {"type": "array", "items": _STOP, "maxItems": STOPS_MAX}]})
class StopField(serializers.Field):
    """Texts before which an answer ends."""

    def to_internal_value(self, data: Any) -> tuple[str, ...]:
        stops = [data] if isinstance(data, str) else data
        is_good = isinstance(stops, list) and len(stops) <= STOPS_MAX
        if not is_good or not all(
            isinstance(stop, str) and 1 <= len(stop) <= STOP_CHARS_MAX and "\0" not in stop
            for stop in stops
        ):
            raise serializers.ValidationError(
                f"Give at most {STOPS_MAX} texts of 1 to {STOP_CHARS_MAX} characters."
            )
        return tuple(stops)

    def to_representation(self, value: Any) -> Any:
        return value


class StreamOptions(serializers.Serializer[Any]):
    include_usage = serializers.BooleanField(
        required=False, default=False, help_text="Send the tokens used, as a last part."
    )


class PenaltyField(serializers.FloatField):
    def __init__(self, **options: Any) -> None:
        super().__init__(min_value=-2, max_value=2, required=False, allow_null=True, **options)


@extend_schema_field(
    {
        "type": "object",
        "maxProperties": BIASED_MAX,
        "propertyNames": {"pattern": r"^\d{1,9}$"},
        "additionalProperties": {"type": "number", "minimum": -BIAS_MAX, "maximum": BIAS_MAX},
    }
)
class LogitBiasField(serializers.DictField):
    """Numbers of tokens, as texts, and what is added to their logits."""

    child = serializers.FloatField(min_value=-BIAS_MAX, max_value=BIAS_MAX)

    def to_internal_value(self, data: Any) -> tuple[TokenBias, ...]:
        biases = super().to_internal_value(data)
        if len(biases) > BIASED_MAX or not all(map(_TOKEN.fullmatch, biases)):
            raise serializers.ValidationError(
                f"Give at most {BIASED_MAX} tokens, each by its number."
            )
        return tuple(TokenBias(int(token), bias) for token, bias in biases.items())


@extend_schema_field(
    {
        "type": "object",
        "required": ["type"],
        "if": {"properties": {"type": {"const": "json_schema"}}},
        "then": {"required": ["json_schema"]},
        "properties": {
            "type": {"type": "string", "enum": ["text", "json_object", "json_schema"]},
            "json_schema": {
                "type": "object",
                "required": ["schema"],
                "properties": {
                    "name": {"type": "string"},
                    "schema": {"type": "object", "additionalProperties": {}},
                },
                "additionalProperties": {},
            },
        },
    }
)
class ResponseFormatField(serializers.Field):
    """The JSON schema that the answer follows, as text; empty: any text."""

    def to_internal_value(self, data: Any) -> str:
        match data:
            case {"type": "text"}:
                return ""
            case {"type": "json_object"}:
                return json.dumps({"type": "object"})
            case {"type": "json_schema", "json_schema": {"schema": schema}}:
                return write_schema(schema, param="response_format")
        raise serializers.ValidationError(
            "Give the type text, json_object, or json_schema with a schema in json_schema."
        )

    def to_representation(self, value: Any) -> Any:
        return value


def write_schema(schema: Any, *, param: str) -> str:
    """A schema as nodes take it.

    Raises
    ------
    UserError
        ``invalid_schema``.
    """
    if fault := describe_schema_fault(schema):
        raise UserError(INVALID_SCHEMA, fault, param=param)
    # In the order of its members, which is the answer's; the database would change it.
    return json.dumps(schema)


class SampledRequest(serializers.Serializer[Any]):
    """What every request for an answer has in common: who answers, and how tokens are chosen."""

    model = serializers.CharField(
        max_length=400,
        help_text="A zone's name, its base model, or the name of an adapter of yours.",
    )
    temperature = serializers.FloatField(
        min_value=0,
        max_value=2,
        required=False,
        allow_null=True,
        help_text="How far from the likeliest token the answer may go; 0 takes the likeliest.",
    )
    top_p = serializers.FloatField(
        min_value=1e-6,
        max_value=1,
        required=False,
        allow_null=True,
        help_text="Choose among the likeliest tokens that make up this share.",
    )


class AnswerRequest(SampledRequest):
    """What questions of both kinds have in common."""

    seed = serializers.IntegerField(
        min_value=-(2**63),
        max_value=2**63 - 1,
        required=False,
        allow_null=True,
        help_text="The same seed and question give the same answer on the same kind of node.",
    )
    stop = StopField(
        required=False, allow_null=True, help_text="Up to 4 texts before which the answer ends."
    )
    max_tokens = serializers.IntegerField(
        min_value=1,
        max_value=1_000_000,
        required=False,
        allow_null=True,
        help_text="Most tokens of the answer.",
    )
    stream = serializers.BooleanField(
        required=False,
        allow_null=True,
        help_text="Send the answer in parts, as server-sent events.",
    )
    stream_options = StreamOptions(
        required=False, allow_null=True, help_text="What a stream sends beside the answer."
    )
    n = serializers.IntegerField(
        min_value=1,
        max_value=QUESTIONS_MAX,
        required=False,
        allow_null=True,
        help_text="Answers, each of which is paid for; only one is streamed.",
    )
    top_k = serializers.IntegerField(
        min_value=0,
        max_value=2**31 - 1,
        required=False,
        allow_null=True,
        help_text="Choose among as many of the likeliest tokens; 0 chooses among all.",
    )
    frequency_penalty = PenaltyField(
        help_text="Makes a token less likely for each time that the answer has it."
    )
    presence_penalty = PenaltyField(help_text="Makes a token less likely once the answer has it.")
    logit_bias = LogitBiasField(
        required=False,
        allow_null=True,
        help_text="What is added to the logits of tokens, by their numbers; -100 forbids one.",
    )

    #: What would change the answer, and is not done here; empty and 0 change nothing.
    refused = ("functions", "min_p", "repetition_penalty")

    def to_internal_value(self, data: Any) -> Any:
        for name in self.refused:
            if isinstance(data, Mapping) and data.get(name) and not _is_default(name, data):
                raise UserError(
                    "unsupported_parameter", f"{name} is not done here. Leave it out.", param=name
                )
        return super().to_internal_value(data)


def _is_default(name: str, asked: Mapping[str, Any]) -> bool:
    """Whether what is asked for is what is done without it."""
    match name:
        case "functions":
            return asked.get("function_call") == "none"
        case "repetition_penalty":
            return asked[name] == 1
        case _:
            return False


class ChatRequest(AnswerRequest):
    schema_rules = build_tool_rules({"response_format": NO_FORM})
    messages = serializers.ListField(
        child=MessageRequest(),
        min_length=1,
        max_length=MESSAGES_MAX,
        help_text="The conversation, the first message first.",
    )
    max_completion_tokens = serializers.IntegerField(
        min_value=1,
        max_value=1_000_000,
        required=False,
        allow_null=True,
        help_text="Most tokens of the answer; it counts before max_tokens.",
    )
    response_format = ResponseFormatField(
        required=False,
        allow_null=True,
        help_text="The form of the answer: any text, a JSON object, or JSON of a schema.",
    )
    tools = ToolsField(
        required=False, allow_null=True, help_text="Functions that the answer may call."
    )
    tool_choice = ToolChoiceField(
        required=False,
        allow_null=True,
        help_text="Whether the answer calls none, any (auto), at least one, or a certain function.",
    )
    parallel_tool_calls = serializers.BooleanField(
        required=False, allow_null=True, help_text="Whether an answer may call more than once."
    )
    logprobs = serializers.BooleanField(
        required=False, allow_null=True, help_text="Give the logarithm of each token's probability."
    )
    top_logprobs = serializers.IntegerField(
        min_value=0,
        max_value=TOP_TOKENS_MAX,
        required=False,
        allow_null=True,
        help_text="Give as many likeliest tokens beside each.",
    )


@extend_schema_field(
    {"anyOf": [TEXT, {"type": "array", "items": TEXT, "minItems": 1, "maxItems": 1}]}
)
class PromptField(TextField):
    """A text, or a list of one."""

    def to_internal_value(self, data: Any) -> str:
        if isinstance(data, list) and len(data) == 1:
            data = data[0]
        return super().to_internal_value(data)


class CompletionRequest(AnswerRequest):
    prompt = PromptField(help_text="The text to go on from, or a list of one.")
    logprobs = serializers.IntegerField(
        min_value=0,
        max_value=5,
        required=False,
        allow_null=True,
        help_text="Give the logarithm of each token's probability, and as many likeliest tokens.",
    )

    refused = (*AnswerRequest.refused, "response_format", "tools", "suffix", "echo", "best_of")
