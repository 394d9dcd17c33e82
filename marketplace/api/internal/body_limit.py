"""Refusing bodies before they are stored.

Django's ASGI handler spools a body whole before any view sees the request, so without this anybody
could fill the disk. A node's uploads may be as large as a checkpoint, but only with a node's token;
everything else may be as large as a data set.
"""

from __future__ import annotations

import json
from collections.abc import Awaitable, Callable, MutableMapping
from typing import Any

from asgiref.sync import sync_to_async
from django.conf import settings
from django.db import connection

from marketplace.api.internal.endpoint import TYPE_PREFIX
from marketplace.fleet.selectors import find_node_by_api_token
from marketplace.jobs.services.uploads import CHECKPOINT_BYTES_MAX

Message = MutableMapping[str, Any]
Receive = Callable[[], Awaitable[Message]]
Send = Callable[[Message], Awaitable[None]]
Application = Callable[[Message, Receive, Send], Awaitable[None]]

NODE_UPLOADS = "/internal/v1/leases/"
#: Beside the file of a form: its other fields and its boundaries.
FORM_BYTES = 1024 * 1024
_BEARER = b"Bearer "


class BodyLimitMiddleware:
    """An ASGI application in front of another."""

    def __init__(self, application: Application) -> None:
        self._application = application

    async def __call__(self, scope: Message, receive: Receive, send: Send) -> None:
        if scope["type"] != "http" or scope["method"] in ("GET", "HEAD", "OPTIONS"):
            await self._application(scope, receive, send)
            return
        limit = settings.UPLOAD_BYTES_MAX + FORM_BYTES
        headers = dict(scope["headers"])
        if scope["path"].startswith(NODE_UPLOADS):
            if not await sync_to_async(_is_node, thread_sensitive=False)(
                headers.get(b"authorization", b"")
            ):
                await _refuse(send, 401, "unknown_node_token", "Send this node's bearer token.")
                return
            limit = getattr(settings, "CHECKPOINT_BYTES_MAX", CHECKPOINT_BYTES_MAX)
        await self._limited(scope, receive, send, limit=limit, headers=headers)

    async def _limited(
        self,
        scope: Message,
        receive: Receive,
        send: Send,
        *,
        limit: int,
        headers: dict[bytes, bytes],
    ) -> None:
        detail = f"The body is larger than {limit:,} bytes. Send less."
        told = headers.get(b"content-length", b"0")
        if not told.isdigit() or int(told) > limit:
            await _refuse(send, 413, "file_too_large", detail)
            return
        received = 0
        answered = False

        async def count() -> Message:
            nonlocal received
            message = await receive()
            received += len(message.get("body", b""))
            # To the application it looks as if the caller had gone: it stops and says nothing.
            return {"type": "http.disconnect"} if received > limit else message

        async def pass_on(message: Message) -> None:
            nonlocal answered
            answered = True
            await send(message)

        await self._application(scope, count, pass_on)
        if received > limit and not answered:
            await _refuse(send, 413, "file_too_large", detail)


def _is_node(authorization: bytes) -> bool:
    if not authorization.startswith(_BEARER):
        return False
    try:
        token = authorization.removeprefix(_BEARER).decode("latin-1")
        return find_node_by_api_token(token) is not None
    finally:
        # This thread is nobody's: its connection goes back at once.
        connection.close()


async def _refuse(send: Send, status: int, code: str, detail: str) -> None:
    body = json.dumps(
        {"type": TYPE_PREFIX + code, "status": status, "code": code, "detail": detail}
    ).encode()
    headers = [(b"content-type", b"application/problem+json"), (b"connection", b"close")]
    await send({"type": "http.response.start", "status": status, "headers": headers})
    await send({"type": "http.response.body", "body": body})
