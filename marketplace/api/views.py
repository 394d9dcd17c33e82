"""What every address of the market's API has in common."""

from __future__ import annotations

import asyncio
import hashlib
import json
import re
from collections.abc import Callable, Coroutine, Mapping, Sequence
from functools import partial
from http import HTTPStatus
from typing import Any

from django.http import HttpRequest, HttpResponse
from django.http.response import HttpResponseBase
from drf_spectacular.utils import OpenApiParameter
from rest_framework.exceptions import ParseError
from rest_framework.negotiation import DefaultContentNegotiation
from rest_framework.parsers import JSONParser
from rest_framework.renderers import JSONRenderer
from rest_framework.request import Request
from rest_framework.response import Response
from rest_framework.views import APIView

from marketplace.accounts.audit import record_call
from marketplace.api.batching import Batcher
from marketplace.api.callers import AUTHENTICATION, HasScope, read_keys_ahead
from marketplace.api.problems import ProblemRenderer, exception_handler
from marketplace.api.throttles import (
    build_rate_limit_headers,
    check_rate_limit,
    choose_counter,
    note_counted,
)
from marketplace.api.versions import HEADER as VERSION_HEADER
from marketplace.api.versions import VERSIONS, choose_version
from marketplace.common.current_request import REQUEST_ID, request_id_of
from marketplace.common.errors import NotFound, UserError
from marketplace.common.request_rates import Counter, count_requests
from marketplace.common.threads import run_in_thread

#: Largest body of a request that shares its thread with others, and most of these at a time.
SHORT_BYTES = 64 * 1024
SHORT_BATCH = 16

_SURROGATE = re.compile("[\ud800-\udfff]")


def sign_problem(response: Response, request_id: str) -> None:
    """Put the request's id into a problem, so that support can find the request."""
    if response.status_code >= 400 and isinstance(response.data, dict):
        response.data.setdefault("request_id", request_id)


def compute_etag(content: bytes) -> str:
    """A name for this very content: who has it asks with ``If-None-Match`` and is sent none."""
    return f'"{hashlib.blake2b(content, digest_size=16).hexdigest()}"'


def is_known(etag: str, if_none_match: str | None) -> bool:
    """Whether an ``If-None-Match`` names the content."""
    given = [each.strip().removeprefix("W/") for each in (if_none_match or "").split(",")]
    return etag in given or given == ["*"]


class StrictJSONParser(JSONParser):
    """JSON that is too deep to read, or holds what is no text, is malformed: no fault of ours.

    So is an object with a member twice: which of two amounts is meant is not for us to guess.
    """

    takes_last = False

    def parse(self, stream: Any, media_type: Any = None, parser_context: Any = None) -> Any:
        text = stream.read()
        try:
            value = json.loads(
                text.decode(),
                parse_constant=_refuse_constant,
                object_pairs_hook=None if self.takes_last else build_object,
            )
            # Only an escape can bring in what is no text.
            is_text = b"\\u" not in text or _is_text(value)
        except ValueError as error:
            raise ParseError(f"JSON parse error - {error}") from None
        except RecursionError:
            raise ParseError("The JSON is nested too deeply.") from None
        if not is_text:
            raise ParseError("A text holds half of a surrogate pair. Leave it out.")
        return value


class LastMemberParser(StrictJSONParser):
    """As OpenAI reads it: of a member that comes twice the last one counts."""

    takes_last = True


def build_object(members: Sequence[tuple[str, Any]]) -> dict[str, Any]:
    """A JSON object of its members.

    Raises
    ------
    ValueError
        One comes twice.
    """
    found: dict[str, Any] = {}
    for name, value in members:
        if name in found:
            raise ValueError(f"an object has {json.dumps(name[:100])} twice; send it once")
        found[name] = value
    return found


def _refuse_constant(name: str) -> None:
    raise ValueError(f"{name} is no number of JSON")


def _is_text(value: Any) -> bool:
    """Whether UTF-8 can hold every text in a JSON value."""
    if isinstance(value, str):
        return not _SURROGATE.search(value)
    if isinstance(value, dict):
        return all(_is_text(key) and _is_text(item) for key, item in value.items())
    return not isinstance(value, list) or all(map(_is_text, value))


class AlwaysJson(DefaultContentNegotiation):
    """For clients that ask for another format than JSON and read errors as JSON."""

    def select_renderer(self, request: Any, renderers: Any, format_suffix: Any = None) -> Any:
        return renderers[0], renderers[0].media_type


