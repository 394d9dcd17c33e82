"""Bytes of a file to one raw row after another, without giving up at a broken one."""

from __future__ import annotations

import codecs
import csv
import re
from collections.abc import Iterator
from dataclasses import dataclass, replace

from workers.protocol.record_lines import HeadedStream, Line, RecordLines, explain_binary
from workers.protocol.record_types import ByteStream, Limits
from workers.protocol.records import Container, detect_format

#: What is held of a list that stands on one line.
_MAX_LIST_BYTES = 256 * 1024 * 1024
#: A brace or a quote; an escape inside a text counts as one sign.
_BRACE = re.compile(r'\\.|["{}]')
#: The beginning of a JSON object, whose line may end before it does.
_OBJECT = re.compile(rb'\s*\{\s*["}]')
_UTF16 = ((b"\xff\xfe", "utf-16-le"), (b"\xfe\xff", "utf-16-be"))


class UnreadableFileError(ValueError):
    """The file is no text, or has no rows; the message says what to upload instead."""


@dataclass(frozen=True, slots=True)
class RawRow:
    """A row as it was found."""

    #: Line of the file, from 1.
    line: int
    #: JSON to be parsed; ``None`` where ``cells`` holds the row.
    text: str | None
    #: Column names and cells of a table, or the ``text`` of a plain file.
    cells: dict[str, str] | None = None
    #: What reading already had to mend; empty for nothing.
    mended: str = ""
    #: Why the row cannot be used; empty when it can.
    refusal: str = ""
    #: Its place among the rows of the file, from 1: the row's id, wherever it goes.
    number: int = 0


class _Utf8Stream:
    """A UTF-16 file as UTF-8, a chunk at a time."""

    def __init__(self, stream: ByteStream, encoding: str, first: bytes) -> None:
        self._stream = stream
        self._decoder = codecs.getincrementaldecoder(encoding)(errors="replace")
        self._held = self._decoder.decode(first).encode("utf-8")
        self._ended = False

    def read(self, size: int, /) -> bytes:
        while not self._held and not self._ended:
            chunk = self._stream.read(max(2, size))
            self._ended = not chunk
            text = self._decoder.decode(chunk, final=self._ended)
            self._held = text.encode("utf-8", "replace")
        part, self._held = self._held[:size], self._held[size:]
        return part


class _RejoinedStream:
    """A stream with its first bytes put back."""

    def __init__(self, first: bytes, stream: ByteStream) -> None:
        self._first = first
        self._stream = stream

    def read(self, size: int, /) -> bytes:
        if self._first:
            part, self._first = self._first[:size], self._first[size:]
            return part
        return self._stream.read(size)


def read_raw_rows(stream: ByteStream, *, limits: Limits | None = None) -> Iterator[RawRow]:
    """Give every row of a file, usable or not, in its order.

    Parameters
    ----------
    stream : ByteStream
        Read once, from where it stands, one line held at a time.

    Raises
    ------
    UnreadableFileError
        When the file is no text (an archive, a picture) or is empty.
    """
    for number, row in enumerate(_iter_rows(stream, limits or Limits()), start=1):
        yield replace(row, number=number)


def _iter_rows(stream: ByteStream, limits: Limits) -> Iterator[RawRow]:
    headed = HeadedStream(_as_utf8(stream))
    reason = explain_binary(headed.head)
    if reason is not None:
        raise UnreadableFileError(reason)
    if not headed.head.strip():
        raise UnreadableFileError("The file is empty. Upload one with some rows.")
    found = detect_format(headed.head, complete=headed.complete)
    if found is not None and found.container is Container.CSV:
        yield from _read_table(headed, found.delimiter, limits)
    elif headed.head.lstrip()[:1] == b"[":
        yield from _read_json_objects(headed, limits)
    elif _looks_like_json(headed.head):
        yield from _read_json_lines(headed, limits)
    elif _OBJECT.match(headed.head):
        yield from _read_json_objects(headed, limits)
    else:
        delimiter = _find_delimiter(headed.head)
        if delimiter is not None:
            yield from _read_table(headed, delimiter, limits)
        else:
            yield from _read_paragraphs(headed, limits)


def _as_utf8(stream: ByteStream) -> ByteStream:
    first = stream.read(2)
    for mark, encoding in _UTF16:
        if first == mark:
            return _Utf8Stream(stream, encoding, b"")
    return _RejoinedStream(first, stream)


def _looks_like_json(head: bytes) -> bool:
    lines = [line.strip() for line in head.split(b"\n")[:64]]
    lines = [line for line in lines if line]
    opened = sum(line[:1] == b"{" or line.startswith(b"```") for line in lines)
    return 2 * opened >= len(lines)


def _find_delimiter(head: bytes) -> str | None:
    """The delimiter of a table whose columns have names of their owner's; ``None`` for prose."""
    lines = [line for line in head.decode("utf-8", "replace").splitlines()[:20] if line.strip()]
    if len(lines) < 3:
        return None
    for delimiter in (",", "\t", ";"):
        try:
            widths = {len(row) for row in csv.reader(lines[:-1], delimiter=delimiter) if row}
        except csv.Error:
            continue
        if len(widths) == 1 and widths.pop() >= 2:
            return delimiter
    return None


def _decode(line: Line, limits: Limits) -> tuple[str, str, str]:
    """A line's text, what was mended in it, and why it cannot be used."""
    if line.overlong:
        return "", "", f"The line is longer than {limits.max_line_bytes:,} bytes."
    try:
        text, mended = line.data.decode("utf-8"), ""
    except UnicodeDecodeError:
        text = line.data.decode("cp1252", "replace")
        mended = "The line was not UTF-8; it was read as Windows-1252."
    if "\x00" in text:
        text, mended = text.replace("\x00", ""), "NUL characters were removed."
    return text, mended, ""


