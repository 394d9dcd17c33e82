"""Serving a part of a file (RFC 9110, section 14): one range, or the whole."""

from __future__ import annotations

import re
from collections.abc import AsyncIterator
from typing import IO

from asgiref.sync import sync_to_async

from marketplace.common.errors import UserError

_RANGE = re.compile(r"bytes=(\d{1,19})-(\d{1,19})?")
_CHUNK_BYTES = 256 * 1024


class RangeNotSatisfiable(UserError):
    """The range begins where the file has ended."""

    default_status = 416

    def __init__(self, size: int) -> None:
        super().__init__("range_not_satisfiable", f"The file has {size} bytes. Fetch it anew.")
        self.size = size


def parse_byte_range(header: str | None, *, size: int) -> range:
    """The bytes a ``Range`` header asks for; all of them when it asks for what we do not serve.

    Raises
    ------
    RangeNotSatisfiable
    """
    asked = _RANGE.fullmatch(header or "")
    if asked is None:
        return range(size)
    start = int(asked[1])
    stop = min(size, size if asked[2] is None else int(asked[2]) + 1)
    if start >= size or stop <= start:
        raise RangeNotSatisfiable(size)
    return range(start, stop)


async def chunks(file: IO[bytes], part: range) -> AsyncIterator[bytes]:
    """The bytes of a part, a chunk at a time, and the file closed at the end."""
    try:
        await sync_to_async(file.seek)(part.start)
        left = len(part)
        while left > 0:
            chunk = await sync_to_async(file.read)(min(_CHUNK_BYTES, left))
            if not chunk:
                return
            left -= len(chunk)
            yield chunk
    finally:
        await sync_to_async(file.close)()
