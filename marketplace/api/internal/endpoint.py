"""What every address of the nodes' API has in common: who calls, what they send, how we refuse.

Errors are problem documents (RFC 9457) with ``code`` and ``detail``, as the market's own API gives
them. An answer of 500 or above tells the node to try again; any other refusal is final.
"""

from __future__ import annotations

import functools
import logging
from collections.abc import Callable
from http import HTTPStatus
from typing import Any, TypeVar

from django.core.exceptions import RequestDataTooBig
from django.db import DataError, InterfaceError, OperationalError
from django.http import HttpRequest, HttpResponse, JsonResponse
from django.http.request import UnreadablePostError
from django.views.decorators.csrf import csrf_exempt

from marketplace.common import clock
from marketplace.common.errors import DiskFull, UserError, is_disk_full
from marketplace.common.problems import CONTENT_TYPE, build_problem_body
from marketplace.fleet.models import Node
from marketplace.fleet.selectors import find_node_by_api_token
from marketplace.fleet.services import note_token_use
from workers.protocol.wire import ProtocolError, dumps, loads

log = logging.getLogger(__name__)

T = TypeVar("T")
_BEARER = "Bearer "


class NodeUnknown(UserError):
    """The bearer token is missing or unknown."""

    default_status = 401

    def __init__(self) -> None:
        super().__init__(
            "unknown_node_token",
            "The node's token is not known, or was revoked. Send the one that it got when it "
            "joined, as a bearer token, or join again with a token from the provider console.",
        )


View = Callable[..., HttpResponse]


def node_endpoint(method: str) -> Callable[[View], View]:
    """A view for one method; every exception becomes a problem document."""

    def decorate(view: View) -> View:
        @csrf_exempt
        @functools.wraps(view)
        def answer(request: HttpRequest, **kwargs: Any) -> HttpResponse:
            if request.method != method:
                return refuse_method(method)
            try:
                return view(request, **kwargs)
            except Exception as error:
                return build_refusal(request, error)

        return answer

    return decorate


def authenticate_node(request: HttpRequest) -> Node:
    """The node whose token the request bears.

    Raises
    ------
    NodeUnknown
    """
    now, token = clock.now(), find_bearer_token(request)
    node = find_node_by_api_token(token, now=now)
    if node is None:
        raise NodeUnknown
    note_token_use(node=node, token=token, now=now)
    return node


def find_bearer_token(request: HttpRequest) -> str:
    """The token a request bears; empty where it bears none, which is no node's."""
    header = request.headers.get("Authorization", "")
    return header.removeprefix(_BEARER) if header.startswith(_BEARER) else ""


def read_message(request: HttpRequest, kind: type[T]) -> T:
    """The message in a request's body.

    Raises
    ------
    UserError
        ``invalid_message``, with the sentence that names the value at fault.
    """
    try:
        return loads(kind, request.body)
    except ProtocolError as error:
        raise UserError("invalid_message", f"{error}.") from None


def build_reply(value: Any) -> HttpResponse:
    return HttpResponse(dumps(value), content_type="application/json")


def refuse_method(method: str) -> HttpResponse:
    response = build_problem(
        code="method_not_allowed",
        detail=f"Use {method} here.",
        status=HTTPStatus.METHOD_NOT_ALLOWED,
    )
    response["Allow"] = method
    return response


def build_refusal(request: HttpRequest, error: Exception) -> HttpResponse:
    """An exception as a problem document."""
    if is_disk_full(error):
        log.error("%r failed", request.path, exc_info=error)
        error = DiskFull()
    if isinstance(error, UserError):
        response = build_problem(code=error.code, detail=error.message, status=error.status)
        if error.status == HTTPStatus.UNAUTHORIZED:
            response["WWW-Authenticate"] = "Bearer"
        return response
    if isinstance(error, RequestDataTooBig):
        return build_problem(
            code="message_too_large",
            detail="The message is too large. Send fewer events at once.",
            status=HTTPStatus.REQUEST_ENTITY_TOO_LARGE,
        )
    if isinstance(error, UnreadablePostError):
        return build_problem(
            code="message_cut_off", detail="The body broke off.", status=HTTPStatus.BAD_REQUEST
        )
    if isinstance(error, DataError):
        return build_problem(
            code="invalid_message",
            detail="The message holds a value that cannot be stored.",
            status=HTTPStatus.BAD_REQUEST,
        )
    log.error("%r failed", request.path, exc_info=error)
    if isinstance(error, (OperationalError, InterfaceError, OSError)):
        return build_problem(
            code="try_again",
            detail="The market cannot answer now. Try again.",
            status=HTTPStatus.SERVICE_UNAVAILABLE,
        )
    return build_problem(
        code="internal_error",
        detail="The market failed to answer. Try again.",
        status=HTTPStatus.INTERNAL_SERVER_ERROR,
    )


def build_problem(*, code: str, detail: str, status: int) -> HttpResponse:
    return JsonResponse(
        build_problem_body(code=code, detail=detail, status=status),
        status=status,
        content_type=CONTENT_TYPE,
    )
