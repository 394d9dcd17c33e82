"""One notion of where a request comes from, whatever the client writes."""

from __future__ import annotations

import pytest
from allauth.account.adapter import get_adapter
from django.test import RequestFactory
from rest_framework.request import Request

from marketplace.api.throttles import _identity
from marketplace.common.client_address import find_client_address, group_address

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
        # Within IPv6 all of IPv4 would be one network to every limit.
        (1, "::ffff:203.0.113.9", "203.0.113.9"),
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
    assert _identity(Request(request)) == group_address(found)


@pytest.mark.parametrize(
    ("address", "counted"),
    [
        ("192.0.2.7", "192.0.2.7"),
        ("2001:db8:1:2:3:4:5:6", "2001:db8:1:2::"),
        ("2001:db8:1:2::", "2001:db8:1:2::"),
        ("fe80::1%eth0", "fe80::"),
        ("testclient", "testclient"),
    ],
)
def test_limits_count_networks_of_ipv6(address: str, counted: str) -> None:
    assert group_address(address) == counted


def test_a_request_over_a_unix_socket_has_an_address_too() -> None:
    request = RequestFactory().get("/", REMOTE_ADDR="")
    assert find_client_address(request) == "0.0.0.0"
    request = RequestFactory().get("/", REMOTE_ADDR="::ffff:192.0.2.7")
    assert find_client_address(request) == "192.0.2.7"
