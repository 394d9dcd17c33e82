"""Errors of the market's own API: RFC 9457 ``application/problem+json`` with a ``code``.

``detail`` says what to do next. Programs compare ``code``; it never changes once
published. What else helps them has members of its own, such as ``posted_price``.
"""

from __future__ import annotations

import logging
from typing import Any

from django.core.exceptions import PermissionDenied, RequestDataTooBig, SuspiciousOperation
from django.db import DataError, OperationalError
from django.http import Http404
from rest_framework import exceptions
from rest_framework.renderers import JSONRenderer
from rest_framework.response import Response
from rest_framework.views import set_rollback

from marketplace.common.errors import DiskFull, StorageUnavailable, UserError, is_disk_full
from marketplace.common.problems import CONTENT_TYPE, build_problem_body

log = logging.getLogger(__name__)

RETRY_SOON_S = 1


class ProblemRenderer(JSONRenderer):
    media_type = CONTENT_TYPE
    charset = None


def build_problem(
    *,
    code: str,
    detail: str,
    status: int,
    param: str | None = None,
    extra: dict[str, Any] | None = None,
    headers: dict[str, str] | None = None,
) -> Response:
    """An error response; ``extra`` members stand beside the standard ones."""
    body = build_problem_body(code=code, detail=detail, status=status)
    if param is not None:
        body["param"] = param
    body.update({key: value for key, value in (extra or {}).items() if key not in body})
    return Response(body, status=status, headers=headers, content_type=CONTENT_TYPE)


def exception_handler(error: Exception, context: dict[str, Any]) -> Response:
    """Any exception of a view as a problem; what was begun in the database is undone."""
    set_rollback()
    if is_disk_full(error):
        log.error("%r failed", context["request"].path, exc_info=error)
        error = DiskFull()
    if isinstance(error, UserError):
        headers = {"Retry-After": str(RETRY_SOON_S)} if error.extra.get("retry") else None
        return build_problem(
            code=error.code,
            detail=error.message,
            status=error.status,
            param=error.param,
            extra=error.extra,
            headers=headers,
        )
    if isinstance(error, Http404):
        error = exceptions.NotFound()
    elif isinstance(error, PermissionDenied):
        error = exceptions.PermissionDenied(*error.args)
    if isinstance(error, exceptions.ValidationError):
        return _validation_problem(error)
    if isinstance(error, exceptions.APIException):
        return _api_problem(error)
    if isinstance(error, RequestDataTooBig):
        return build_problem(
            code="body_too_large", detail="The body is too large. Send less at once.", status=413
        )
    if isinstance(error, (SuspiciousOperation, DataError)):
        # Too many fields or files of a form, or a value that the database cannot hold.
        return build_problem(
            code="malformed_request",
            detail="The request has too many parts, or a value that cannot be stored.",
            status=400,
        )
    log.error("%r failed", context["request"].path, exc_info=error)
    if isinstance(error, OperationalError):
        return build_problem(
            code="busy",
            detail="The market is busy for a moment; send the same request again.",
            status=503,
            headers={"Retry-After": str(RETRY_SOON_S)},
        )
    if isinstance(error, StorageUnavailable):
        return build_problem(
            code="storage_unavailable",
            detail="The market's file storage does not answer. Send the same request again.",
            status=503,
            headers={"Retry-After": str(RETRY_SOON_S)},
        )
    return build_problem(
        code="internal_error",
        detail="The fault is ours and has been logged. Try again, or tell us the request id.",
        status=500,
    )


def _validation_problem(error: exceptions.ValidationError) -> Response:
    errors = list(_flatten(error.detail, ""))
    param, first = errors[0]
    return build_problem(
        code="invalid_request",
        detail=f"{param}: {first}" if param else first,
        status=400,
        param=param or None,
        extra={"errors": [{"param": name, "detail": text} for name, text in errors]},
    )


def _flatten(detail: Any, path: str):
    if isinstance(detail, dict):
        for name, inner in detail.items():
            joined = path if name == "non_field_errors" else f"{path}.{name}".lstrip(".")
            yield from _flatten(inner, joined)
    elif isinstance(detail, list):
        for index, inner in enumerate(detail):
            nested = isinstance(inner, (dict, list))
            yield from _flatten(inner, f"{path}[{index}]" if nested else path)
    else:
        yield path, str(detail)


#: What DRF's own errors are called here, and what to do about them.
_API_PROBLEMS: dict[type[exceptions.APIException], tuple[str, str]] = {
    exceptions.NotAuthenticated: (
        "not_signed_in",
        "Send 'Authorization: Bearer ft_…' with an API key, or sign in.",
    ),
    exceptions.NotFound: ("not_found", "There is nothing at this address for you."),
    exceptions.MethodNotAllowed: ("method_not_allowed", ""),
    exceptions.NotAcceptable: ("not_acceptable", "This address answers with JSON."),
    exceptions.UnsupportedMediaType: ("unsupported_media_type", ""),
    exceptions.ParseError: ("malformed_request", ""),
    exceptions.AuthenticationFailed: ("invalid_api_key", ""),
    exceptions.PermissionDenied: ("not_allowed", ""),
}


def _api_problem(error: exceptions.APIException) -> Response:
    headers: dict[str, str] = {}
    challenge = getattr(error, "auth_header", None)
    if challenge:
        headers["WWW-Authenticate"] = challenge
    if isinstance(error, exceptions.Throttled):
        wait_s = max(1, int(error.wait or 1))
        headers |= {"Retry-After": str(wait_s), "retry-after-ms": str(wait_s * 1000)}
        return build_problem(
            code="too_many_requests",
            detail=f"Too many requests; try again in {wait_s} s.",
            status=429,
            headers=headers,
        )
    code, detail = _API_PROBLEMS.get(type(error), ("invalid_request", ""))
    return build_problem(
        code=code, detail=detail or str(error.detail), status=error.status_code, headers=headers
    )
