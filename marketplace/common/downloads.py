"""Long answers, sent a chunk at a time: files, whole or in part (RFC 9110, section 14), and lines.

Django reads a synchronous stream to its end before it sends the first byte, so a few slow readers
of large files would fill the memory. Between two chunks nothing here holds a thread or a database
connection.
"""

from __future__ import annotations

import re
from collections.abc import AsyncIterator, Iterator
from http import HTTPStatus
from itertools import islice
from typing import IO

from django.http import StreamingHttpResponse

from marketplace.common.errors import UserError
from marketplace.common.threads import run_in_thread

_RANGE = re.compile(r"bytes=(\d{1,19})-(\d{1,19})?")
_CHUNK_BYTES = 256 * 1024
#: Lines made at a time; one of a transcript has about 500 bytes.
_LINES = 500


class RangeNotSatisfiable(UserError):
    """The range begins where the file has ended."""

    default_status = 416

    def __init__(self, size: int) -> None:
        super().__init__("range_not_satisfiable", f"The file has {size} bytes. Fetch it again.")
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


class FileDownload(StreamingHttpResponse):
    """A file, or the part of it that a ``Range`` header asks for.

    Raises
    ------
    RangeNotSatisfiable
        The file is closed then.
    """

    def __init__(
        self,
        file: IO[bytes],
        *,
        size: int,
        sha256: str,
        range_header: str | None = None,
        content_type: str = "application/octet-stream",
        name: str | None = None,
    ) -> None:
        try:
            part = parse_byte_range(range_header, size=size)
        except RangeNotSatisfiable:
            file.close()
            raise
        is_partial = len(part) != size
        super().__init__(
            _read_chunks(file, part),
            content_type=content_type,
            status=HTTPStatus.PARTIAL_CONTENT if is_partial else HTTPStatus.OK,
        )
        self._file = file
        self["Content-Length"] = str(len(part))
        self["Accept-Ranges"] = "bytes"
        self["ETag"] = f'"{sha256}"'
        if name is not None:
            self["Content-Disposition"] = f'attachment; filename="{name}"'
        if is_partial:
            self["Content-Range"] = f"bytes {part.start}-{part.stop - 1}/{size}"

    def close(self) -> None:
        """Django calls this at the end, also when the reader leaves before it."""
        self._file.close()
        super().close()


class LinesDownload(StreamingHttpResponse):
    """Lines of text that are made while they are sent.

    ``lines`` is asked for some at a time, each time on another thread: it must not hold a cursor
    of the database from one line to the next.
    """

    def __init__(self, lines: Iterator[str], *, content_type: str, name: str) -> None:
        super().__init__(_join_lines(lines), content_type=content_type)
        self["Content-Disposition"] = f'attachment; filename="{name}"'


async def _read_chunks(file: IO[bytes], part: range) -> AsyncIterator[bytes]:
    await run_in_thread(lambda: file.seek(part.start))
    left = len(part)
    while left > 0:
        size = min(_CHUNK_BYTES, left)
        chunk = await run_in_thread(lambda size=size: file.read(size))
        if not chunk:
            return
        left -= len(chunk)
        yield chunk


async def _join_lines(lines: Iterator[str]) -> AsyncIterator[bytes]:
    while some := await run_in_thread(
        lambda: "".join(f"{line}\n" for line in islice(lines, _LINES))
    ):
        yield some.encode()


class PartsDownload(StreamingHttpResponse):
    """Bytes that are made while they are sent, under the rules of ``LinesDownload``."""

    def __init__(self, parts: Iterator[bytes], *, content_type: str, name: str) -> None:
        super().__init__(_read_parts(parts), content_type=content_type)
        self["Content-Disposition"] = f'attachment; filename="{name}"'


async def _read_parts(parts: Iterator[bytes]) -> AsyncIterator[bytes]:
    while (part := await run_in_thread(lambda: next(parts, None))) is not None:
        if part:
            yield part
