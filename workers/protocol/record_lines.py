"""Bytes to lines with bounded memory, and excerpts of lines that are wrong."""

from __future__ import annotations

import re
from collections import deque
from collections.abc import Callable, Iterator
from dataclasses import dataclass

from workers.protocol.record_types import ByteStream, LineError, RowRefusal

HEAD_BYTES = 64 * 1024
_BOM = b"\xef\xbb\xbf"
_EXCERPT_CHARS = 96
_EXCERPT_BEFORE = 48
_UNPRINTABLE = re.compile(r"[\x00-\x1f\x7f-\x9f\u2028\u2029\ud800-\udfff\ufeff]")

#: First bytes of files that people upload by mistake, and what to do instead.
_SIGNATURES = (
    (b"PK\x03\x04", "The file is a zip archive or a spreadsheet. Unpack it, or export it as CSV."),
    (b"\x1f\x8b", "The file is compressed with gzip. Unpack it first."),
    (b"BZh", "The file is compressed with bzip2. Unpack it first."),
    (b"\xfd7zXZ\x00", "The file is compressed with xz. Unpack it first."),
    (b"\x28\xb5\x2f\xfd", "The file is compressed with zstd. Unpack it first."),
    (b"PAR1", "The file is Parquet. Export it as JSONL, one JSON object per line."),
    (b"ARROW1", "The file is Arrow. Export it as JSONL, one JSON object per line."),
    (b"%PDF", "The file is a PDF. Export its text as JSONL or .txt."),
    (b"\xff\xfe", "The file is UTF-16. Save it as UTF-8."),
    (b"\xfe\xff", "The file is UTF-16. Save it as UTF-8."),
)


@dataclass(frozen=True, slots=True)
class Line:
    #: From 1.
    number: int
    #: Without its line end; the beginning only, when ``overlong``.
    data: bytes
    overlong: bool = False


class HeadedStream:
    """A stream whose first bytes can be looked at before they are read."""

    def __init__(self, stream: ByteStream) -> None:
        self._stream = stream
        self._blank_lines = 0
        head = self._fill().removeprefix(_BOM)
        while head and not head.strip():
            self._blank_lines += head.count(b"\n")
            head = self._fill()
        #: The first bytes, without the byte order mark and whole chunks of blank lines.
        self.head = head
        self._rest = head

    def _fill(self) -> bytes:
        parts: list[bytes] = []
        size = 0
        while size < HEAD_BYTES and (part := self._stream.read(HEAD_BYTES - size)):
            parts.append(part)
            size += len(part)
        #: Whether the head is the whole file, blank lines before it aside.
        self.complete = size < HEAD_BYTES
        return b"".join(parts)

    def lines(self, *, max_line_bytes: int) -> Iterator[Line]:
        return iter_lines(self, max_line_bytes=max_line_bytes, first=1 + self._blank_lines)

    def read(self, size: int, /) -> bytes:
        if self._rest:
            part, self._rest = self._rest[:size], self._rest[size:]
            return part
        return self._stream.read(size)


def explain_binary(head: bytes) -> str | None:
    """Why a file that starts like this is no text at all; ``None`` when it may be."""
    for signature, reason in _SIGNATURES:
        if head.startswith(signature):
            return reason
    if b"\x00" in head:
        return "The file is binary, not text. Upload JSONL, CSV or .txt, saved as UTF-8."
    return None


def read_head_lines(head: bytes, *, complete: bool) -> list[bytes]:
    """The whole lines of a head; the last, cut one only when there is no other."""
    lines = head.removeprefix(_BOM).split(b"\n")
    if not complete and len(lines) > 1:
        lines.pop()
    return lines


