"""What tests read of a page."""

from __future__ import annotations

import re
from html import unescape
from typing import Any

from asgiref.sync import async_to_sync


def read_page(reply: Any) -> str:
    """The page's source with every run of whitespace as one space, as a browser shows text."""
    return re.sub(r"\s+", " ", reply.content.decode())


def read_text(reply: Any) -> str:
    """The words of the page, without its markup and with one space between them."""
    return " ".join(unescape(re.sub(r"<[^>]*>", " ", reply.content.decode())).split())


def read_download(reply: Any) -> bytes:
    """The whole of an answer that must leave a chunk at a time.

    Django reads a stream that is not asynchronous to its end before it sends the first byte.
    """
    assert reply.is_async

    async def read() -> bytes:
        return b"".join([chunk async for chunk in reply.streaming_content])

    return async_to_sync(read)()
