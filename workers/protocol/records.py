"""The one reader of training data, shared by the market and its nodes.

The market checks an upload with it, line by line, before any money moves; the node
trains on exactly the rows it gives. A file is one of

- JSONL: an object per line, in one of the formats of ``DataFormat``;
- CSV (comma, semicolon or tab) whose first line names the columns ``text``,
  ``text``/``label``, ``prompt``/``completion``, ``instruction``/``input``/``output`` or
  ``prompt``/``chosen``/``rejected``;
- plain text: a row is a paragraph, cut at ``Limits.text_row_chars``.

What a file is follows from its bytes alone, so both sides see the same rows; its
name only makes a refusal clearer. Reading holds one line at a time, never raises
for what a file holds, and gives faulty lines as values among the rows.
"""

from __future__ import annotations

import csv
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass
from enum import StrEnum
from functools import partial

from workers.protocol.job_spec import DataFormat
from workers.protocol.record_formats import parse_row_object
from workers.protocol.record_json import locate, parse_object, show_name
from workers.protocol.record_keys import (
    IgnoredKey,
    IgnoredKeys,
    describe_ignored_keys,
    recognise,
    recognise_csv_format,
    suggest_names,
)
from workers.protocol.record_lines import (
    HeadedStream,
    Line,
    RecordLines,
    build_line_error,
    decode,
    explain_binary,
    read_head_lines,
)
from workers.protocol.record_types import (
    CHAT_ROLES,
    ByteStream,
    Limits,
    LineError,
    Row,
    RowRefusal,
    Segment,
    ValueRefusal,
)

__all__ = [
    "CHAT_ROLES",
    "COLUMNS",
    "DELIMITERS",
    "ByteStream",
    "Container",
    "FileFormat",
    "IgnoredKey",
    "IgnoredKeys",
    "Limits",
    "LineError",
    "Row",
    "Segment",
    "describe_ignored_keys",
    "detect_format",
    "read_rows",
]


DELIMITERS = (",", "\t", ";")
#: What a table's columns may be called; a cell cannot hold messages.
COLUMNS = (
    *("completion", "instruction", "output", "prompt", "chosen", "rejected"),
    *("text", "label", "input"),
)


class Container(StrEnum):
    JSONL = "jsonl"
    CSV = "csv"
    PLAIN = "plain"


@dataclass(frozen=True, slots=True)
class FileFormat:
    """What a file looks like from its beginning."""

    container: Container
    #: ``None``: JSON lines, but none of the first ones is a row.
    rows: DataFormat | None
    #: CSV only.
    delimiter: str = ","


def detect_format(head: bytes, *, complete: bool = False) -> FileFormat | None:
    """What a file that starts with ``head`` is; ``None`` for what is not text.

    Parameters
    ----------
    head : bytes
        The first bytes of the file, up to 64 KiB.
    complete : bool
        Whether that is all of it.
    """
    if explain_binary(head) is not None:
        return None
    lines = [line.strip() for line in read_head_lines(head, complete=complete)]
    lines = [line for line in lines if line]
    if not lines:
        return FileFormat(Container.PLAIN, DataFormat.TEXT)
    if 2 * sum(line.startswith(b"{") for line in lines) >= len(lines):
        return FileFormat(Container.JSONL, _common_format(lines))
    delimiter = _csv_delimiter(lines[0])
    if delimiter is not None:
        header = frozenset(_header(lines[0].decode("utf-8", "replace"), delimiter))
        return FileFormat(Container.CSV, recognise_csv_format(header), delimiter)
    return FileFormat(Container.PLAIN, DataFormat.TEXT)


