"""What every address of the market's API has in common."""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import Any, ParamSpec, TypeVar

from asgiref.sync import sync_to_async
from django.db import connection
from django.http import HttpRequest
from rest_framework.exceptions import ParseError
from rest_framework.parsers import JSONParser
from rest_framework.renderers import JSONRenderer
from rest_framework.request import Request
from rest_framework.response import Response
from rest_framework.views import APIView

from marketplace.api.callers import AUTHENTICATION, HasScope
from marketplace.api.problems import CONTENT_TYPE, ProblemRenderer, exception_handler
from marketplace.api.throttles import CallerThrottle, rate_limit_headers
from marketplace.common.errors import NotFound
from marketplace.common.ids import new_id

P = ParamSpec("P")
T = TypeVar("T")

REQUEST_ID = "X-Request-Id"
_GIVEN_ID = re.compile(r"[A-Za-z0-9_.:-]{1,100}")


def request_id_of(given: str) -> str:
    """The caller's id of a request, or one of ours where there is none or a hostile one."""
    return given if _GIVEN_ID.fullmatch(given) else new_id("req")


def sign_problem(response: Response, request_id: str) -> None:
    """Put the request's id into a problem, for whoever asks us about it."""
    if response.status_code >= 400 and isinstance(response.data, dict):
        response.data.setdefault("request_id", request_id)


class StrictJSONParser(JSONParser):
    """JSON that is too deep to read is malformed, not a fault of ours."""

    def parse(self, stream: Any, media_type: Any = None, parser_context: Any = None) -> Any:
        try:
            return super().parse(stream, media_type, parser_context)
        except RecursionError:
            raise ParseError("The JSON is nested too deeply.") from None


class MarketView(APIView):
    """JSON in and out, API key or session, problems with a code, limits, a request id."""

    authentication_classes = AUTHENTICATION
    permission_classes = [HasScope]
    throttle_classes = [CallerThrottle]
    parser_classes = [StrictJSONParser]
    renderer_classes = [JSONRenderer, ProblemRenderer]
    #: Scope of an API key by method; a method that is not named is public.
    scopes: dict[str, str] = {}

    def initialize_request(self, request: Any, *args: Any, **kwargs: Any) -> Request:
        self.request_id = request_id_of(request.headers.get(REQUEST_ID, ""))
        return super().initialize_request(request, *args, **kwargs)

    def get_exception_handler(self) -> Any:
        return exception_handler

    def finalize_response(
        self, request: Request, response: Any, *args: Any, **kwargs: Any
    ) -> Response:
        if isinstance(response, Response) and response.status_code >= 400:
            sign_problem(response, self.request_id)
            request.accepted_renderer = ProblemRenderer()  # type: ignore[attr-defined]
            request.accepted_media_type = CONTENT_TYPE  # type: ignore[attr-defined]
        response = super().finalize_response(request, response, *args, **kwargs)
        response[REQUEST_ID] = self.request_id
        for name, value in rate_limit_headers(request).items():
            response[name] = value
        return response


class AsyncMarketView(MarketView):
    """A view whose methods are coroutines: it holds no thread while it waits.

    Who calls, scope and limit are checked on a thread before, as for every view.
    """

    async def dispatch(self, request: HttpRequest, *args: Any, **kwargs: Any) -> Response:
        self.args, self.kwargs = args, kwargs
        self.request = self.initialize_request(request, *args, **kwargs)
        self.headers = self.default_response_headers
        try:
            await run_in_thread(self.initial, self.request, *args, **kwargs)
            method = (self.request.method or "").lower()
            if method not in self.http_method_names or not hasattr(self, method):
                self.http_method_not_allowed(self.request)
            response = await getattr(self, method)(self.request, *args, **kwargs)
        except Exception as error:
            response = self.handle_exception(error)
        self.response = self.finalize_response(self.request, response, *args, **kwargs)
        return self.response


async def run_in_thread(work: Callable[P, T], *args: P.args, **kwargs: P.kwargs) -> T:
    """Run blocking work; its database connection goes back to the pool at once."""

    def run() -> T:
        try:
            return work(*args, **kwargs)
        finally:
            if not connection.in_atomic_block:
                connection.close()

    return await sync_to_async(run)()


class UnknownAddressView(MarketView):
    """Every other address below ``/api/``."""

    authentication_classes = []
    permission_classes = []

    def initial(self, request: Request, *args: Any, **kwargs: Any) -> None:
        super().initial(request, *args, **kwargs)
        raise NotFound(
            "not_found", f"There is nothing at {request.path}; /api/schema lists every address."
        )
