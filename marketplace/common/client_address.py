"""Where a request comes from: one answer for sign-in limits, API limits and records."""

from __future__ import annotations

from ipaddress import ip_address

from django.conf import settings
from django.http import HttpRequest

#: Of a request over a Unix socket, which has no address.
UNKNOWN = "0.0.0.0"  # noqa: S104


def client_address(request: HttpRequest) -> str:
    """The address of the client, as the outermost trusted proxy saw it.

    ``TRUSTED_PROXY_COUNT`` proxies stand in front of the market, and each appends the address
    that it was asked from to ``X-Forwarded-For``. What stands before those was written by the
    client and means nothing.
    """
    proxies = settings.TRUSTED_PROXY_COUNT
    forwarded = [part.strip() for part in request.headers.get("X-Forwarded-For", "").split(",")]
    if 0 < proxies <= len(forwarded):
        try:
            return str(ip_address(forwarded[-proxies]))
        except ValueError:
            pass
    return request.META.get("REMOTE_ADDR") or UNKNOWN
