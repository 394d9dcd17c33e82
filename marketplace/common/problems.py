"""The one shape of an error for programs: RFC 9457, with a ``code`` that they compare."""

from __future__ import annotations

from http import HTTPStatus
from typing import Any

CONTENT_TYPE = "application/problem+json"
#: RFC 9457 wants a URI; it names the kind of problem and need not be a page.
TYPE_PREFIX = "urn:finetender:problem:"


def build_problem_body(*, code: str, detail: str, status: int) -> dict[str, Any]:
    return {
        "type": TYPE_PREFIX + code,
        "title": HTTPStatus(status).phrase,
        "status": int(status),
        "code": code,
        "detail": detail,
    }
