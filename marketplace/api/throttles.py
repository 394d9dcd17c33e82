"""Limits per caller and kind of request, counted in Redis by the minute."""

from __future__ import annotations

import logging
import time

from django.conf import settings
from django.core.cache import cache
from rest_framework.request import Request
from rest_framework.throttling import BaseThrottle
from rest_framework.views import APIView

from marketplace.accounts.models import ApiKey

log = logging.getLogger(__name__)

WINDOW_S = 60


class CallerThrottle(BaseThrottle):
    """A fixed window with an atomic counter; it keeps no list of requests."""

    def __init__(self) -> None:
        self.wait_s = 0.0

    def allow_request(self, request: Request, view: APIView) -> bool:
        kind = _kind(request, view)
        limit = settings.API_REQUESTS_PER_MINUTE[kind]
        seconds = time.time()  # the window of a counter, not a time the market acts on
        window = int(seconds // WINDOW_S)
        key = f"api:throttle:{kind}:{_identity(request)}:{window}"
        try:
            cache.add(key, 0, timeout=2 * WINDOW_S)
            used = cache.incr(key)
        except Exception:  # without Redis we serve rather than refuse everyone
            log.warning("requests are not counted: the cache does not answer", exc_info=True)
            return True
        left_s = (window + 1) * WINDOW_S - seconds
        request._request.rate_limit = (kind, limit, max(0, limit - used), left_s)  # type: ignore[attr-defined]
        if used <= limit:
            return True
        self.wait_s = left_s
        return False

    def wait(self) -> float:
        return self.wait_s + 1


def rate_limit_headers(request: Request) -> dict[str, str]:
    """``RateLimit`` and ``RateLimit-Policy`` as the IETF draft on rate limit headers has them."""
    counted = getattr(request._request, "rate_limit", None)
    if counted is None:
        return {}
    kind, limit, left, left_s = counted
    return {
        "RateLimit-Policy": f'"{kind}";q={limit};w={WINDOW_S}',
        "RateLimit": f'"{kind}";r={left};t={int(left_s)}',
    }


def _kind(request: Request, view: APIView) -> str:
    if not (request.user and request.user.is_authenticated):
        return "public"
    if request.method in ("GET", "HEAD", "OPTIONS"):
        return "read"
    return getattr(view, "throttle_kind", "bids")


def _identity(request: Request) -> str:
    if isinstance(request.auth, ApiKey):
        return request.auth.pk
    if request.user and request.user.is_authenticated:
        return str(request.user.pk)
    return request.META.get("REMOTE_ADDR", "unknown")
