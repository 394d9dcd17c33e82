"""Where a request comes from: one answer for sign-in limits, API limits and records."""

from __future__ import annotations

from collections.abc import Mapping
from ipaddress import ip_address
from typing import Any

from django.conf import settings
from django.http import HttpRequest

#: Of a request over a Unix socket, which has no address.
UNKNOWN = "0.0.0.0"  # noqa: S104


def find_client_address(request: HttpRequest) -> str:
    """The address of the client, as the outermost trusted proxy saw it.

    ``TRUSTED_PROXY_COUNT`` proxies stand in front of the market, and each appends the address
    that it was asked from to ``X-Forwarded-For``. What stands before those was written by the
    client and means nothing.
    """
    return _choose_address(
        request.headers.get("X-Forwarded-For", ""), peer=request.META.get("REMOTE_ADDR")
    )


def find_websocket_address(scope: Mapping[str, Any]) -> str:
    """The same for a websocket, by its ASGI scope."""
    forwarded = [value for name, value in scope["headers"] if name == b"x-forwarded-for"]
    peer = scope.get("client")
    return _choose_address(b",".join(forwarded).decode("latin-1"), peer=peer and peer[0])


def _choose_address(forwarded_for: str, *, peer: str | None) -> str:
    proxies = settings.TRUSTED_PROXY_COUNT
    forwarded = [part.strip() for part in forwarded_for.split(",")]
    if 0 < proxies <= len(forwarded):
        try:
            return str(ip_address(forwarded[-proxies]))
        except ValueError:
            pass
    return peer or UNKNOWN
