"""What is written from what the API takes: types and operations of the SDK, a page of a guide."""

from __future__ import annotations

import json
import textwrap
from collections.abc import Iterator, Mapping
from string import Formatter
from typing import Any, cast

from rest_framework import serializers

from marketplace.api.idempotency import HEADER as IDEMPOTENCY_KEY
from marketplace.api.market.requests import TermsRequest
from marketplace.api.market.setting_schemas import COMPONENTS, build_setting_schemas
from marketplace.api.openapi import render_schema
from marketplace.auction.bidding.job_request import ASKED_AS_IS

SDK_TERMS = "frontend/sdk/finetender/terms.py"
SDK_OPERATIONS = "frontend/sdk/finetender/operation_list.py"
GUIDE = "docs/guides/settings.md"
OPERATIONS_GUIDE = "docs/guides/operations.md"
_SDK_HEAD = '''"""The terms of a job, as the market takes them.

Written by ``manage.py settings_write`` from the market's own definitions; not edited by hand.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Literal, TypedDict
'''
_SDK_OPERATIONS_HEAD = '''"""Every operation of ``/api`` and ``/v1``, by its name there.

Written by ``manage.py settings_write``; not edited by hand.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Route:
    """Where an operation is, and how it may be asked for."""

    method: str
    path: str
    #: It is done once under an idempotency key.
    takes_key: bool = False
    #: A list that comes in pages: its query has ``limit`` and ``after``.
    is_paged: bool = False
    #: It answers with a file or a stream, not with JSON.
    is_file: bool = False
    #: Member of the form that a file goes along as.
    file_member: str = "file"


OPERATIONS: Mapping[str, Route] = {'''
_GUIDE_HEAD = (
    "# The settings of a job\n\nWritten by `python manage.py settings_write`.\n\n"
    "`adapter`, `training` and `preparation` are objects of a quote, a bid and a bundle, over "
    "`/api`, in the SDK, and in the `bid` of OpenAI's clients. Leave out what you have no opinion "
    "on. Where the default is `auto`, the market chooses by your data, and the answer's `choices` "
    "say what and why. A zone may sell shorter sequences than this table says. A name that is not "
    "here is refused with the nearest one that is.\n"
)
_OPERATIONS_GUIDE_HEAD = (
    "# Every operation, from the SDK and the command line\n\n"
    "Written by `python manage.py settings_write`.\n\n"
    "`Client` and `AsyncClient` ask for any operation by its name in the OpenAPI documents; parts "
    "of the address and of the query are named, `body` has the members of the request, and `file` "
    "goes along. What people do every day has calls and commands of its own ([sdk.md](sdk.md)). "
    "Chats are streamed by `client.chat`, a job's events by `client.watch`.\n\n"
    "| what it does | address | SDK | command |\n|--|--|--|--|"
)
_KINDS: Mapping[type[serializers.Field], str] = {
    serializers.BooleanField: "bool",
    serializers.CharField: "str",
    serializers.DictField: "Mapping[str, str]",
}
_PYTHON = {"integer": "int", "number": "float", "boolean": "bool", "string": "str"}


def render_sdk_terms() -> str:
    """Write the module ``finetender.terms``."""
    classes = [
        _render_class(
            name,
            schema["description"],
            {
                member: (of["description"], _name_python(of))
                for member, of in schema["properties"].items()
            },
        )
        for name, schema in build_setting_schemas().items()
    ]
    request = cast(serializers.Serializer[Any], TermsRequest())
    terms = {
        name: (str(field.help_text), _name_field(name, field))
        for name, field in request.fields.items()
        if name in ASKED_AS_IS
    }
    classes.append(_render_class("JobTerms", "What a bid and a quote may say of a job.", terms))
    return "\n\n".join([_SDK_HEAD, *classes])


def render_sdk_operations() -> str:
    """Write the module ``finetender.operation_list``."""
    lines = [_SDK_OPERATIONS_HEAD]
    for path, method, operation in _list_operations():
        names = [parameter["name"] for parameter in operation.get("parameters", ())]
        told = [json.dumps(method.upper()), json.dumps(path)]
        told += ["takes_key=True"] if IDEMPOTENCY_KEY in names else []
        told += ["is_paged=True"] if "limit" in names else []
        told += ["is_file=True"] if _is_file(operation) else []
        member = _find_file_member(operation)
        told += [] if member == "file" else [f"file_member={json.dumps(member)}"]
        name, arguments = json.dumps(operation["operationId"]), ", ".join(told)
        line = f"    {name}: Route({arguments}),"
        is_long = len(line) > 100
        lines += [f"    {name}: Route(", f"        {arguments}", "    ),"] if is_long else [line]
    return "\n".join([*lines, "}", ""])


