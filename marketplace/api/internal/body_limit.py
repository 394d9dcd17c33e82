"""Refusing bodies before they are stored.

Django's ASGI handler spools a body whole before any view sees the request, whatever its method, so
without this anybody could fill the disk. A body that comes too slowly is refused as well, since
each that is open holds a connection and a file. Without a session, an API key or a node's token a
body may be as long as a form; with one, as long as a list of bids; at the addresses of uploads, as
long as a data set. A node's upload may be as long as a checkpoint or an errand's file where the
node has that lease or was asked for that file, and a vendor's delivery as long as its link allows.
"""

from __future__ import annotations

import asyncio
import json
import re
from collections.abc import Awaitable, Callable, MutableMapping
from typing import Any

from django.conf import settings
from django.contrib import auth
from django.contrib.sessions.backends.db import SessionStore
from django.http import parse_cookie

from marketplace.api.callers import find_keys
from marketplace.common import clock
from marketplace.common.errors import NotFound
from marketplace.common.problems import build_early_error
from marketplace.common.threads import run_in_thread
from marketplace.fleet.models import Node
from marketplace.fleet.selectors import find_node_by_api_token
from marketplace.jobs.errands import find_file_limit
from marketplace.jobs.selectors import has_lease
from marketplace.jobs.services.parts import PART_BYTES_MAX
from marketplace.jobs.services.uploads import CHECKPOINT_BYTES_MAX
from marketplace.vendors.deliveries import compute_delivery_limit
from marketplace.vendors.handover import open_link

Message = MutableMapping[str, Any]
Receive = Callable[[], Awaitable[Message]]
Send = Callable[[Message], Awaitable[None]]
Application = Callable[[Message, Receive, Send], Awaitable[None]]
Headers = dict[bytes, bytes]

#: Where nodes send files, by the beginning of the address.
NODE_UPLOADS = "/internal/v1/leases/"
NODE_ERRAND_FILES = re.compile(r"/internal/v1/errands/[^/]*/file")
#: Where people and programs send data sets.
UPLOADS = frozenset({"/api/datasets", "/api/bids", "/v1/files", "/datasets", "/bids/new"})
#: Where parts of files arrive.
_PARTS = re.compile(r"/v1/uploads/[^/]{1,60}/parts")
#: Where outside vendors deliver; their links say who they are.
VENDOR_WORK = "/api/vendor-work/"
#: Of a request without a known sender: enough for any form and for a join's self-test.
ANONYMOUS_BYTES = 64 * 1024
#: Of any other request, and beside the file of a form: its other fields and its boundaries.
FORM_BYTES = 1024 * 1024
#: Seconds that a body has in any case, and bytes for each of which it has one more.
BODY_WITHIN_S = 60.0
BODY_BYTES_PER_S = 4000
_BEARER = b"Bearer "