def iter_lines(stream: ByteStream, *, max_line_bytes: int, first: int = 1) -> Iterator[Line]:
    """Lines split at ``\\n`` only, with ``\\r\\n`` taken as one line end.

    At most ``max_line_bytes`` and one chunk are held at a time: the rest of a
    longer line is read and dropped.
    """
    number = first
    held = b""
    skipping = False
    while chunk := stream.read(HEAD_BYTES):
        pieces = chunk.split(b"\n")
        for piece in pieces[:-1]:
            if not skipping:
                yield _line(number, held + piece, max_line_bytes)
            number += 1
            held, skipping = b"", False
        if skipping:
            continue
        held += pieces[-1]
        if len(held) > max_line_bytes + 1:
            yield _line(number, held, max_line_bytes)
            held, skipping = b"", True
    if held:
        yield _line(number, held, max_line_bytes)


def _line(number: int, data: bytes, max_line_bytes: int) -> Line:
    data = data.removesuffix(b"\r")
    if len(data) > max_line_bytes:
        return Line(number, data[: _EXCERPT_CHARS * 4], overlong=True)
    return Line(number, data)


class RecordLines(Iterator[str]):
    """Feeds ``csv.reader`` with lines, and knows which of them its record came from."""

    def __init__(self, lines: Iterator[Line], decode: Callable[[Line], str]) -> None:
        self._lines = lines
        self._decode = decode
        self._again: deque[Line] = deque()
        #: Lines of the record that is being read.
        self.taken: list[Line] = []
        #: Whether the file ended within it.
        self.has_ended = False

    def __next__(self) -> str:
        line = self._again.popleft() if self._again else next(self._lines, None)
        if line is None:
            self.has_ended = True
            raise StopIteration
        self.taken.append(line)
        return self._decode(line) + "\n"

    def begin_record(self) -> None:
        """Forget the lines of the record before."""
        self.taken = []

    def return_lines(self) -> None:
        """Have all lines of the record but its first read again, by a new ``csv.reader``."""
        self._again.extendleft(reversed(self.taken[1:]))
        self.has_ended = False


def decode(line: Line, *, max_line_bytes: int) -> str:
    """The text of a line.

    Raises
    ------
    RowRefusal
        When it is too long, not UTF-8, or holds a NUL.
    """
    if line.overlong:
        raise RowRefusal(
            f"The line is longer than {max_line_bytes:,} bytes. Split it into several rows."
        )
    try:
        text = line.data.decode("utf-8")
    except UnicodeDecodeError as error:
        at = len(line.data[: error.start].decode("utf-8"))
        raise RowRefusal(
            f"Byte 0x{line.data[error.start]:02x} at character {at + 1} is not UTF-8. "
            "Save the file as UTF-8.",
            start=at,
            end=at + 1,
        ) from None
    if "\x00" in text:
        at = text.index("\x00")
        raise RowRefusal(
            f"There is a NUL byte at character {at + 1}. Remove it.", start=at, end=at + 1
        )
    return text


def hide_unprintable(text: str) -> str:
    """The text with a replacement character for what is not fit to be shown."""
    return _UNPRINTABLE.sub("\ufffd", text)


def build_line_error(line: Line, refusal: RowRefusal, *, fatal: bool = False) -> LineError:
    """The refusal with its line, and an excerpt around the marked characters."""
    text = line.data.decode("utf-8", errors="replace")
    return build_text_error(line.number, text, refusal, fatal=fatal, cut=line.overlong)


def build_text_error(
    number: int, text: str, refusal: RowRefusal, *, fatal: bool = False, cut: bool = False
) -> LineError:
    start = min(refusal.start if refusal.start is not None else 0, len(text))
    end = min(refusal.end if refusal.end is not None else len(text), len(text))
    end = max(end, start)
    first = max(0, start - _EXCERPT_BEFORE) if end > _EXCERPT_CHARS else 0
    last = min(len(text), first + _EXCERPT_CHARS)
    piece = hide_unprintable(text[first:last])
    before = "…" if first else ""
    after = "…" if last < len(text) or cut else ""
    shift = len(before) - first
    return LineError(
        line=number,
        column=None if refusal.start is None else start + 1,
        message=refusal.message,
        excerpt=f"{before}{piece}{after}",
        excerpt_mark_start=min(start, last) + shift,
        excerpt_mark_end=min(end, last) + shift,
        fatal=fatal,
        is_empty=refusal.is_empty,
    )