def _read_json_lines(stream: HeadedStream, limits: Limits) -> Iterator[RawRow]:
    for line in stream.lines(max_line_bytes=limits.max_line_bytes):
        text, mended, refusal = _decode(line, limits)
        text = text.strip()
        if refusal:
            yield RawRow(line.number, None, refusal=refusal)
        elif text and not text.startswith("```"):
            yield RawRow(line.number, text, mended=mended)


def _read_json_objects(stream: HeadedStream, limits: Limits) -> Iterator[RawRow]:
    """The objects of one JSON list or file, on one line, on a line each, or indented.

    Objects are separated by their braces. A text never goes on over a line's end in JSON, so a
    quote that is not closed spoils one line only; and where each object has a line of its own, a
    brace that is not closed spoils one object only.
    """
    held: list[str] = []
    depth = size = first = 0
    is_line_wise = False
    for line in stream.lines(max_line_bytes=_MAX_LIST_BYTES):
        text, mended, refusal = _decode(line, limits)
        if refusal:
            yield RawRow(line.number, None, refusal=refusal)
            continue
        if held and is_line_wise and text.lstrip().startswith("{"):
            yield RawRow(first, "".join(held).strip())
            held, depth, size = [], 0, 0
        start, ended, in_text = 0, 0, False
        for match in _BRACE.finditer(text):
            sign = match.group()
            if sign == '"':
                in_text = not in_text
            elif in_text or len(sign) > 1:
                continue
            elif sign == "{":
                if depth == 0:
                    yield from _refuse_between(line.number, text[ended : match.start()])
                    start, first = match.start(), line.number
                depth += 1
            elif depth > 0:
                depth -= 1
                if depth == 0:
                    is_line_wise = is_line_wise or not held
                    held.append(text[start : match.end()])
                    yield _end_object(first, held, mended, limits)
                    held, size, ended = [], 0, match.end()
        if not depth:
            yield from _refuse_between(line.number, text[ended:])
        else:
            held.append(text[start:] + "\n")
            size += len(text)
            if size > limits.max_line_bytes:
                yield RawRow(first, None, refusal="The row is too long, or is never closed.")
                held, depth, size = [], 0, 0
    if held:
        yield RawRow(first, "".join(held).strip())


def _refuse_between(line: int, text: str) -> Iterator[RawRow]:
    """What stands between two objects, unless it only separates them."""
    if stray := text.strip(" \t\r\n,[]}"):
        yield RawRow(line, stray, refusal="The row is not a JSON object.")


def _end_object(line: int, parts: list[str], mended: str, limits: Limits) -> RawRow:
    text = "".join(parts)
    if len(text) > limits.max_line_bytes:
        return RawRow(line, None, refusal=f"The row has more than {limits.max_line_bytes:,} bytes.")
    return RawRow(line, text, mended=mended)


def _read_table(stream: HeadedStream, delimiter: str, limits: Limits) -> Iterator[RawRow]:
    mended, refusal = "", ""

    def read(line: Line) -> str:
        nonlocal mended, refusal
        text, own, refused = _decode(line, limits)
        # A record may have several lines.
        mended, refusal = mended or own, refusal or refused
        return text

    feed = RecordLines(stream.lines(max_line_bytes=limits.max_line_bytes), read)
    reader = csv.reader(feed, delimiter=delimiter)
    header: list[str] | None = None
    while True:
        feed.begin_record()
        mended = refusal = ""
        try:
            cells = next(reader)
        except StopIteration:
            return
        except csv.Error:
            cells, is_open = [], True
        else:
            is_open = feed.has_ended
        line = feed.taken[0].number
        if is_open:
            text = feed.taken[0].data.decode("utf-8", "replace")
            # What the quote took in are rows of their own.
            feed.return_lines()
            reader = csv.reader(feed, delimiter=delimiter)
            reason = "A quote opens in this row and is never closed, or a cell is too long."
            yield RawRow(line, text, refusal=reason)
        elif refusal:
            yield RawRow(line, None, refusal=refusal)
        elif not any(cell.strip() for cell in cells):
            continue
        elif header is None:
            header = _name_columns(cells)
        elif len(cells) != len(header):
            reason = f"The row has {len(cells)} cells, the first line names {len(header)}."
            yield RawRow(line, delimiter.join(cells), refusal=reason)
        else:
            yield RawRow(line, None, cells=dict(zip(header, cells, strict=True)), mended=mended)


def _name_columns(cells: list[str]) -> list[str]:
    """Give each column a name of its own: one without a name its place, a second one a number."""
    names: list[str] = []
    taken: set[str] = set()
    for place, cell in enumerate(cells, start=1):
        own = cell.strip() or f"column {place}"
        name, number = own, 1
        while name.casefold() in taken:
            number += 1
            name = f"{own} {number}"
        taken.add(name.casefold())
        names.append(name)
    return names


def _read_paragraphs(stream: HeadedStream, limits: Limits) -> Iterator[RawRow]:
    held: list[str] = []
    start, mended = 1, ""
    for line in stream.lines(max_line_bytes=limits.max_line_bytes):
        text, own, refusal = _decode(line, limits)
        if refusal:
            yield RawRow(line.number, None, refusal=refusal)
            continue
        size = sum(map(len, held)) + len(text)
        if held and (not text.strip() or size > limits.text_row_chars):
            yield RawRow(start, None, cells={"text": "\n".join(held)}, mended=mended)
            held, mended = [], ""
        if text.strip():
            start = start if held else line.number
            mended = mended or own
            held.append(text.rstrip())
    if held:
        yield RawRow(start, None, cells={"text": "\n".join(held)}, mended=mended)