def render_operations_guide() -> str:
    """Write the page ``docs/guides/operations.md``."""
    lines = [_OPERATIONS_GUIDE_HEAD]
    for path, method, operation in _list_operations():
        name = operation["operationId"]
        parts = [part for _, part, _, _ in Formatter().parse(path) if part]
        asked = "".join(f", {part}=…" for part in parts)
        if _is_file(operation):
            call = f'download_file("{name}", "FILE"{asked})'
        else:
            call = f'call("{name}"{asked})'
        command = " ".join([f"finetender api {name}", *(f"{part}=…" for part in parts)])
        told = operation.get("summary") or operation.get("description", "")
        lines.append(
            f"| {told.splitlines()[0] if told else ''} | `{method.upper()} {path}` "
            f"| `client.{call}` | `{command}` |"
        )
    return "\n".join([*lines, ""])


def _list_operations() -> Iterator[tuple[str, str, Mapping[str, Any]]]:
    """Path, method and description of each operation, those of ``/api`` first."""
    for surface in ("api/", "v1/"):
        for path, methods in json.loads(render_schema(surface))["paths"].items():
            for method, operation in methods.items():
                yield path, method, operation


def _is_file(operation: Mapping[str, Any]) -> bool:
    content = operation["responses"].get("200", {}).get("content", {})
    return bool(content) and "application/json" not in content


def _find_file_member(operation: Mapping[str, Any]) -> str:
    """The member of an operation's form that is a file; ``file`` where it has none."""
    content = operation.get("requestBody", {}).get("content", {})
    given = content.get("multipart/form-data", {}).get("schema", {}).get("$ref", "")
    schemas = json.loads(render_schema("v1/"))["components"]["schemas"]
    members = schemas.get(given.rpartition("/")[2], {}).get("properties", {})
    return next((name for name, of in members.items() if of.get("format") == "binary"), "file")


def render_settings_guide() -> str:
    """Write the page ``docs/guides/settings.md``."""
    schemas = build_setting_schemas()
    parts = [_GUIDE_HEAD]
    for group, component in COMPONENTS.items():
        lines = [f"## {group}", "", schemas[component]["description"], ""]
        lines += ["| setting | values | default | |", "|--|--|--|--|"]
        lines += [
            f"| `{name}` | {_show_values(of)} | `{_show_default(of['default'])}` | "
            f"{of['description']} |"
            for name, of in schemas[component]["properties"].items()
        ]
        parts.append("\n".join(lines) + "\n")
    return "\n".join(parts)


def _render_class(name: str, words: str, members: Mapping[str, tuple[str, str]]) -> str:
    lines = [f"class {name}(TypedDict, total=False):", f'    """{words}"""', ""]
    for member, (text, kind) in members.items():
        lines += textwrap.wrap(text, 94, initial_indent="    #: ", subsequent_indent="    #: ")
        lines += _wrap_member(f"    {member}: {kind}")
    return "\n".join(lines) + "\n"


def _wrap_member(line: str) -> list[str]:
    """Break a list of many literals as the formatter does."""
    if len(line) <= 100:
        return [line]
    head, _, rest = line.partition("Literal[")
    values = [f"            {value}," for value in rest.rstrip("]").split(", ")]
    return [head, "        Literal[", *values, "        ]", "    ]"]


def _name_field(name: str, field: serializers.Field) -> str:
    kind = COMPONENTS.get(name) or next(
        kind for of, kind in _KINDS.items() if isinstance(field, of)
    )
    return f"{kind} | None" if field.allow_null else kind


def _name_python(schema: Mapping[str, Any]) -> str:
    if "anyOf" in schema:
        return " | ".join(_name_python(each) for each in schema["anyOf"])
    if "enum" in schema:
        return f"Literal[{', '.join(json.dumps(value) for value in schema['enum'])}]"
    if schema["type"] == "array":
        return f"Sequence[{_name_python(schema['items'])}]"
    if schema["type"] == "object":
        return "Mapping[str, str]"
    return _PYTHON[schema["type"]]


def _show_values(schema: Mapping[str, Any]) -> str:
    if "anyOf" in schema:
        return ", or ".join(_show_values(each) for each in schema["anyOf"])
    if "enum" in schema:
        return ", ".join(f"`{value}`" for value in schema["enum"])
    if schema["type"] == "array":
        return f"list of {_show_values(schema['items'])}"
    if schema["type"] == "object":
        values = schema["additionalProperties"]
        return f"for each name {'one of ' if 'enum' in values else ''}{_show_values(values)}"
    if schema["type"] == "boolean":
        return "`true`, `false`"
    if schema["type"] == "string":
        return f"text of up to {schema['maxLength']:,} characters"
    kind = "whole number" if schema["type"] == "integer" else "number"
    if "exclusiveMaximum" in schema:
        return f"{kind} from {schema['minimum']:g}, below {schema['exclusiveMaximum']:g}"
    return f"{kind} from {_show_number(schema['minimum'])} to {_show_number(schema['maximum'])}"


def _show_number(value: float) -> str:
    return f"{value:,}" if isinstance(value, int) else f"{value:g}"


def _show_default(value: Any) -> str:
    return value if isinstance(value, str) and value else json.dumps(value)


#: What is checked in, and what writes it.
WRITTEN = {
    SDK_TERMS: render_sdk_terms,
    SDK_OPERATIONS: render_sdk_operations,
    GUIDE: render_settings_guide,
    OPERATIONS_GUIDE: render_operations_guide,
}
