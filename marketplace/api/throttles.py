"""Limits per caller and kind of request, counted in Redis by the minute."""

from __future__ import annotations

import logging
import time
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cache

from django.conf import settings
from redis import Redis
from redis.commands.core import Script
from rest_framework.exceptions import Throttled
from rest_framework.request import Request
from rest_framework.throttling import BaseThrottle
from rest_framework.views import APIView

from marketplace.accounts.models import ApiKey
from marketplace.common.client_address import client_address

log = logging.getLogger(__name__)

WINDOW_S = 60
#: Counts one for each key, and gives what is counted then; nobody's counter stays for good.
_COUNT = """
local used = {}
for place, key in ipairs(KEYS) do
  used[place] = redis.call('INCR', key)
  if used[place] == 1 then redis.call('EXPIRE', key, ARGV[1]) end
end
return used
"""


@dataclass(frozen=True, slots=True)
class Counted:
    """One request, counted."""

    kind: str
    limit: int
    used: int
    #: Until the window ends.
    left_s: float

    @property
    def headers(self) -> dict[str, str]:
        """As the IETF draft on rate limit headers has them."""
        return {
            "RateLimit-Policy": f'"{self.kind}";q={self.limit};w={WINDOW_S}',
            "RateLimit": f'"{self.kind}";r={max(0, self.limit - self.used)};t={int(self.left_s)}',
        }

    @property
    def wait_s(self) -> float | None:
        """How long a caller above the limit has to wait; ``None`` below it."""
        return None if self.used <= self.limit else self.left_s + 1

    def check(self) -> None:
        """Refuse what is above the limit.

        Raises
        ------
        rest_framework.exceptions.Throttled
        """
        if self.wait_s is not None:
            raise Throttled(self.wait_s)


def count_requests(identities: Sequence[str], *, kind: str) -> list[Counted | None]:
    """Count one request of a kind for each caller; ``None`` each where Redis does not answer."""
    limit = settings.API_REQUESTS_PER_MINUTE[kind]
    seconds = time.time()  # the window of a counter, not a time the market acts on
    window = int(seconds // WINDOW_S)
    keys = [f"api:throttle:{kind}:{identity}:{window}" for identity in identities]
    try:
        used = _script(settings.CACHES["default"]["LOCATION"])(keys=keys, args=[2 * WINDOW_S])
    except Exception:  # without Redis we serve rather than refuse everyone
        log.warning("requests are not counted: the cache does not answer", exc_info=True)
        return [None] * len(identities)
    left_s = (window + 1) * WINDOW_S - seconds
    return [Counted(kind=kind, limit=limit, used=int(count), left_s=left_s) for count in used]


@cache
def _script(location: str) -> Script:
    return Redis.from_url(location).register_script(_COUNT)


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
        return "read"
    return getattr(view, "throttle_kind", "bids")


def _identity(request: Request) -> str:
    if isinstance(request.auth, ApiKey):
        return request.auth.pk
    if request.user and request.user.is_authenticated:
        return str(request.user.pk)
    return client_address(request._request)