def read_rows(
    stream: ByteStream,
    *,
    format: DataFormat | None = None,  # noqa: A002
    name: str = "",
    limits: Limits | None = None,
    skip_lines: frozenset[int] = frozenset(),
) -> Iterator[Row | LineError]:
    """Read every row of a data set, and every line that cannot be one, in the order of the file.

    Parameters
    ----------
    stream : ByteStream
        Read once, from where it stands, in chunks of 64 KiB.
    format : DataFormat, optional
        What the rows must be; by default what most of the first lines are.
    name : str
        The file's name, for clearer refusals.
    skip_lines : frozenset of int
        Lines, from 1, to leave out without a word.

    Yields
    ------
    Row or LineError
        A ``fatal`` error is the last value: the file cannot be used.
    """
    limits = limits or Limits()
    headed = HeadedStream(stream)
    refusal = _file_refusal(headed, name)
    if refusal is not None:
        yield refusal
        return
    found = detect_format(headed.head, complete=headed.complete)
    assert found is not None
    rows = {
        Container.JSONL: _jsonl_rows,
        Container.CSV: _csv_rows,
        Container.PLAIN: _plain_rows,
    }[found.container](headed, found, format or found.rows, limits)
    count = 0
    anything = False
    for row in rows:
        if row.line in skip_lines and not (isinstance(row, LineError) and row.fatal):
            anything = True
            continue
        if isinstance(row, Row):
            count += 1
            if count > limits.max_rows:
                yield LineError(
                    row.line,
                    None,
                    f"The file has more than {limits.max_rows:,} rows. Split it.",
                    fatal=True,
                )
                return
        anything = True
        yield row
    if not anything:
        yield LineError(1, None, "The file has no rows. Upload one with some.", fatal=True)


def _file_refusal(headed: HeadedStream, name: str) -> LineError | None:
    head = headed.head
    reason = explain_binary(head)
    if reason is not None:
        return LineError(1, None, reason, fatal=True)
    if not head.strip():
        return LineError(1, None, "The file is empty. Upload one with some rows.", fatal=True)
    first = head.lstrip()[:1]
    found = detect_format(head, complete=headed.complete)
    assert found is not None
    if found.container is Container.PLAIN and first == b"[":
        reason = (
            "The file is one JSON list. Put one object on each line, without the list's "
            "brackets and commas (JSONL)."
        )
        return LineError(1, None, reason, fatal=True)
    ending = name.rpartition(".")[2].lower() if "." in name else ""
    if ending in ("jsonl", "json", "ndjson") and found.container is not Container.JSONL:
        reason = (
            "The lines are not JSON objects, but the file's name says so. Put one on each line."
        )
        return LineError(1, None, reason, fatal=True)
    if ending in ("csv", "tsv") and found.container is not Container.CSV:
        first_line = head.lstrip().split(b"\n", 1)[0].decode("utf-8", "replace")
        named = [cell for delimiter in DELIMITERS for cell in _header(first_line, delimiter)]
        reason = (
            "The first line must name the columns: text; or text and label; or prompt and "
            "completion; or instruction, input and output; or prompt, chosen and rejected."
            f"{suggest_names(named, COLUMNS)}"
        )
        return LineError(1, None, reason, fatal=True)
    return None


def _common_format(lines: list[bytes]) -> DataFormat | None:
    counts: Counter[DataFormat] = Counter()
    for line in lines[:64]:
        try:
            keys = frozenset(parse_object(line.decode("utf-8"), max_depth=32))
        except (RowRefusal, UnicodeDecodeError):
            continue
        own = recognise(keys)
        if own is not None:
            counts[own] += 1
    return counts.most_common(1)[0][0] if counts else None


def _jsonl_rows(
    stream: HeadedStream, _found: FileFormat, data_format: DataFormat | None, limits: Limits
) -> Iterator[Row | LineError]:
    for line in stream.lines(max_line_bytes=limits.max_line_bytes):
        if not line.data or line.data.isspace():
            continue
        row = _jsonl_row(line, data_format, limits)
        if isinstance(row, Row):
            data_format = row.format
        yield row


def _jsonl_row(line: Line, data_format: DataFormat | None, limits: Limits) -> Row | LineError:
    try:
        text = decode(line, max_line_bytes=limits.max_line_bytes)
        value = parse_object(text, max_depth=limits.max_depth)
    except RowRefusal as refusal:
        return build_line_error(line, refusal)
    try:
        return parse_row_object(
            value, line=line.number, data_format=data_format, max_messages=limits.max_messages
        )
    except ValueRefusal as refusal:
        place = locate(text, refusal.path) if refusal.path else None
        start, end = place or (None, None)
        shown_refusal = RowRefusal(refusal.message, start=start, end=end, is_empty=refusal.is_empty)
        return build_line_error(line, shown_refusal)


def _header(text: str, delimiter: str) -> list[str]:
    try:
        cells = next(csv.reader([text], delimiter=delimiter))
    except (csv.Error, StopIteration):
        return []
    return [cell.strip().lower() for cell in cells]


