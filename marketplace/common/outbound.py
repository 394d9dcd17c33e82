"""Asking strangers: small, in time, and not from inside the operator's network.

An address that a name resolves to is looked at first, and then that very address is asked:
a name that answers otherwise the second time gains nothing. Redirects are not followed.
"""

from __future__ import annotations

import ipaddress
import socket
import ssl
import threading
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from functools import cache
from typing import Any
from urllib.parse import SplitResult, urlsplit

import httpx

#: All IPv6 addresses that are given out; gateways to private networks have others.
_GLOBAL_UNICAST = ipaddress.ip_network("2000::/3")


@dataclass(frozen=True, slots=True)
class AnswerLimits:
    """How long, and how much, a stranger may answer."""

    #: Seconds between two pieces of an answer.
    timeout_s: float
    #: Seconds until all of it is there.
    answer_s: float
    bytes_max: int


class FetchFailed(Exception):
    """Nothing could be fetched; the message says why."""

    def __init__(self, message: str, *, status: int | None = None) -> None:
        super().__init__(message)
        #: What the stranger answered, if it did.
        self.status = status


@dataclass(frozen=True, slots=True)
class FetchedAnswer:
    """What a stranger answered, read whole."""

    body: bytes
    headers: Mapping[str, str]


def ask_stranger(
    url: str,
    *,
    method: str = "POST",
    body: bytes,
    headers: Mapping[str, str],
    allows_private: bool,
    limits: AnswerLimits,
) -> FetchedAnswer:
    """Send a message to an ``https`` address and read its answer.

    ``http`` will do where private addresses are allowed.

    Raises
    ------
    FetchFailed
        The address is not allowed, does not answer well, or says too much.
    """
    ends_at = time.monotonic() + limits.answer_s
    parts = check_address(url, allows_private=allows_private)
    port = parts.port or (443 if parts.scheme == "https" else 80)
    assert parts.hostname is not None
    found = resolve_host(parts.hostname, port=port, allows_private=allows_private)
    address = f"[{found}]" if ":" in found else found
    asked = parts._replace(netloc=f"{address}:{port}", fragment="").geturl()
    deadline = _Deadline()
    try:
        with (
            deadline.running(ends_at),
            # Proxies of the environment would resolve the name again.
            httpx.Client(
                timeout=limits.timeout_s, trust_env=False, verify=_load_certificates()
            ) as client,
            client.stream(
                method,
                asked,
                content=body,
                # Of a packed answer a few bytes may become any number.
                headers={**headers, "Host": parts.netloc, "Accept-Encoding": "identity"},
                extensions={"sni_hostname": parts.hostname, "trace": deadline.watch},
            ) as answer,
        ):
            if answer.is_redirect:
                raise FetchFailed(
                    f"{url} answered {answer.status_code}; redirects are not followed",
                    status=answer.status_code,
                )
            answer.raise_for_status()
            if "content-encoding" in answer.headers:
                raise FetchFailed(f"{url} answers in another encoding than asked for")
            return FetchedAnswer(_read(answer, url, limits=limits, ends_at=ends_at), answer.headers)
    except httpx.HTTPStatusError as error:
        status = error.response.status_code
        raise FetchFailed(f"{url} answered {status}", status=status) from error
    except (httpx.HTTPError, httpx.InvalidURL, OSError) as error:
        if deadline.is_over:
            raise _build_late_failure(url, limits) from error
        raise FetchFailed(f"{url} could not be fetched: {error!r}") from error


def check_address(url: str, *, allows_private: bool) -> SplitResult:
    """An address of the form that may be asked; whom its name resolves to is not looked at.

    Raises
    ------
    FetchFailed
    """
    try:
        parts = urlsplit(url)
        _ = parts.port
    except ValueError as error:
        raise FetchFailed(f"{url} is no address: {error}") from error
    if parts.scheme not in ("https", "http") or not parts.hostname or parts.username is not None:
        raise FetchFailed(f"{url} is no address of the form https://host/path")
    if parts.scheme == "http" and not allows_private:
        raise FetchFailed(f"{url} is not encrypted; use https")
    return parts


@cache
def _load_certificates() -> ssl.SSLContext:
    """Loaded once: it takes longer than a request."""
    return httpx.create_ssl_context(trust_env=False)


def resolve_host(host: str, *, port: int, allows_private: bool) -> str:
    """One address of a host, if all of its addresses may be called.

    Raises
    ------
    FetchFailed
        It has none, or one that is not public.
    """
    kind = "" if allows_private else "public "
    try:
        rows = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)
    except (OSError, UnicodeError) as error:
        raise FetchFailed(f"{host} has no {kind}address") from error
    addresses = [str(row[4][0]) for row in rows]
    for address in addresses:
        if not allows_private and not _is_public(address):
            # As of one that there is not: people who read it may not look up names in here.
            raise FetchFailed(f"{host} has no {kind}address")
    return addresses[0]


def _is_public(address: str) -> bool:
    found = ipaddress.ip_address(address.partition("%")[0])
    if isinstance(found, ipaddress.IPv6Address):
        # An IPv4 address may be written inside one, and is where the packets go.
        inner = found.ipv4_mapped or found.sixtofour
        if inner is None:
            return found in _GLOBAL_UNICAST and found.is_global
        found = inner
    return found.is_global and not found.is_multicast


def _read(answer: httpx.Response, url: str, *, limits: AnswerLimits, ends_at: float) -> bytes:
    read = bytearray()
    for piece in answer.iter_raw():
        read += piece
        if len(read) > limits.bytes_max:
            raise FetchFailed(f"{url} says more than {limits.bytes_max} bytes")
        if time.monotonic() > ends_at:
            raise _build_late_failure(url, limits)
    return bytes(read)


def _build_late_failure(url: str, limits: AnswerLimits) -> FetchFailed:
    return FetchFailed(f"{url} did not say all within {limits.answer_s:g} seconds")


@dataclass(slots=True)
class _Deadline:
    """Ends a connection when its time is over, whatever it is waiting for.

    A limit between two pieces ends no stranger who sends his head, or what comes before it, a byte
    at a time.
    """

    is_over: bool = False
    _watched: list[socket.socket] = field(default_factory=list)

    @contextmanager
    def running(self, ends_at: float) -> Iterator[None]:
        """Within the block the connection lives until then, by ``time.monotonic``."""
        timer = threading.Timer(max(0.0, ends_at - time.monotonic()), self._end)
        timer.daemon = True
        timer.start()
        try:
            yield
        finally:
            timer.cancel()
            # Not closed while the timer is at it.
            timer.join()
            for watched in self._watched:
                watched.close()

    def watch(self, event: str, info: Mapping[str, Any]) -> None:
        """Called by ``httpx`` at each step of a request."""
        if event == "connection.connect_tcp.complete":
            # A copy: TLS takes the socket itself over.
            self._watched.append(info["return_value"].get_extra_info("socket").dup())
            if self.is_over:
                self._end()

    def _end(self) -> None:
        self.is_over = True
        for watched in self._watched:
            with suppress(OSError):
                watched.shutdown(socket.SHUT_RDWR)
