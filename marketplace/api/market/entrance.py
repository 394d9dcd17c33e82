"""``POST /api/bids`` before Django: the requests of a crowd share their work.

An ASGI application in front of another. It takes plain requests only: JSON with
an API key. Everything else about this address (forms with a file, sessions with
their CSRF token, lists) and whatever is unusual in a header goes on to the view,
whose rules are the same because both roads are made of the same functions; a
test sends the same requests down both.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Awaitable, Callable, MutableMapping
from functools import lru_cache
from http import HTTPStatus
from typing import Any

from django.conf import settings
from django.http.request import split_domain_port, validate_host
from django_prometheus.middleware import Metrics

from marketplace.api.idempotency import HEADER as KEY_HEADER
from marketplace.api.market.desk import Desk
from marketplace.api.market.group import ADDRESS, Answer, Post
from marketplace.api.views import REQUEST_ID, request_id_of

Message = MutableMapping[str, Any]
Receive = Callable[[], Awaitable[Message]]
Send = Callable[[Message], Awaitable[None]]
Application = Callable[[Message, Receive, Send], Awaitable[None]]
RawHeaders = list[tuple[bytes, bytes]]

#: Far above any bid; larger bodies go to the view.
BODY_LIMIT = 64 * 1024
_JSON = (b"application/json", b"application/json; charset=utf-8", b"application/json;charset=utf-8")
_ACCEPTED = (b"*/*", b"application/json", b"application/json, */*", b"application/json,*/*")
_KEY_HEADER = KEY_HEADER.lower().encode()
_REQUEST_ID = REQUEST_ID.lower().encode()
#: Headers that belong to one answer; the others are the site's own, the same on every answer.
_OF_ONE_ANSWER = {
    b"content-length",
    b"content-type",
    b"ratelimit",
    b"ratelimit-policy",
    b"retry-after",
    b"retry-after-ms",
    b"www-authenticate",
    _REQUEST_ID,
}


class BidEntrance:
    """Answers bids that come as JSON with an API key; passes everything else on."""

    def __init__(self, application: Application) -> None:
        self._application = application
        self._desk: Desk | None = None
        #: The site's own headers, without and with TLS.
        self._site_headers: dict[bool, RawHeaders] = {}

    async def __call__(self, scope: Message, receive: Receive, send: Send) -> None:
        headers = _plain_headers(scope)
        if headers is None:
            await self._application(scope, receive, send)
            return
        began = time.perf_counter()
        messages, body = await _body(receive)
        if body is None:
            await self._application(scope, _again(messages, receive), send)
            return
        site_headers = await self._site_headers_of(scope, headers)
        reply = await self._desk_here().reply(_post(headers, body))
        if not isinstance(reply, Answer):
            await self._application(scope, _again(messages, receive), send)
            return
        await _send(send, reply, site_headers)
        _measure(reply.status, time.perf_counter() - began)

    def close(self) -> None:
        if self._desk is not None:
            self._desk.close()
            self._desk = None

    def _desk_here(self) -> Desk:
        """The desk of the running loop; a server has one loop for its life."""
        if self._desk is None or self._desk.loop is not asyncio.get_running_loop():
            self.close()
            self._desk = Desk()
        return self._desk

    async def _site_headers_of(self, scope: Message, headers: dict[bytes, bytes]) -> RawHeaders:
        """What the site's middleware puts on every answer, asked of the site itself once."""
        secure = _is_secure(scope, headers)
        if secure not in self._site_headers:
            self._site_headers[secure] = await self._ask_site(scope, headers)
        return self._site_headers[secure]

    @staticmethod
    async def _forever() -> Message:
        return await asyncio.get_running_loop().create_future()

    async def _ask_site(self, scope: Message, headers: dict[bytes, bytes]) -> RawHeaders:
        # With the caller's key: the answer to a session differs.
        kept = {b"host", b"authorization", _proxy_header()} & headers.keys()
        asked = dict(scope) | {
            "method": "OPTIONS",
            "headers": [(name, headers[name]) for name in kept] + [(b"accept", _JSON[0])],
        }
        told: RawHeaders = []

        empty = [{"type": "http.request", "body": b"", "more_body": False}]

        async def nothing() -> Message:
            # After its body, a caller says nothing until it leaves, and this one stays.
            return empty.pop() if empty else await self._forever()

        async def keep(message: Message) -> None:
            if message["type"] == "http.response.start":
                told.extend(message["headers"])

        await self._application(asked, nothing, keep)
        return [(name.lower(), value) for name, value in told if name.lower() not in _OF_ONE_ANSWER]


