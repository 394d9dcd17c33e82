"""Answers of the API compared with its OpenAPI documents, whatever a test is about."""

from __future__ import annotations

import json
import re
from functools import cache
from pathlib import Path
from typing import Any

import jsonschema_rs
from django.http import HttpRequest
from django.http.response import HttpResponse, HttpResponseBase
from django.utils.deprecation import MiddlewareMixin

DOCUMENTS = Path(__file__).parents[1] / "docs" / "api"
#: What did not fit, until the fixture of the test that asked has looked.
UNFIT: list[str] = []
_PART = re.compile(r"<(?:\w+:)?(\w+)>")


class AnswerCheckMiddleware(MiddlewareMixin):
    """Notes each answer that its operation does not promise."""

    def process_response(
        self, request: HttpRequest, response: HttpResponseBase
    ) -> HttpResponseBase:
        match = request.resolver_match
        if match is not None and isinstance(response, HttpResponse):
            route = "/" + _PART.sub(r"{\1}", match.route)
            fault = find_fault(route, request.method or "", response)
            if fault:
                UNFIT.append(f"{request.method} {route} {response.status_code}: {fault}")
        return response


def find_fault(route: str, method: str, response: HttpResponse) -> str:
    """Say what of an answer is not as the documents say; empty where nothing is."""
    operation = _load_operations().get((route, method.lower()))
    if operation is None or response.status_code == 304:
        return ""
    promised = operation.get(str(response.status_code), operation["default"])
    content = promised.get("content", {})
    if not response.content and not content:
        return ""
    media_type = response.headers.get("Content-Type", "").partition(";")[0]
    if media_type not in content:
        return f"{media_type or 'nothing'} instead of {sorted(content)}"
    if not media_type.endswith("json"):
        return ""
    schema = json.dumps(content[media_type]["schema"])
    error = next(_compile(route, schema).iter_errors(json.loads(response.content)), None)
    return "" if error is None else f"{error.instance_path} {error.message}"[:500]


@cache
def _load_documents() -> dict[str, Any]:
    return {path.stem: json.loads(path.read_text()) for path in DOCUMENTS.glob("*.json")}


@cache
def _load_operations() -> dict[tuple[str, str], dict[str, Any]]:
    """What each operation answers, by status."""
    return {
        (path, method): operation["responses"]
        for document in _load_documents().values()
        for path, methods in document["paths"].items()
        for method, operation in methods.items()
    }


@cache
def _compile(route: str, schema: str) -> Any:
    document = _load_documents()["openai" if route.startswith("/v1/") else "market"]
    whole = json.loads(schema) | {"components": document["components"]}
    return jsonschema_rs.Draft202012Validator(whole)