def _csv_delimiter(first: bytes) -> str | None:
    text = first.decode("utf-8", "replace")
    for delimiter in DELIMITERS:
        if recognise_csv_format(frozenset(_header(text, delimiter))) is not None:
            return delimiter
    return None


def _csv_rows(
    stream: HeadedStream, found: FileFormat, data_format: DataFormat | None, limits: Limits
) -> Iterator[Row | LineError]:
    feed = RecordLines(
        stream.lines(max_line_bytes=limits.max_line_bytes),
        partial(decode, max_line_bytes=limits.max_line_bytes),
    )
    reader = csv.reader(feed, delimiter=found.delimiter, strict=True)
    header: list[str] | None = None
    while True:
        feed.begin_record()
        try:
            cells = next(reader)
        except StopIteration:
            return
        except RowRefusal as refusal:
            yield build_line_error(feed.taken[-1], refusal)
            continue
        except csv.Error as error:
            first = feed.taken[0]
            if _is_open(error):
                # What the quote took in are rows of their own.
                feed.return_lines()
                reader = csv.reader(feed, delimiter=found.delimiter, strict=True)
            yield build_line_error(first, _csv_refusal(error))
            continue
        first = feed.taken[0]
        if not any(cell.strip() for cell in cells):
            continue
        if header is None:
            header = [cell.strip().lower() for cell in cells]
            twice = [cell for cell, times in Counter(header).items() if times > 1]
            if twice:
                reason = f"Column {show_name(twice[0])} stands twice in the first line. Rename one."
                yield build_line_error(first, RowRefusal(reason), fatal=True)
                return
            continue
        yield _csv_row(first, header, cells, data_format, limits)


def _is_open(error: csv.Error) -> bool:
    return "field larger" in str(error) or "unexpected end" in str(error)


def _csv_refusal(error: csv.Error) -> RowRefusal:
    if _is_open(error):
        return RowRefusal("A quote opens in this row and is never closed, or a cell is too long.")
    return RowRefusal("A quote inside a cell must be doubled, and the cell must stand in quotes.")


def _csv_row(
    line: Line, header: list[str], cells: list[str], data_format: DataFormat | None, limits: Limits
) -> Row | LineError:
    if len(cells) != len(header):
        reason = (
            f"This row has {len(cells)} cells, but the first line names {len(header)} columns. "
            "Put a cell that holds the separator in quotes."
        )
        return build_line_error(line, RowRefusal(reason))
    try:
        return parse_row_object(
            dict(zip(header, cells, strict=True)),
            line=line.number,
            data_format=data_format,
            max_messages=limits.max_messages,
        )
    except ValueRefusal as refusal:
        return build_line_error(line, RowRefusal(refusal.message))


def _plain_rows(
    stream: HeadedStream, _found: FileFormat, data_format: DataFormat | None, limits: Limits
) -> Iterator[Row | LineError]:
    if data_format is not None and data_format is not DataFormat.TEXT:
        reason = f"The file is plain text, but {data_format.value} rows were expected."
        yield LineError(1, None, reason, fatal=True)
        return
    start = 0
    held: list[str] = []
    size = 0
    for line in stream.lines(max_line_bytes=limits.max_line_bytes):
        try:
            text = decode(line, max_line_bytes=limits.max_line_bytes).rstrip()
        except RowRefusal as refusal:
            if held:
                yield _plain_row(start, "\n".join(held))
                held, size = [], 0
            yield build_line_error(line, refusal)
            continue
        if held and (not text or size + len(text) + 1 > limits.text_row_chars):
            yield _plain_row(start, "\n".join(held))
            held, size = [], 0
        if not text:
            continue
        if not held:
            start = line.number
        while len(text) > limits.text_row_chars:
            cut = text.rfind(" ", 1, limits.text_row_chars + 1)
            cut = cut if cut > 0 else limits.text_row_chars
            if text[:cut].strip():
                yield _plain_row(line.number, text[:cut])
            text = text[cut:].lstrip()
        if text:
            held.append(text)
            size += len(text) + 1
    if held:
        yield _plain_row(start, "\n".join(held))


def _plain_row(line: int, text: str) -> Row:
    return Row(line, DataFormat.TEXT, (Segment("text", text, True),))