class BodyLimitMiddleware:
    """An ASGI application in front of another."""

    def __init__(self, application: Application) -> None:
        self._application = application

    async def __call__(self, scope: Message, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            await self._application(scope, receive, send)
            return
        headers = dict(scope["headers"])
        if scope["method"] in ("GET", "HEAD", "OPTIONS"):
            # Their bodies mean nothing, and are stored like any others.
            limit = ANONYMOUS_BYTES
        elif scope["path"].startswith(NODE_UPLOADS) or NODE_ERRAND_FILES.fullmatch(scope["path"]):
            limit = await run_in_thread(lambda: _find_upload_limit(scope["path"], headers))
            if limit is None:
                detail = "Send this node's bearer token."
                await _refuse(send, scope["path"], 401, "unknown_node_token", detail)
                return
        elif scope["path"].startswith(VENDOR_WORK):
            limit = await run_in_thread(lambda: _find_delivery_limit(scope["path"]))
        elif _is_short(headers) or not await _ask(_is_known, headers):
            limit = ANONYMOUS_BYTES
        elif scope["path"] in UPLOADS:
            limit = settings.UPLOAD_BYTES_MAX + FORM_BYTES
        elif _PARTS.fullmatch(scope["path"]):
            limit = PART_BYTES_MAX + FORM_BYTES
        else:
            limit = settings.DATA_UPLOAD_MAX_MEMORY_SIZE + FORM_BYTES
        await self._limited(scope, receive, send, limit=limit, headers=headers)

    async def _limited(
        self,
        scope: Message,
        receive: Receive,
        send: Send,
        *,
        limit: int,
        headers: Headers,
    ) -> None:
        detail = f"The body is larger than {limit:,} bytes. Send less."
        declared = headers.get(b"content-length", b"0")
        if not declared.isdigit() or int(declared) > limit:
            await _refuse(send, scope["path"], 413, "file_too_large", detail)
            return
        ends_at = asyncio.get_running_loop().time() + BODY_WITHIN_S
        received = 0
        is_whole = is_late = answered = False

        async def count() -> Message:
            nonlocal received, is_whole, is_late
            if is_whole:
                # It waits for the caller to go.
                return await receive()
            # To the application a refused body looks as if the caller had gone: it stops and says
            # nothing.
            gone = {"type": "http.disconnect"}
            try:
                async with asyncio.timeout_at(ends_at + received / BODY_BYTES_PER_S):
                    message = await receive()
            except TimeoutError:
                is_late = True
                return gone
            received += len(message.get("body", b""))
            is_whole = not message.get("more_body", False)
            return gone if received > limit else message

        async def pass_on(message: Message) -> None:
            nonlocal answered
            answered = True
            await send(message)

        await self._application(scope, count, pass_on)
        if received > limit and not answered:
            await _refuse(send, scope["path"], 413, "file_too_large", detail)
        elif is_late and not answered:
            detail = f"The body came too slowly. Send {BODY_BYTES_PER_S:,} bytes a second or more."
            await _refuse(send, scope["path"], 408, "body_too_slow", detail)


def _find_upload_limit(path: str, headers: Headers) -> int | None:
    """Bytes that a node may send there; ``None`` for anybody else.

    What a node was not asked for is as short as anybody's: its view refuses it.
    """
    node = _find_node(headers)
    if node is None:
        return None
    token = path.split("/")[4].replace("\0", "")
    if not path.startswith(NODE_UPLOADS):
        return find_file_limit(node=node, token=token, now=clock.now()) or ANONYMOUS_BYTES
    if not has_lease(node=node, lease_token=token):
        return ANONYMOUS_BYTES
    return getattr(settings, "CHECKPOINT_BYTES_MAX", CHECKPOINT_BYTES_MAX)


def _find_delivery_limit(path: str) -> int:
    """What the link in an address allows; what no link allows is as short as anybody's."""
    token = path.removeprefix(VENDOR_WORK).partition("/")[0]
    try:
        return compute_delivery_limit(open_link(token, now=clock.now()))
    except NotFound:
        return ANONYMOUS_BYTES


def _is_short(headers: Headers) -> bool:
    """Whether a body says that anybody may send it."""
    declared = headers.get(b"content-length", b"")
    return declared.isdigit() and len(declared) < 10 and int(declared) <= ANONYMOUS_BYTES


async def _ask(who: Callable[[Headers], bool], headers: Headers) -> bool:
    return await run_in_thread(lambda: who(headers))


def _is_known(headers: Headers) -> bool:
    """Whether a long body comes from a person who signed in, a program or a node."""
    return _has_session(headers) or _has_api_key(headers) or _is_node(headers)


def _has_session(headers: Headers) -> bool:
    cookies = parse_cookie(headers.get(b"cookie", b"").decode("latin-1"))
    key = cookies.get(settings.SESSION_COOKIE_NAME)
    return key is not None and auth.SESSION_KEY in SessionStore(key.replace("\0", ""))


def _has_api_key(headers: Headers) -> bool:
    secret = _find_secret(headers)
    return secret is not None and find_keys([secret], now=clock.now())[secret] is not None


def _is_node(headers: Headers) -> bool:
    return _find_node(headers) is not None


def _find_node(headers: Headers) -> Node | None:
    secret = _find_secret(headers)
    return None if secret is None else find_node_by_api_token(secret, now=clock.now())


def _find_secret(headers: Headers) -> str | None:
    given = headers.get(b"authorization", b"")
    return given.removeprefix(_BEARER).decode("latin-1") if given.startswith(_BEARER) else None


async def _refuse(send: Send, path: str, status: int, code: str, detail: str) -> None:
    error, content_type = build_early_error(path=path, code=code, detail=detail, status=status)
    body = json.dumps(error).encode()
    headers = [(b"content-type", content_type.encode()), (b"connection", b"close")]
    await send({"type": "http.response.start", "status": status, "headers": headers})
    await send({"type": "http.response.body", "body": body})
