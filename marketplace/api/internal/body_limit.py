"""Refusing bodies before they are stored.

Django's ASGI handler spools a body whole before any view sees the request, whatever its method, so
without this anybody could fill the disk. A body that comes too slowly is refused as well, since
each that is open holds a connection and a file. Without a session, an API key or a node's token a
body may be as long as a form; with one, as long as a list of bids; at the addresses of uploads, as
long as a data set, or as a part of an upload that is open. A node's upload may be as long as a
checkpoint or an errand's file where the node has that lease or was asked for that file, and a
vendor's delivery as long as its link allows. One sender has a few such files under way at once, and
a disk that is nearly full takes none.
"""

from __future__ import annotations

import asyncio
import json
import logging
import re
import shutil
import tempfile
from collections import Counter
from collections.abc import Awaitable, Callable, Iterator, MutableMapping
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

from django.conf import settings
from django.contrib import auth
from django.contrib.sessions.backends.db import SessionStore
from django.http import parse_cookie

from marketplace.api.callers import find_keys
from marketplace.common import clock
from marketplace.common.errors import DiskFull, NotFound, is_disk_full
from marketplace.common.problems import build_early_error
from marketplace.common.threads import run_in_thread
from marketplace.fleet.models import Node
from marketplace.fleet.selectors import find_node_by_api_token
from marketplace.jobs.errands import find_file_limit
from marketplace.jobs.selectors import has_lease
from marketplace.jobs.services.parts import find_part_limit
from marketplace.jobs.services.uploads import CHECKPOINT_BYTES_MAX
from marketplace.vendors.deliveries import compute_delivery_limit
from marketplace.vendors.handover import open_link

log = logging.getLogger(__name__)

Message = MutableMapping[str, Any]
Receive = Callable[[], Awaitable[Message]]
Send = Callable[[Message], Awaitable[None]]
Application = Callable[[Message, Receive, Send], Awaitable[None]]
Headers = dict[bytes, bytes]

#: Where nodes send files, by the beginning of the address.
NODE_UPLOADS = "/internal/v1/leases/"
NODE_ERRAND_FILES = re.compile(r"/internal/v1/errands/[^/]*/file")
#: Where people and programs send data sets.
UPLOADS = frozenset({"/api/datasets", "/v1/files", "/datasets", "/bids/new"})
#: Where parts of files arrive.
_PARTS = re.compile(r"/v1/uploads/([^/]{1,60})/parts")
#: Where outside vendors deliver; their links say who they are.
VENDOR_WORK = "/api/vendor-work/"
#: Of a request without a known sender: enough for any form and for a join's self-test.
ANONYMOUS_BYTES = 64 * 1024
#: Of any other request, and beside the file of a form: its other fields and its boundaries.
FORM_BYTES = 1024 * 1024
#: Seconds that a body has in any case, and bytes for each of which it has one more.
BODY_WITHIN_S = 60.0
BODY_BYTES_PER_S = 4000
#: Files that one sender may have under way at once, in each process of the web server.
FILES_AT_ONCE = 8
#: Bytes of the disk that are left to the database, and after how many of a file to look.
SPARE_BYTES, LOOK_BYTES = 2 * 1024**3, 16 * 1024**2
_BEARER = b"Bearer "
_open_files: Counter[str] = Counter()


@dataclass(frozen=True, slots=True)
class Allowance:
    """How long a body may be."""

    bytes: int
    #: Whose file it is; empty for what is no file.
    sender: str = ""
    #: The answer to one that is longer, and what to do.
    status: int = 413
    code: str = "file_too_large"
    advice: str = "Send less."


SHORT = Allowance(ANONYMOUS_BYTES)
#: Of a program without a key that works: it is told so, not that its file is too large.
KEYLESS = Allowance(
    ANONYMOUS_BYTES,
    status=401,
    code="invalid_api_key",
    advice="What is longer needs an API key that works here; none came, or one that does not.",
)
#: Addresses of programs.
_PROGRAMS = ("/api/", "/v1/")


