"""Fetching pages of strangers: small, in time, and not from inside the operator's network.

An address that a name resolves to is looked at first, and then that very address is asked:
a name that answers otherwise the second time gains nothing. Redirects are not followed.
"""

from __future__ import annotations

import ipaddress
import socket
import time
from urllib.parse import urlsplit

import httpx

#: Seconds between two pieces of an answer, and until all of it is there.
TIMEOUT_S, ANSWER_S = 10.0, 30.0
#: Bytes that are read of an answer.
BYTES_MAX = 5_000_000


class FetchFailed(Exception):
    """Nothing could be fetched; the message says why."""


def fetch_text(url: str, *, allows_private: bool) -> str:
    """The text at an ``https`` address; ``http`` where private addresses are allowed.

    Raises
    ------
    FetchFailed
        The address is not allowed, does not answer well, or says too much.
    """
    try:
        parts = urlsplit(url)
        port = parts.port or (443 if parts.scheme == "https" else 80)
    except ValueError as error:
        raise FetchFailed(f"{url} is no address: {error}") from error
    if parts.scheme not in ("https", "http") or not parts.hostname or parts.username is not None:
        raise FetchFailed(f"{url} is no address of the form https://host/path")
    if parts.scheme == "http" and not allows_private:
        raise FetchFailed(f"{url} is not encrypted; use https")
    found = resolve_host(parts.hostname, port=port, allows_private=allows_private)
    address = f"[{found}]" if ":" in found else found
    asked = parts._replace(netloc=f"{address}:{port}", fragment="").geturl()
    try:
        with (
            # Proxies of the environment would resolve the name again.
            httpx.Client(timeout=TIMEOUT_S, trust_env=False) as client,
            client.stream(
                "GET",
                asked,
                headers={"Host": parts.netloc},
                extensions={"sni_hostname": parts.hostname},
            ) as answer,
        ):
            answer.raise_for_status()
            if answer.is_redirect:
                raise FetchFailed(f"{url} is elsewhere; redirects are not followed")
            return _read(answer, url).decode("utf-8")
    except (httpx.HTTPError, httpx.InvalidURL, OSError, UnicodeDecodeError) as error:
        raise FetchFailed(f"{url} could not be fetched: {error!r}") from error


def resolve_host(host: str, *, port: int, allows_private: bool) -> str:
    """One address of a host, all of whose addresses may be asked.

    Raises
    ------
    FetchFailed
        It has none, or one that is not public.
    """
    try:
        rows = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)
    except (OSError, UnicodeError) as error:
        raise FetchFailed(f"{host} has no address: {error}") from error
    addresses = [str(row[4][0]) for row in rows]
    for address in addresses:
        if not allows_private and not _is_public(address):
            raise FetchFailed(f"{host} is at {address}, which is not a public address")
    return addresses[0]


def _is_public(address: str) -> bool:
    found = ipaddress.ip_address(address.partition("%")[0])
    if isinstance(found, ipaddress.IPv6Address) and found.ipv4_mapped is not None:
        found = found.ipv4_mapped
    return found.is_global and not found.is_multicast


def _read(answer: httpx.Response, url: str) -> bytes:
    read, ends_at = bytearray(), time.monotonic() + ANSWER_S
    for piece in answer.iter_bytes():
        read += piece
        if len(read) > BYTES_MAX:
            raise FetchFailed(f"{url} says more than {BYTES_MAX} bytes")
        if time.monotonic() > ends_at:
            raise FetchFailed(f"{url} did not say all within {ANSWER_S:.0f} seconds")
    return bytes(read)
