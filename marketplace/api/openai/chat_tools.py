"""Functions that a conversation's answer may call."""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from drf_spectacular.utils import extend_schema_field
from rest_framework import serializers
from rest_framework.validators import ProhibitSurrogateCharactersValidator

from marketplace.common.errors import UserError
from marketplace.fleet.models import Zone
from marketplace.fleet.selectors import find_zone_tokenizer
from marketplace.questions.asking import INVALID_SCHEMA
from marketplace.questions.tool_calls import (
    CALLS_MAX,
    CallReader,
    build_call_schema,
    find_call_form,
)
from workers.protocol.answer_schema import describe_schema_fault
from workers.protocol.record_messages import parse_tools
from workers.protocol.record_types import ValueRefusal

check_surrogates = ProhibitSurrogateCharactersValidator()
#: Functions of one request.
TOOLS_MAX = 64
_NAME = re.compile(r"[a-zA-Z0-9_-]{1,64}")
CHOICES = ("none", "auto", "required")
#: No form of an answer, or that of a text.
NO_FORM: dict[str, Any] = {
    "anyOf": [
        {"type": "null"},
        {"type": "object", "required": ["type"], "properties": {"type": {"const": "text"}}},
    ]
}


def build_tool_rules(no_form: Mapping[str, Any]) -> dict[str, Any]:
    """Build schema rules for tools: no response format beside them, no tool choice without them.

    ``no_form`` is what the schema allows as the response format of a request with tools.
    """
    no_call = {"required": ["tool_choice"], "properties": {"tool_choice": {"const": "none"}}}
    return {
        "if": {"required": ["tools"], "properties": {"tools": {"type": "array", "minItems": 1}}},
        "then": {"anyOf": [no_call, {"properties": no_form}]},
        "else": {"properties": {"tool_choice": {"enum": ["none", "auto", None]}}},
    }


#: A function as a JSON schema.
FUNCTION: dict[str, Any] = {
    "type": "object",
    "required": ["name"],
    "properties": {
        "name": {"type": "string", "pattern": f"^{_NAME.pattern}$"},
        "description": {"type": "string"},
        "parameters": {"type": "object", "additionalProperties": {}},
        "strict": {"type": ["boolean", "null"]},
    },
}


@extend_schema_field(
    {
        "type": "array",
        "maxItems": TOOLS_MAX,
        "items": {
            "type": "object",
            "required": ["type", "function"],
            "properties": {
                "type": {"type": "string", "enum": ["function"]},
                "function": FUNCTION,
            },
        },
    }
)
class ToolsField(serializers.Field):
    """Functions as chat templates are given them, as JSON; empty: none."""

    def to_internal_value(self, data: Any) -> str:
        try:
            tools = parse_tools({"tools": data})
        except ValueRefusal as refusal:
            raise serializers.ValidationError(refusal.message) from None
        except RecursionError:
            raise serializers.ValidationError("They are nested too deep.") from None
        check_surrogates(tools)
        functions = _list_functions(tools)
        names = [function["name"] for function in functions]
        if len(names) > TOOLS_MAX or len(set(names)) < len(names):
            raise serializers.ValidationError(
                f"Give at most {TOOLS_MAX} functions, each a name of its own."
            )
        if not all(map(_NAME.fullmatch, names)):
            raise serializers.ValidationError(
                "A function's name has 1 to 64 letters, digits, underscores and hyphens."
            )
        for function in functions:
            parameters = function.get("parameters")
            if parameters is not None and (fault := describe_schema_fault(parameters)):
                raise UserError(INVALID_SCHEMA, f"{function['name']}: {fault}", param="tools")
        return tools

    def to_representation(self, value: Any) -> Any:
        return value


@extend_schema_field(
    {
        "oneOf": [
            {"type": "string", "enum": list(CHOICES)},
            {
                "type": "object",
                "required": ["type", "function"],
                "properties": {
                    "type": {"type": "string", "enum": ["function"]},
                    "function": {
                        "type": "object",
                        "required": ["name"],
                        "properties": {"name": {"type": "string"}},
                    },
                },
            },
        ]
    }
)
class ToolChoiceField(serializers.Field):
    """One of ``CHOICES``, or a tuple with the name of the function that is to be called."""

    def to_internal_value(self, data: Any) -> str | tuple[str]:
        match data:
            case {"type": "function", "function": {"name": str(name)}}:
                return (name,)
            case str() if data in CHOICES:
                return data
        raise serializers.ValidationError("Give none, auto, required, or the function to call.")

    def to_representation(self, value: Any) -> Any:
        return value


@dataclass(frozen=True, slots=True)
class ToolUse:
    """What functions change about a question, and how calls are found in its answer."""

    tools: str
    #: Both empty where the model need not call.
    opening: str
    schema: str
    reader: CallReader


def find_tool_use(asked: Mapping[str, Any], zone: Zone) -> ToolUse | None:
    """What is to be done about the functions of a request; ``None``: nothing.

    Raises
    ------
    UserError
        ``unsupported_parameter``, ``invalid_request`` or ``invalid_schema``.
    """
    tools, choice = asked.get("tools") or "", asked.get("tool_choice") or "auto"
    if not tools or choice == "none":
        if choice not in ("none", "auto"):
            raise UserError("invalid_request", "There is no tool to choose.", param="tool_choice")
        return None
    if asked.get("response_format"):
        raise UserError(
            "unsupported_parameter",
            "An answer either calls tools or has a form. Leave one of them out.",
            param="response_format",
        )
    form = find_call_form(find_zone_tokenizer(zone))
    functions = _list_functions(tools)
    if isinstance(choice, tuple):
        functions = [one for one in functions if one["name"] == choice[0]]
        if not functions:
            raise UserError(
                "invalid_request", f"No tool is named {choice[0][:64]!r}.", param="tool_choice"
            )
    names = frozenset(function["name"] for function in functions)
    if choice == "auto":
        most = 1 if asked.get("parallel_tool_calls") is False else CALLS_MAX
        return ToolUse(tools, "", "", CallReader(form, names, most=most))
    schema = build_call_schema(form, functions)
    if fault := describe_schema_fault(schema):
        raise UserError(INVALID_SCHEMA, fault, param="tools")
    reader = CallReader(form, names, is_forced=True)
    return ToolUse(tools, form.opening, json.dumps(schema), reader)


def _list_functions(tools: str) -> list[dict[str, Any]]:
    return [tool["function"] for tool in json.loads(tools or "[]")]