class BodyLimitMiddleware:
    """An ASGI application in front of another."""

    def __init__(self, application: Application) -> None:
        self._application = application

    async def __call__(self, scope: Message, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            await self._application(scope, receive, send)
            return
        headers = dict(scope["headers"])
        allowed = await _find_allowance(scope, headers)
        if allowed is None:
            detail = "Send this node's bearer token."
            await _refuse(send, scope["path"], 401, "unknown_node_token", detail)
        elif allowed.sender and _open_files[allowed.sender] >= FILES_AT_ONCE:
            detail = f"You send {FILES_AT_ONCE} files already. Send this one when one is through."
            await _refuse(send, scope["path"], 429, "too_many_uploads", detail)
        else:
            with _counted(allowed.sender):
                await self._limited(scope, receive, send, allowed=allowed, headers=headers)

    async def _limited(
        self,
        scope: Message,
        receive: Receive,
        send: Send,
        *,
        allowed: Allowance,
        headers: Headers,
    ) -> None:
        limit = allowed.bytes
        detail = f"The body is larger than {limit:,} bytes. {allowed.advice}"
        declared = headers.get(b"content-length", b"0")
        if not declared.isdigit() or int(declared) > limit:
            await _refuse(send, scope["path"], allowed.status, allowed.code, detail)
            return
        full = DiskFull()
        if allowed.sender and _is_disk_nearly_full():
            await _refuse(send, scope["path"], full.status, full.code, full.message)
            return
        ends_at = asyncio.get_running_loop().time() + BODY_WITHIN_S
        received, looks_at = 0, LOOK_BYTES
        is_whole = is_late = is_full = answered = False

        async def count() -> Message:
            nonlocal received, looks_at, is_whole, is_late, is_full
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
            if allowed.sender and received >= looks_at:
                looks_at, is_full = received + LOOK_BYTES, _is_disk_nearly_full()
            return gone if received > limit or is_full else message

        async def pass_on(message: Message) -> None:
            nonlocal answered
            answered = True
            await send(message)

        if await self._finds_no_room(scope, count, pass_on):
            is_full = True
        if received > limit and not answered:
            await _refuse(send, scope["path"], allowed.status, allowed.code, detail)
        elif is_full and not answered:
            await _refuse(send, scope["path"], full.status, full.code, full.message)
        elif is_late and not answered:
            detail = f"The body came too slowly. Send {BODY_BYTES_PER_S:,} bytes a second or more."
            await _refuse(send, scope["path"], 408, "body_too_slow", detail)

    async def _finds_no_room(self, scope: Message, receive: Receive, send: Send) -> bool:
        """Answer a request, if the disk does not fill up under its body."""
        try:
            await self._application(scope, receive, send)
        except OSError as error:
            if not is_disk_full(error):
                raise
            log.error("there is no room for the body of %r", scope["path"], exc_info=error)
            return True
        return False


async def _find_allowance(scope: Message, headers: Headers) -> Allowance | None:
    """What a request's body may be; ``None``: it is for nodes alone, and no node sends it."""
    path = scope["path"]
    if scope["method"] in ("GET", "HEAD", "OPTIONS"):
        # Their bodies mean nothing, and are stored like any others.
        return SHORT
    if path.startswith(NODE_UPLOADS) or NODE_ERRAND_FILES.fullmatch(path):
        return await run_in_thread(lambda: _find_upload_allowance(path, headers))
    if path.startswith(VENDOR_WORK):
        return await run_in_thread(lambda: _find_delivery_allowance(path))
    sender = None if _is_short(headers) else await run_in_thread(lambda: _find_sender(headers))
    if sender is None:
        return KEYLESS if path.startswith(_PROGRAMS) else SHORT
    if path in UPLOADS:
        return Allowance(settings.UPLOAD_BYTES_MAX + FORM_BYTES, sender)
    if part := _PARTS.fullmatch(path):
        return await run_in_thread(lambda: _find_part_allowance(part[1], sender))
    return Allowance(settings.DATA_UPLOAD_MAX_MEMORY_SIZE + FORM_BYTES)


@contextmanager
def _counted(sender: str) -> Iterator[None]:
    """Count a file among those that its sender has under way."""
    if not sender:
        yield
        return
    _open_files[sender] += 1
    try:
        yield
    finally:
        _open_files[sender] -= 1
        if not _open_files[sender]:
            del _open_files[sender]


def _is_disk_nearly_full() -> bool:
    """Whether the disk on which bodies are spooled is nearly full."""
    return shutil.disk_usage(tempfile.gettempdir()).free < SPARE_BYTES


def _find_upload_allowance(path: str, headers: Headers) -> Allowance | None:
    """What a node may send there; ``None`` for anybody else.

    What a node was not asked for is as short as anybody's: its view refuses it.
    """
    node = _find_node(headers)
    if node is None:
        return None
    token = path.split("/")[4].replace("\0", "")
    if not path.startswith(NODE_UPLOADS):
        limit = find_file_limit(node=node, token=token, now=clock.now())
        return Allowance(limit, node.pk) if limit else SHORT
    if not has_lease(node=node, lease_token=token):
        return SHORT
    return Allowance(getattr(settings, "CHECKPOINT_BYTES_MAX", CHECKPOINT_BYTES_MAX), node.pk)


def _find_part_allowance(upload_id: str, sender: str) -> Allowance:
    """What an upload that was announced takes; its view asks whose it is."""
    limit = find_part_limit(upload_id, now=clock.now())
    if not limit:
        advice = "This upload is not open. Begin a new one."
        return Allowance(ANONYMOUS_BYTES, status=409, code="upload_not_pending", advice=advice)
    return Allowance(limit + FORM_BYTES, sender)


def _find_delivery_allowance(path: str) -> Allowance:
    """What the link in an address allows; what no link allows is as short as anybody's."""
    token = path.removeprefix(VENDOR_WORK).partition("/")[0]
    try:
        preparation = open_link(token, now=clock.now())
    except NotFound:
        return SHORT
    return Allowance(compute_delivery_limit(preparation), preparation.pk)


def _is_short(headers: Headers) -> bool:
    """Whether a body says that anybody may send it."""
    declared = headers.get(b"content-length", b"")
    return declared.isdigit() and len(declared) < 10 and int(declared) <= ANONYMOUS_BYTES


def _find_sender(headers: Headers) -> str | None:
    """The person who signed in, the program's key or the node that sends a body.

    A frozen key is nobody's.
    """
    cookies = parse_cookie(headers.get(b"cookie", b"").decode("latin-1"))
    session = cookies.get(settings.SESSION_COOKIE_NAME)
    person = session and SessionStore(session.replace("\0", "")).get(auth.SESSION_KEY)
    if person:
        return person
    secret = _find_secret(headers)
    key = None if secret is None else find_keys([secret], now=clock.now())[secret]
    if key is not None:
        # Whoever stole one must not keep its owner's other programs from sending.
        return key.pk if key.frozen_at is None else None
    node = _find_node(headers)
    return None if node is None else node.pk


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