class MarketView(APIView):
    """JSON in and out, API key or session, problems with a code, limits, a request id.

    A view's methods run on a thread. What they return may be a coroutine, which is awaited on the
    event loop and gives the response: a request that waits holds no thread.
    """

    view_is_async = True
    #: DRF's own request, once ``dispatch`` has begun.
    request: Request  # type: ignore[assignment]
    #: Short JSON requests share one thread: a crowd's requests on a thread each cost several times
    #: as much. A method must do no slow work before it returns its coroutine then.
    shares_thread = False

    authentication_classes = AUTHENTICATION
    permission_classes = [HasScope]
    parser_classes = [StrictJSONParser]
    renderer_classes = [JSONRenderer, ProblemRenderer]
    #: How errors are sent.
    error_renderer: type[JSONRenderer] = ProblemRenderer
    #: Scope of an API key by method; a method that is not named is public.
    scopes: dict[str, str] = {}
    #: Whether its POST is done once under an ``Idempotency-Key``.
    takes_idempotency_key = False
    #: Members of the query by method; all others are refused, unless ``takes_any_query``.
    queries: Mapping[str, Sequence[OpenApiParameter]] = {}
    takes_any_query = False

    def initialize_request(self, request: Any, *args: Any, **kwargs: Any) -> Request:
        self.request_id = request_id_of(request.headers.get(REQUEST_ID, ""))
        return super().initialize_request(request, *args, **kwargs)

    async def dispatch(self, request: HttpRequest, *args: Any, **kwargs: Any) -> HttpResponseBase:
        self.args, self.kwargs = args, kwargs
        self.request = self.initialize_request(request, *args, **kwargs)
        self.headers = self.default_response_headers
        try:
            if self.shares_thread and _is_short(request):
                response = await asyncio.wrap_future(_short_requests.submit(self))
            else:
                response = await run_in_thread(partial(_begin, self))
            if isinstance(response, Coroutine):
                response = await response
        except Exception as error:
            response = self.handle_exception(error)
        self.response = self.finalize_response(self.request, response, *args, **kwargs)  # type: ignore[arg-type]
        if not isinstance(self.response, Response):
            return self.response
        # Rendered here, since Django would go to a thread for it.
        content, headers = self.response.rendered_content, dict(self.response.headers.items())
        status = self.response.status_code
        if request.method == "GET" and status == HTTPStatus.OK:
            headers["ETag"] = compute_etag(content)
            if is_known(headers["ETag"], request.headers.get("If-None-Match")):
                content, status = b"", HTTPStatus.NOT_MODIFIED
        return HttpResponse(content, status=status, headers=headers)

    def admit(self) -> Counter:
        """Check who calls and what for; gives what the request counts for."""
        self.version = choose_version(self.request.headers.get(VERSION_HEADER))
        self.initial(self.request, *self.args, **self.kwargs)
        return choose_counter(self.request, self)

    def run_method(self) -> Any:
        """Do what the request asks for; the limit of its caller comes first."""
        check_rate_limit(self.request)
        self._check_query()
        name = (self.request.method or "").lower()
        method: Any = getattr(self, name, None) if name in self.http_method_names else None
        method = method or self.http_method_not_allowed
        return method(self.request, *self.args, **self.kwargs)

    def _check_query(self) -> None:
        if self.takes_any_query:
            return
        method = self.request.method or ""
        known = [one.name for one in self.queries.get("GET" if method == "HEAD" else method, ())]
        unknown = sorted(set(self.request.query_params) - set(known))
        if unknown and method in self.allowed_methods:
            there = f"there are {', '.join(known)}" if known else "this address takes none"
            raise UserError(
                "unknown_parameter",
                f"There is no parameter {unknown[0][:60]!r} here; {there}.",
                param=unknown[0][:60],
            )
        # Of two values one would be dropped without a word.
        if twice := [one for one in known if len(self.request.query_params.getlist(one)) > 1]:
            raise UserError(
                "repeated_parameter", f"{twice[0]!r} is given twice. Send it once.", param=twice[0]
            )

    def get_exception_handler(self) -> Any:
        return exception_handler

    def shape_error(self, response: Response) -> None:
        """Complete an error, which ``build_problem`` made."""
        sign_problem(response, self.request_id)

    def finalize_response(
        self, request: Request, response: Any, *args: Any, **kwargs: Any
    ) -> Response:
        if isinstance(response, Response) and response.status_code >= 400:
            self.shape_error(response)
            renderer = self.error_renderer()
            request.accepted_renderer = renderer  # type: ignore[attr-defined]
            request.accepted_media_type = renderer.media_type  # type: ignore[attr-defined]
        response = super().finalize_response(request, response, *args, **kwargs)
        response[REQUEST_ID] = self.request_id
        response[VERSION_HEADER] = getattr(self, "version", max(VERSIONS)).isoformat()
        for name, value in build_rate_limit_headers(request).items():
            response[name] = value
        return response


def _is_short(request: HttpRequest) -> bool:
    length = request.headers.get("content-length", "")
    is_json = request.content_type == "application/json"
    return is_json and length.isdigit() and int(length) <= SHORT_BYTES


def _begin(view: MarketView) -> Any:
    [result] = _begin_each([view])
    if isinstance(result, Exception):
        raise result
    return result


def _begin_each(views: list[MarketView]) -> list[Any]:
    """Check who calls, scopes and limits, and run the methods, or say what refuses a request.

    Those requests that are allowed are counted together.
    """
    counters = [_attempt(view.admit) for view in views]
    allowed = [counter for counter in counters if isinstance(counter, Counter)]
    counted = iter(count_requests(allowed) if allowed else ())
    results: list[Any] = []
    for view, counter in zip(views, counters, strict=True):
        if isinstance(counter, Counter):
            note_counted(view.request, next(counted))
            results.append(_attempt(view.run_method))
        else:
            results.append(counter)
        record_call(view.request, scopes=view.scopes, done=_is_done(results[-1]))
    return results


def _is_done(result: Any) -> bool:
    return not isinstance(result, Exception) and getattr(result, "status_code", 200) < 400


def _begin_crowd(views: list[MarketView]) -> list[Any]:
    read_keys_ahead(view.request for view in views)
    return _begin_each(views)


def _attempt(work: Callable[[], Any]) -> Any:
    """What the work gives or raises."""
    try:
        return work()
    except Exception as error:
        return error


_short_requests: Batcher[MarketView, Any] = Batcher(
    _begin_crowd, name="short-requests", limit=SHORT_BATCH, pace_s=lambda _: 0.0
)


class UnknownAddressView(MarketView):
    """Every other address below ``/api/``."""

    authentication_classes = []
    permission_classes = []

    def run_method(self) -> Any:
        check_rate_limit(self.request)
        raise NotFound(
            "not_found",
            f"There is nothing at {self.request.path}; /api/schema lists every address.",
        )
