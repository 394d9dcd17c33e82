"""Limits per caller and kind of request."""

from __future__ import annotations

from rest_framework.exceptions import Throttled
from rest_framework.request import Request
from rest_framework.views import APIView

from marketplace.accounts.models import ApiKey
from marketplace.api.callers import get_caller
from marketplace.common.client_address import find_client_address, group_address
from marketplace.common.request_rates import CountedRequest, Counter


def choose_counter(request: Request, view: APIView) -> Counter:
    """What a request that is allowed counts for."""
    return Counter(kind=_kind(request, view), identity=_identity(request))


def note_counted(request: Request, counted: CountedRequest | None) -> None:
    """Remember on a request that it was counted."""
    request._request.rate_limit = counted  # type: ignore[attr-defined]


def check_rate_limit(request: Request) -> None:
    """Refuse a counted request that is above its caller's limit.

    Raises
    ------
    rest_framework.exceptions.Throttled
    """
    counted = _counted(request)
    if counted is not None and counted.wait_s is not None:
        raise Throttled(counted.wait_s)


def build_rate_limit_headers(request: Request) -> dict[str, str]:
    """``RateLimit`` and ``RateLimit-Policy`` of a counted request."""
    counted = _counted(request)
    return {} if counted is None else counted.headers


def _counted(request: Request) -> CountedRequest | None:
    return getattr(request._request, "rate_limit", None)


def _kind(request: Request, view: APIView) -> str:
    if not (request.user and request.user.is_authenticated):
        return "public"
    if request.method in ("GET", "HEAD", "OPTIONS"):
        return getattr(view, "throttle_kind_of_reads", "read")
    return getattr(view, "throttle_kind", "bids")


def _identity(request: Request) -> str:
    """The name of the limit that a request counts for: an organisation has one limit."""
    if isinstance(request.auth, ApiKey) or (request.user and request.user.is_authenticated):
        return get_caller(request).organisation.pk
    return group_address(find_client_address(request._request))
