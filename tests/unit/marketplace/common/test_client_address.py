"""One notion of where a request comes from, whatever the client writes."""

from __future__ import annotations

import pytest
from allauth.account.adapter import get_adapter
from django.test import RequestFactory
from rest_framework.request import Request

from marketplace.api.throttles import _identity
from marketplace.common.client_address import find_client_address

PEER = "10.0.0.7"


@pytest.mark.parametrize(
    ("proxies", "forwarded", "found"),
    [
        (0, None, PEER),
        (0, "203.0.113.9", PEER),
        (1, None, PEER),
        (1, "203.0.113.9", "203.0.113.9"),
        # What stands before the proxy's own entry was written by the client.
        (1, "198.51.100.1, 203.0.113.9", "203.0.113.9"),
        (2, "198.51.100.1, 203.0.113.9, 10.0.0.1", "203.0.113.9"),
        (2, "203.0.113.9", PEER),
        (1, "not an address", PEER),
        (1, "2001:db8::0001", "2001:db8::1"),
    ],
)
def test_the_address_is_what_the_outermost_trusted_proxy_saw(
    settings, proxies: int, forwarded: str | None, found: str
) -> None:
    settings.TRUSTED_PROXY_COUNT = proxies
    headers = {} if forwarded is None else {"X-Forwarded-For": forwarded}
    request = RequestFactory().get("/", headers=headers, REMOTE_ADDR=PEER)
    request.user = None  # type: ignore[assignment]
    assert find_client_address(request) == found
    # Sign-in and API limits go by the same.
    assert get_adapter().get_client_ip(request) == found
    assert _identity(Request(request)) == found


def test_a_request_over_a_unix_socket_has_an_address_too() -> None:
    request = RequestFactory().get("/", REMOTE_ADDR="")
    assert find_client_address(request) == "0.0.0.0"
