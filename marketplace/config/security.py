"""Headers that differ from one part of the site to another."""

from collections.abc import Callable

from csp.constants import NONE, SELF, UNSAFE_EVAL, UNSAFE_INLINE
from django.http import HttpRequest, HttpResponse

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


class AdminContentPolicyMiddleware:
    """Gives the admin a content policy of its own; stands inside ``CSPMiddleware``."""

    def __init__(self, get_response: Callable[[HttpRequest], HttpResponse]) -> None:
        self.get_response = get_response

    def __call__(self, request: HttpRequest) -> HttpResponse:
        response = self.get_response(request)
        if request.path_info.startswith("/admin/"):
            response._csp_config = ADMIN_POLICY  # type: ignore[attr-defined]
        return response
