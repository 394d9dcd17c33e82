"""Limits per caller and kind of request."""

from __future__ import annotations

from rest_framework.request import Request
from rest_framework.throttling import BaseThrottle
from rest_framework.views import APIView

from marketplace.accounts.models import ApiKey
from marketplace.api.callers import caller
from marketplace.common.client_address import client_address
from marketplace.common.request_rates import Counted, count_requests


class CallerThrottle(BaseThrottle):
    """A fixed window with an atomic counter; it keeps no list of requests."""

    def __init__(self) -> None:
        self._counted: Counted | None = None

    def allow_request(self, request: Request, view: APIView) -> bool:
        [self._counted] = count_requests([_identity(request)], kind=_kind(request, view))
        request._request.rate_limit = self._counted  # type: ignore[attr-defined]
        return self._counted is None or self._counted.wait_s is None

    def wait(self) -> float | None:
        return None if self._counted is None else self._counted.wait_s


def rate_limit_headers(request: Request) -> dict[str, str]:
    """``RateLimit`` and ``RateLimit-Policy`` of a counted request."""
    counted: Counted | None = getattr(request._request, "rate_limit", None)
    return {} if counted is None else counted.headers


def _kind(request: Request, view: APIView) -> str:
    if not (request.user and request.user.is_authenticated):
        return "public"
    if request.method in ("GET", "HEAD", "OPTIONS"):
        return getattr(view, "throttle_kind_of_reads", "read")
    return getattr(view, "throttle_kind", "bids")


def _identity(request: Request) -> str:
    """Whose limit a request counts for: an organisation's, however many keys and people it has."""
    if isinstance(request.auth, ApiKey) or (request.user and request.user.is_authenticated):
        return caller(request).organisation.pk
    return client_address(request._request)
