"""Requests by caller and kind, counted in Redis by the minute."""

from __future__ import annotations

import logging
import time
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cache

from django.conf import settings
from django.http import HttpRequest
from redis import Redis
from redis.commands.core import Script

from marketplace.common.client_address import find_client_address, group_address
from marketplace.common.errors import UserError

log = logging.getLogger(__name__)

WINDOW_S = 60
#: Adds one to each key's counter and returns the counts; every counter expires.
_COUNT = """
local used = {}
for place, key in ipairs(KEYS) do
  used[place] = redis.call('INCR', key)
  if used[place] == 1 then redis.call('EXPIRE', key, ARGV[1]) end
end
return used
"""


@dataclass(frozen=True, slots=True)
class Counter:
    """What a request counts for: a caller's limit of one kind."""

    kind: str
    #: Of an organisation, or the address of a stranger.
    identity: str


@dataclass(frozen=True, slots=True)
class CountedRequest:
    """One request, counted."""

    kind: str
    limit: int
    used: int
    #: Until the window ends.
    left_s: float

    @property
    def headers(self) -> dict[str, str]:
        """As the IETF draft on rate limit headers has them, and as OpenAI's clients read them."""
        left = max(0, self.limit - self.used)
        return {
            "RateLimit-Policy": f'"{self.kind}";q={self.limit};w={WINDOW_S}',
            "RateLimit": f'"{self.kind}";r={left};t={int(self.left_s)}',
            "x-ratelimit-limit-requests": str(self.limit),
            "x-ratelimit-remaining-requests": str(left),
            "x-ratelimit-reset-requests": f"{int(self.left_s)}s",
        }

    @property
    def wait_s(self) -> float | None:
        """How long a caller above the limit has to wait; ``None`` below it."""
        return None if self.used <= self.limit else self.left_s + 1


def count_requests(counters: Sequence[Counter]) -> list[CountedRequest | None]:
    """Count a request for each, with one call; ``None`` each where Redis does not answer."""
    seconds = time.time()  # the window of a counter, not a time the market acts on
    window = int(seconds // WINDOW_S)
    keys = [f"api:throttle:{one.kind}:{one.identity}:{window}" for one in counters]
    try:
        used = _script(settings.CACHES["default"]["LOCATION"])(keys=keys, args=[2 * WINDOW_S])
    except Exception:  # without Redis we serve rather than refuse everyone
        log.warning("requests are not counted: the cache does not answer", exc_info=True)
        return [None] * len(counters)
    left_s = (window + 1) * WINDOW_S - seconds
    limits = settings.API_REQUESTS_PER_MINUTE
    return [
        CountedRequest(kind=one.kind, limit=limits[one.kind], used=int(count), left_s=left_s)
        for one, count in zip(counters, used, strict=True)
    ]


@cache
def _script(location: str) -> Script:
    return Redis.from_url(location).register_script(_COUNT)


def check_public_rate(request: HttpRequest, *, kind: str = "public") -> None:
    """Count a request by its address, for what anybody may ask for.

    Raises
    ------
    UserError
        ``too_many_requests``.
    """
    address = group_address(find_client_address(request))
    check_rate(Counter(kind, address), whose="your address")


def check_rate(counter: Counter, *, whose: str) -> None:
    """Count a request for a caller, and refuse one above its limit.

    Raises
    ------
    UserError
        ``too_many_requests``.
    """
    [counted] = count_requests([counter])
    if counted is not None and counted.wait_s is not None:
        wait_s = int(counted.wait_s)
        raise UserError(
            "too_many_requests",
            f"Too many requests from {whose}; try again in {wait_s} s.",
            status=429,
        )
