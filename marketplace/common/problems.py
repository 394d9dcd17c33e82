"""The shape of an error for programs: RFC 9457, with a ``code`` that they compare.

Below ``/v1/`` errors have the shape that OpenAI's clients read.
"""

from __future__ import annotations

from collections.abc import Mapping
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


#: Addresses that OpenAI's clients call.
OPENAI_ADDRESSES = "/v1/"
_OPENAI_TYPES = {
    401: "authentication_error",
    402: "payment_required_error",
    403: "permission_error",
    429: "rate_limit_error",
}
_STANDARD = frozenset({"type", "title", "status", "code", "detail", "param", "request_id"})


def build_openai_error(problem: Mapping[str, Any]) -> dict[str, Any]:
    """A problem as OpenAI's clients read errors; its own members stand beside the four of theirs.

    A body that they cannot read would be an error without a code and without words.
    """
    status = problem["status"]
    return {
        "error": {
            "message": problem["detail"],
            "type": "server_error"
            if status >= 500
            else _OPENAI_TYPES.get(status, "invalid_request_error"),
            "param": problem.get("param"),
            "code": problem["code"],
            **{name: value for name, value in problem.items() if name not in _STANDARD},
        }
    }


def build_early_error(
    *, path: str, code: str, detail: str, status: int
) -> tuple[dict[str, Any], str]:
    """Body and content type of an error that is sent before any view runs."""
    problem = build_problem_body(code=code, detail=detail, status=status)
    if path.startswith(OPENAI_ADDRESSES):
        return build_openai_error(problem), "application/json"
    return problem, CONTENT_TYPE
