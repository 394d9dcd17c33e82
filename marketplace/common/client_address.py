"""Where a request comes from: one answer for sign-in limits, API limits and records."""

from __future__ import annotations

from collections.abc import Mapping
from ipaddress import IPv6Address, ip_address, ip_network
from typing import Any

from django.conf import settings
from django.http import HttpRequest

#: Of IPv6, what one customer of a network has at least: who has it chooses the rest freely.
_IPV6_PREFIX = 64
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


def group_address(address: str) -> str:
    """What limits count an address by: of IPv6 its network.

    Examples
    --------
    >>> group_address("2001:db8:0:1:2:3:4:5"), group_address("192.0.2.7")
    ('2001:db8:0:1::', '192.0.2.7')
    """
    try:
        found = ip_address(address)
    except ValueError:
        return address
    if not isinstance(found, IPv6Address):
        return str(found)
    network = ip_network(f"{IPv6Address(int(found))}/{_IPV6_PREFIX}", strict=False)
    return str(network.network_address)


def _choose_address(forwarded_for: str, *, peer: str | None) -> str:
    proxies = settings.TRUSTED_PROXY_COUNT
    forwarded = [part.strip() for part in forwarded_for.split(",")]
    if 0 < proxies <= len(forwarded):
        peer = _normalise(forwarded[-proxies]) or peer
    return _normalise(peer or "") or peer or UNKNOWN


def _normalise(address: str) -> str | None:
    """An address as it is written once, IPv4 within IPv6 as IPv4; ``None`` where it is none."""
    try:
        found = ip_address(address)
    except ValueError:
        return None
    mapped = found.ipv4_mapped if isinstance(found, IPv6Address) else None
    return str(mapped or found)
