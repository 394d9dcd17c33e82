"""What may be asked of ``/v1/responses``: a text or a conversation, and how it is answered."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from drf_spectacular.utils import extend_schema_field
from rest_framework import serializers as s

from marketplace.api.openai.chat_requests import SampledRequest
from marketplace.api.openai.chat_tools import (
    CHOICES,
    FUNCTION,
    NO_FORM,
    TOOLS_MAX,
    build_tool_rules,
)
from marketplace.api.openai.message_requests import CONTENT, MESSAGES_MAX, NAME, TEXT
from marketplace.common.errors import UserError

#: What would change the answer, and is not done here.
_REFUSED = ("previous_response_id", "conversation", "background", "prompt")


def _describe_item(kind: str, **texts: Any) -> dict[str, Any]:
    return {
        "type": "object",
        "required": ["type", *texts],
        "properties": {"type": {"type": "string", "enum": [kind]}, **texts},
    }


_MESSAGE = {
    "type": "object",
    "required": ["role", "content"],
    "properties": {
        "type": {"type": "string", "enum": ["message"]},
        "role": {"type": "string", "enum": ["developer", "system", "user", "assistant"]},
        "content": CONTENT,
    },
}


_JSON_TEXT = {"type": "string", "contentMediaType": "application/json"}


_TOOL = {
    "type": "object",
    "required": ["type", "name"],
    "properties": {"type": {"type": "string", "enum": ["function"]}, **FUNCTION["properties"]},
}


@extend_schema_field(
    {
        "anyOf": [
            TEXT,
            {
                "type": "array",
                "minItems": 1,
                "maxItems": MESSAGES_MAX - 1,
                "items": {
                    "anyOf": [
                        _MESSAGE,
                        _describe_item(
                            "function_call", call_id=TEXT, name=NAME, arguments=_JSON_TEXT
                        ),
                        _describe_item("function_call_output", call_id=TEXT, output=CONTENT),
                    ]
                },
            },
        ]
    }
)
class InputField(s.Field):
    """A text of the user, or items: messages, calls and what functions gave."""

    def to_internal_value(self, data: Any) -> list[dict[str, Any]]:
        if isinstance(data, str):
            return [{"role": "user", "content": data}]
        if not isinstance(data, list):
            raise s.ValidationError("Give a text, or a list of items.")
        messages: list[dict[str, Any]] = []
        for item in data:
            _add_item(messages, item)
        return messages

    def to_representation(self, value: Any) -> Any:
        return value


def _add_item(messages: list[dict[str, Any]], item: Any) -> None:
    match item:
        case {"type": "reasoning"}:
            pass
        case {"type": "function_call", "call_id": call_id, "name": name, "arguments": arguments}:
            if not messages or messages[-1]["role"] != "assistant":
                messages.append({"role": "assistant", "content": None})
            function = {"name": name, "arguments": arguments}
            call = {"id": call_id, "type": "function", "function": function}
            messages[-1].setdefault("tool_calls", []).append(call)
        case {"type": "function_call_output", "call_id": call_id, "output": output}:
            messages.append({"role": "tool", "tool_call_id": call_id, "content": output})
        case {"role": role, "content": content, **more} if more.get("type", "message") == "message":
            messages.append({"role": role, "content": content})
        case _:
            raise s.ValidationError(
                "An item is a message, a function_call or a function_call_output."
            )


@extend_schema_field(
    {
        "type": "object",
        "properties": {
            "format": {
                "type": "object",
                "required": ["type"],
                "properties": {
                    "type": {"type": "string", "enum": ["text", "json_object", "json_schema"]},
                    "name": {"type": "string"},
                    "schema": {"type": "object", "additionalProperties": {}},
                },
                "if": {"properties": {"type": {"const": "json_schema"}}},
                "then": {"required": ["schema"]},
            }
        },
    }
)
class FormField(s.DictField):
    """The form of the answer, which ``ChatRequest`` checks."""


@extend_schema_field(_TOOL)
class ToolField(s.DictField):
    """A function, which ``ChatRequest`` checks."""


@extend_schema_field(
    {
        "anyOf": [
            {"type": "string", "enum": list(CHOICES)},
            _describe_item("function", name=TEXT),
        ]
    }
)
class ChoiceField(s.JSONField):
    """Which function is called, which ``ChatRequest`` checks."""


class ResponseRequest(SampledRequest):
    """A text or a conversation to answer."""

    schema_rules = build_tool_rules(
        {"text": {"anyOf": [{"type": "null"}, {"properties": {"format": NO_FORM}}]}}
    )
    input = InputField(help_text="A text, or the conversation so far as a list of items.")
    instructions = s.CharField(
        required=False, allow_null=True, allow_blank=True, help_text="The system's message."
    )
    max_output_tokens = s.IntegerField(
        min_value=1,
        max_value=1_000_000,
        required=False,
        allow_null=True,
        help_text="Most tokens of the answer.",
    )
    stream = s.BooleanField(
        required=False, allow_null=True, help_text="Send the answer as server-sent events."
    )
    text = FormField(
        required=False, allow_null=True, help_text="format: text, json_object or json_schema."
    )
    tools = s.ListField(
        child=ToolField(),
        required=False,
        allow_null=True,
        max_length=TOOLS_MAX,
        help_text="Functions that the answer may call.",
    )
    tool_choice = ChoiceField(
        required=False, allow_null=True, help_text="none, auto, required, or a function by name."
    )
    parallel_tool_calls = s.BooleanField(
        required=False, allow_null=True, help_text="Whether an answer may call more than once."
    )

    def to_internal_value(self, data: Any) -> Any:
        for name in _REFUSED:
            if isinstance(data, Mapping) and data.get(name):
                raise UserError(
                    "unsupported_parameter",
                    f"{name} is not done here: no answer is stored. Send the whole conversation.",
                    param=name,
                )
        return super().to_internal_value(data)
