"""Messages of conversations, as requests have them."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from drf_spectacular.utils import extend_schema_field
from rest_framework import serializers

from marketplace.api.openai.chat_tools import check_surrogates
from marketplace.api.text_patterns import NO_NUL
from marketplace.questions.tool_calls import CALLS_MAX
from workers.protocol.generation import ChatTurn
from workers.protocol.record_messages import parse_message
from workers.protocol.record_types import ValueRefusal

TEXT = {"type": "string", "pattern": NO_NUL}


NAME = {"type": "string", "minLength": 1, "pattern": NO_NUL}


#: Messages of one conversation.
MESSAGES_MAX = 1000


_CALLS = {"type": "array", "minItems": 1}


class TextField(serializers.CharField):
    """A text that may be empty, and stays as it is."""

    def __init__(self, **options: Any) -> None:
        super().__init__(allow_blank=True, trim_whitespace=False, **options)


#: A text, or parts with a text each.
CONTENT = {
    "anyOf": [
        TEXT,
        {
            "type": "array",
            "items": {
                "type": "object",
                "required": ["text"],
                "properties": {"type": {"type": "string"}, "text": TEXT},
            },
        },
    ]
}


@extend_schema_field(CONTENT)
class ContentField(TextField):
    """A text, or a list of text parts."""

    def to_internal_value(self, data: Any) -> str:
        if isinstance(data, list):
            texts = [part.get("text") for part in data if isinstance(part, Mapping)]
            parts = [text for text in texts if isinstance(text, str)]
            if len(parts) != len(data):
                raise serializers.ValidationError("Only parts with a text are read.")
            data = "".join(parts)
        return super().to_internal_value(data)


@extend_schema_field(
    {
        "type": "object",
        "required": ["function"],
        "properties": {
            "id": {"type": "string", "pattern": NO_NUL},
            "type": {"type": "string", "enum": ["function"]},
            "function": {
                "type": "object",
                "required": ["name"],
                "properties": {
                    "name": NAME,
                    "arguments": {
                        "type": "string",
                        "contentMediaType": "application/json",
                        "description": "A JSON object as text.",
                    },
                },
            },
        },
    }
)
class CallField(serializers.DictField):
    """A call, which ``parse_message`` reads."""


class MessageRequest(serializers.Serializer[Any]):
    #: What ``parse_message`` asks for beyond single members.
    schema_rules = {
        "if": {"required": ["tool_calls"], "properties": {"tool_calls": _CALLS}},
        "then": {"properties": {"role": {"const": "assistant"}}},
        "else": {"required": ["content"], "properties": {"content": {"type": ["string", "array"]}}},
    }
    role = serializers.ChoiceField(
        ["developer", "system", "user", "assistant", "tool"], help_text="Who wrote it."
    )
    content = ContentField(
        required=False,
        allow_null=True,
        help_text="What was written: a text, or parts with a text each; null beside calls.",
    )
    tool_calls = serializers.ListField(
        child=CallField(),
        required=False,
        allow_null=True,
        max_length=CALLS_MAX,
        help_text="Functions that an assistant's message calls.",
    )
    tool_call_id = TextField(
        required=False, allow_null=True, help_text="The call that a tool's message answers."
    )
    name = TextField(required=False, allow_null=True, help_text="The tool that answers.")

    def to_internal_value(self, data: Any) -> ChatTurn:
        """The message as a turn, read as rows of training files are."""
        given = super().to_internal_value(data)
        known = {name: value for name, value in given.items() if value is not None}
        if not known.get("tool_calls"):
            # Programs send an empty list where there is no call.
            known.pop("tool_calls", None)
        if known["role"] != "tool":
            # Of others it is somebody's name, which templates have no place for.
            known.pop("name", None)
        try:
            said = parse_message(known, (), train=False)
        except ValueRefusal as refusal:
            where = ".".join(map(str, refusal.path)) or "content"
            raise serializers.ValidationError({where: refusal.message}) from None
        except RecursionError:
            raise serializers.ValidationError({"tool_calls": "They are nested too deep."}) from None
        check_surrogates(said.calls)
        return ChatTurn(said.role, said.text, said.calls, call_id=said.call_id, name=said.name)
