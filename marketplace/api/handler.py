"""Django's ASGI handler for the API: the middleware that the API needs, run on the event loop.

Django sends each hook of a synchronous middleware to a thread and back, which costs more than the
hooks do, and a request keeps its thread until it is answered: each node that waits for a plan would
hold one. A refused request costs Django's handler with its whole stack up to twice the processor
time (3.5 ms for 1.8 ms on a busy machine, November 2026). Hooks of ``API_MIDDLEWARE`` do not block
unless a session is involved, so they run on the event loop for requests without one. A view holds
no thread while it awaits.
"""

# The stubs know nothing of the handler's and the middlewares' asynchronous methods.
# pyright: reportAttributeAccessIssue=false, reportOptionalCall=false, reportGeneralTypeIssues=false
from __future__ import annotations

import asyncio
from functools import wraps
from typing import Any

from django.conf import settings
from django.core.exceptions import RequestAborted
from django.core.handlers.asgi import ASGIHandler, ASGIRequest, get_script_prefix
from django.core.handlers.exception import convert_exception_to_response
from django.http import HttpRequest
from django.http.response import HttpResponseBase
from django.urls import set_script_prefix
from django.utils.deprecation import MiddlewareMixin
from django.utils.module_loading import import_string


class ApiHandler(ASGIHandler):
    """Serves what is below ``/api/`` and ``/v1/``.

    Without Django's signals of a request's begin and end, which cost a thread each: views give
    their database connections back by themselves.
    """

    async def __call__(self, scope: Any, receive: Any, send: Any) -> None:
        try:
            body = await self.read_body(receive)
        except RequestAborted:
            return
        set_script_prefix(get_script_prefix(scope))
        request, response = self.create_request(scope, body)
        if request is None:
            await self.send_response(response, send)
        else:
            leaving = asyncio.create_task(self.listen_for_disconnect(receive))
            answering = asyncio.create_task(self._answer(request, send))
            await asyncio.wait((leaving, answering), return_when=asyncio.FIRST_COMPLETED)
            for task in (leaving, answering):
                task.cancel()
            await asyncio.gather(leaving, answering, return_exceptions=True)
        body.close()

    async def _answer(self, request: ASGIRequest, send: Any) -> None:
        response = await self.run_get_response(request)
        try:
            await self.send_response(response, send)
        finally:
            response.close()

    def load_middleware(self, is_async: bool = True) -> None:
        """Build the chain of ``API_MIDDLEWARE`` around the view."""
        assert is_async
        view_hooks: list[Any] = []
        exception_hooks: list[Any] = []
        handler = convert_exception_to_response(self._get_response_async)
        for path in reversed(settings.API_MIDDLEWARE):
            middleware = _run_on_event_loop(import_string(path))(handler)
            if hasattr(middleware, "process_view"):
                view_hooks.insert(0, _make_async(middleware.process_view))
            if hasattr(middleware, "process_exception"):
                exception_hooks.append(middleware.process_exception)
            handler = convert_exception_to_response(middleware)
        self._view_middleware = view_hooks
        self._template_response_middleware = []
        self._exception_middleware = exception_hooks
        self._middleware_chain = handler


def _run_on_event_loop(middleware: type[MiddlewareMixin]) -> type[MiddlewareMixin]:
    """The middleware, with its hooks called directly for requests without a session."""
    session_cookie = settings.SESSION_COOKIE_NAME

    class OnEventLoop(middleware):
        async def __acall__(self, request: HttpRequest) -> HttpResponseBase:
            if session_cookie in request.COOKIES:
                return await super().__acall__(request)
            response = None
            if hasattr(self, "process_request"):
                response = self.process_request(request)
            response = response or await self.get_response(request)
            if hasattr(self, "process_response"):
                response = self.process_response(request, response)
            return response

    return OnEventLoop


def _make_async(hook: Any) -> Any:
    @wraps(hook)
    async def call(*args: Any, **kwargs: Any) -> Any:
        return hook(*args, **kwargs)

    return call
