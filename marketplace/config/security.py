"""What holds for every request: text that can be stored, and a content policy by part of site."""

from collections.abc import Callable

from csp.constants import HEADER, NONE, SELF, UNSAFE_EVAL, UNSAFE_INLINE
from csp.middleware import CSPMiddleware
from csp.utils import build_policy
from django.conf import settings
from django.db import DataError
from django.http import HttpRequest, HttpResponse, JsonResponse
from django.http.response import HttpResponseBase
from django.middleware.gzip import GZipMiddleware
from django.shortcuts import render
from django.utils.deprecation import MiddlewareMixin
from django.utils.functional import cached_property

from marketplace.common.problems import build_early_error

#: Names of the character sets that a body may be written in; all else is UTF-8 misnamed, or an
#: attack: Python knows "zlib" by the same means as character sets.
CHARSETS = frozenset({"utf-8", "utf8", "us-ascii", "ascii", "iso-8859-1", "latin-1"})
#: Addresses whose callers are programs.
PROGRAM_ADDRESSES = ("/api/", "/v1/", "/internal/")

#: Less is not worth the work, and more would hold the event loop up.
COMPRESSED_FROM_BYTES, COMPRESSED_TO_BYTES = 2_000, 1_000_000

#: The admin's pages are Unfold's, whose scripts need more than ours may have.
ADMIN_POLICY = {
    "default-src": [NONE],
    "script-src": [SELF, UNSAFE_EVAL, UNSAFE_INLINE],
    "style-src": [SELF, UNSAFE_INLINE],
    "img-src": [SELF, "data:"],
    "font-src": [SELF],
    "connect-src": [SELF],
    "form-action": [SELF],
    "base-uri": [NONE],
    "frame-ancestors": [NONE],
}


class ContentPolicyMiddleware(CSPMiddleware):
    """The content policy of the settings, and that no proxy keeps answers to programs.

    Building it takes a tenth of the event loop's work on a bid, and it differs from request to
    request only by the nonce of a page; answers to programs share one text.
    """

    @cached_property
    def _policy(self) -> str:
        return build_policy()

    def process_response(
        self, request: HttpRequest, response: HttpResponseBase
    ) -> HttpResponseBase:
        if not request.path_info.startswith(PROGRAM_ADDRESSES) or hasattr(request, "_csp_nonce"):
            return super().process_response(request, response)
        response.headers.setdefault(HEADER, self._policy)
        # Pages say so for each view; a link's data, say, have neither a cookie nor a key.
        response.headers.setdefault("Cache-Control", "private, no-cache")
        return response


class AdminContentPolicyMiddleware:
    """Gives the admin a content policy of its own; stands inside ``ContentPolicyMiddleware``."""

    def __init__(self, get_response: Callable[[HttpRequest], HttpResponse]) -> None:
        self.get_response = get_response

    def __call__(self, request: HttpRequest) -> HttpResponse:
        response = self.get_response(request)
        if request.path_info.startswith("/admin/"):
            response._csp_config = ADMIN_POLICY  # type: ignore[attr-defined]
        return response


class CompressedAnswerMiddleware(GZipMiddleware):
    """Compress larger answers in JSON for programs that take it, but for streams.

    A program's key stands in its headers. Pages have secrets beside what a visitor sent, whose size
    would tell them (BREACH), and so would answers to a browser's session.
    """

    def process_response(
        self, request: HttpRequest, response: HttpResponseBase
    ) -> HttpResponseBase:
        if (
            isinstance(response, HttpResponse)
            and COMPRESSED_FROM_BYTES <= len(response.content) <= COMPRESSED_TO_BYTES
            and "json" in response.headers.get("Content-Type", "")
            and request.path_info.startswith(("/api/", "/v1/"))
            and settings.SESSION_COOKIE_NAME not in request.COOKIES
        ):
            return super().process_response(request, response)
        return response


class ReadableTextMiddleware(MiddlewareMixin):
    """Refuses text that no view could use, before one tries: 400 or 415, never a fault of ours."""

    def process_request(self, request: HttpRequest) -> HttpResponse | None:
        charset = (request.content_params or {}).get("charset", "utf-8").strip("\"' ").lower()
        if charset not in CHARSETS:
            return _refuse(
                request,
                415,
                "unsupported_charset",
                "Send the body as UTF-8, and say so or nothing.",
            )
        # The API says what is wrong with a parameter by its name.
        is_page = not request.path_info.startswith(PROGRAM_ADDRESSES)
        query = request.META.get("QUERY_STRING", "")
        if "\0" in request.path_info or (is_page and "%00" in query):
            return _refuse(
                request,
                400,
                "malformed_request",
                "The address holds a NUL character; leave it out.",
            )
        return None

    def process_exception(self, request: HttpRequest, error: Exception) -> HttpResponse | None:
        """The database refused a value of the request: NUL in a form, or a number too large."""
        if not isinstance(error, DataError):
            return None
        return _refuse(
            request, 400, "malformed_request", "A value holds characters that cannot be stored."
        )


def _refuse(request: HttpRequest, status: int, code: str, detail: str) -> HttpResponse:
    if request.path_info.startswith(PROGRAM_ADDRESSES):
        body, content_type = build_early_error(
            path=request.path_info, code=code, detail=detail, status=status
        )
        return JsonResponse(body, status=status, content_type=content_type)
    return render(request, "400.html", status=status)