def _plain_headers(scope: Message) -> dict[bytes, bytes] | None:
    """The headers of a request that is taken here; ``None`` for any other."""
    if (
        scope["type"] != "http"
        or scope["path"] != ADDRESS
        or scope["method"] != "POST"
        or scope.get("query_string")
        or scope.get("root_path")
    ):
        return None
    raw = scope["headers"]
    headers = dict(raw)
    if (
        len(headers) != len(raw)
        # Whoever brings no key has a session, or nothing.
        or not headers.get(b"authorization", b"").partition(b" ")[0]
        or headers.get(b"content-type", b"").lower() not in _JSON
        or headers.get(b"accept", b"*/*") not in _ACCEPTED
        or b"content-encoding" in headers
        or not headers.get(b"content-length", b"").isdigit()
        or not 0 < int(headers[b"content-length"]) <= BODY_LIMIT
        or not _host_is_ours(headers)
        or (settings.SECURE_SSL_REDIRECT and not _is_secure(scope, headers))
    ):
        return None
    return headers


def _host_is_ours(headers: dict[bytes, bytes]) -> bool:
    return _host_is_one_of(headers.get(b"host", b""), tuple(settings.ALLOWED_HOSTS))


@lru_cache(maxsize=256)
def _host_is_one_of(host: bytes, allowed: tuple[str, ...]) -> bool:
    domain, _ = split_domain_port(host.decode("latin-1"))
    return bool(domain) and validate_host(domain, allowed)


def _proxy_header() -> bytes:
    """The header in which a proxy says that it ended TLS; empty where there is none."""
    named = settings.SECURE_PROXY_SSL_HEADER
    return named[0].removeprefix("HTTP_").replace("_", "-").lower().encode() if named else b""


def _is_secure(scope: Message, headers: dict[bytes, bytes]) -> bool:
    """As ``HttpRequest.is_secure`` has it."""
    told = headers.get(_proxy_header())
    if told is not None and settings.SECURE_PROXY_SSL_HEADER:
        return told.decode("latin-1").split(",")[0].strip() == settings.SECURE_PROXY_SSL_HEADER[1]
    return scope.get("scheme") == "https"


async def _body(receive: Receive) -> tuple[list[Message], bytes | None]:
    """What was received, and the body if it is whole and small."""
    messages: list[Message] = []
    size = 0
    while True:
        message = await receive()
        messages.append(message)
        if message["type"] != "http.request":
            return messages, None
        size += len(message.get("body", b""))
        if size > BODY_LIMIT:
            return messages, None
        if not message.get("more_body", False):
            return messages, b"".join(message.get("body", b"") for message in messages)


def _again(messages: list[Message], receive: Receive) -> Receive:
    """``receive`` with what was received already."""
    waiting = iter(messages)

    async def again() -> Message:
        for message in waiting:
            return message
        return await receive()

    return again


def _post(headers: dict[bytes, bytes], body: bytes) -> Post:
    key = headers.get(_KEY_HEADER)
    return Post(
        authorization=headers[b"authorization"].decode("latin-1"),
        idempotency_key=None if key is None else key.decode("latin-1"),
        request_id=request_id_of(headers.get(_REQUEST_ID, b"").decode("latin-1")),
        body=body,
    )


async def _send(send: Send, answer: Answer, site_headers: RawHeaders) -> None:
    own = [
        (name.lower().encode("latin-1"), value.encode("latin-1")) for name, value in answer.headers
    ]
    length = (b"content-length", str(len(answer.body)).encode())
    await send(
        {
            "type": "http.response.start",
            "status": answer.status,
            "headers": [*site_headers, *own, length],
        }
    )
    await send({"type": "http.response.body", "body": answer.body})


def _measure(status: int, seconds: float) -> None:
    """Count the request where the middleware counts those that reach Django."""
    metrics = Metrics.get_instance()
    metrics.requests_total.inc()
    metrics.responses_total.inc()
    metrics.requests_by_method.labels("POST").inc()
    metrics.responses_by_status.labels(str(HTTPStatus(status).value)).inc()
    metrics.requests_latency_before.observe(seconds)
    metrics.requests_latency_by_view_method.labels("api-bids", "POST").observe(seconds)
