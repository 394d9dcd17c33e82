"""Heads of requests are bounded in size and in time.

The parser of the web server takes a head of any length, a byte an hour if need be. So anybody could
fill its memory, or hold as many connections as it has. What comes after the head is bounded by
``marketplace.api.internal.body_limit``.
"""

from __future__ import annotations

import asyncio
from typing import Any

from uvicorn.protocols.http.httptools_impl import HttpToolsProtocol

#: A whole head: method, address and all headers.
HEAD_BYTES_MAX = 64 * 1024
#: From a connection, or from the first bytes of a later head on it, until the head is whole.
HEAD_WITHIN_S = 30.0


class BoundedHttpProtocol(HttpToolsProtocol):
    """One connection; it is closed where a head is too long or comes too slowly."""

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self._is_in_head = False
        #: Heads that have begun, and bytes of the one that has not ended, but for its first data.
        self._heads = 0
        self._head_bytes = 0
        self._head_timer: asyncio.TimerHandle | None = None

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        super().connection_made(transport)
        self._start_timer()

    def connection_lost(self, exc: Exception | None) -> None:
        self._stop_timer()
        super().connection_lost(exc)

    def data_received(self, data: bytes) -> None:
        heads = self._heads
        super().data_received(data)
        # Data in which a head begins may be another request's body for the most part.
        if self._is_in_head and self._heads == heads:
            self._head_bytes += len(data)
            if self._head_bytes > HEAD_BYTES_MAX:
                self._give_up()

    def on_message_begin(self) -> None:
        self._is_in_head, self._head_bytes = True, 0
        self._heads += 1
        self._start_timer()
        super().on_message_begin()

    def on_headers_complete(self) -> None:
        self._stop_timer()
        self._is_in_head = False
        super().on_headers_complete()

    def _start_timer(self) -> None:
        if self._head_timer is None:
            loop = asyncio.get_running_loop()
            self._head_timer = loop.call_later(HEAD_WITHIN_S, self._give_up)

    def _stop_timer(self) -> None:
        if self._head_timer is not None:
            self._head_timer.cancel()
            self._head_timer = None

    def _give_up(self) -> None:
        self._stop_timer()
        self.transport.close()
