"""Files of a shape that training does not read, rewritten into one that it does."""

from __future__ import annotations

import csv
import io
import json
import shutil
from codecs import getincrementaldecoder
from collections.abc import Iterator, Mapping
from itertools import islice
from typing import IO

from marketplace.common.errors import UserError
from workers.protocol.record_keys import recognise
from workers.protocol.records import COLUMNS, DELIMITERS, Limits

#: What a column of a file may hold (``workers.preparation.roles.ColumnRole``).
ROLES = (
    *("prompt", "completion", "system", "context", "input", "history", "messages"),
    *("text", "label", "left_out"),
)
_CHUNK_BYTES = 1 << 16
_HEADER_BYTES_MAX = 64 * 1024
_COLUMNS_MAX = 200
#: Rows whose keys are looked at, keys that are asked about, and signs of one.
_ROWS_READ = 200
_KEYS_MAX = 64
_KEY_CHARS_MAX = 64
_ITEM_CHARS_MAX = Limits().max_line_bytes
_DECODER = json.JSONDecoder()
_BLANK = " \t\r\n"
_AFTER_ITEM = tuple(",]" + _BLANK)


def is_json_list(head: bytes) -> bool:
    """Whether a file that begins so is one JSON list, as many exports are."""
    return head.removeprefix(b"\xef\xbb\xbf").lstrip()[:1] == b"["


def write_json_lines(source: IO[bytes], lines: IO[bytes]) -> None:
    """Write the items of a JSON list one a line: item 17 becomes line 17. Bounded memory.

    Raises
    ------
    UserError
        ``invalid_dataset``: the list breaks off, or an item is no JSON or too long.
    """
    for text in _read_items(source):
        # Line breaks stand only between the parts of an item: inside texts they are escaped.
        lines.write(text.replace("\n", " ").replace("\r", " ").encode() + b"\n")


def read_columns(source: IO[bytes]) -> list[str]:
    """The columns that the first line of a table names; empty when it names none.

    Leaves the stream where the table's rows begin.
    """
    first = source.readline(_HEADER_BYTES_MAX)
    text = first.decode("utf-8-sig", "replace").strip()
    # A quote inside a cell says that the line is split at the wrong places.
    splits = [_split(text, delimiter) for delimiter in DELIMITERS]
    cells = max(splits, key=lambda cells: (not any('"' in cell for cell in cells), len(cells)))
    named = bool(cells) and all(cells) and len(set(cells)) == len(cells)
    # A line that breaks off inside quotes, or is no line of names at all.
    return cells if named and first.endswith(b"\n") and len(cells) <= _COLUMNS_MAX else []


def read_keys(source: IO[bytes]) -> list[str]:
    """The keys of a file's first rows in lower case, where these are JSON objects, one a line.

    Empty where they are the keys of a format: then something else is wrong with the rows.
    """
    found: dict[str, None] = {}
    for line in islice(iter(lambda: source.readline(_ITEM_CHARS_MAX), b""), _ROWS_READ):
        try:
            row = json.loads(line)
        except (ValueError, RecursionError):
            continue
        for key in row if isinstance(row, dict) else ():
            name = key.strip().casefold()
            if name.isprintable() and 1 <= len(name) <= _KEY_CHARS_MAX and len(found) < _KEYS_MAX:
                found[name] = None
    return [] if recognise(frozenset(found)) else list(found)


def write_named_table(source: IO[bytes], table: IO[bytes], *, columns: Mapping[str, str]) -> None:
    """Write a table with other names for its columns; every row stays as it is, and on its line.

    Parameters
    ----------
    columns
        The file's column by the name that training knows, such as ``{"prompt": "question"}``.

    Raises
    ------
    UserError
        ``invalid_columns``: a name that training does not know, or a column that is not there.
    """
    found = read_columns(source)
    names = {column: name for name, column in columns.items()}
    unknown = [name for name in columns if name not in COLUMNS]
    missing = [column for column in names if column not in found]
    if unknown or missing or len(names) != len(columns):
        raise UserError(
            "invalid_columns",
            f"Each of {', '.join(sorted(COLUMNS))} may mean one column of the file; the file has "
            f"{', '.join(found) or 'no line of names'}.",
            param="columns",
        )
    # What is not chosen keeps its name, unless training would take it for something else.
    header = [
        names.get(column, f"unused {column}" if column in COLUMNS else column) for column in found
    ]
    text = io.StringIO()
    csv.writer(text, delimiter=_find_delimiter(found, source), lineterminator="\n").writerow(header)
    table.write(text.getvalue().encode())
    shutil.copyfileobj(source, table, _CHUNK_BYTES)


def _find_delimiter(found: list[str], source: IO[bytes]) -> str:
    """What stands between the cells of the first line; leaves the stream behind that line."""
    source.seek(0)
    text = source.readline(_HEADER_BYTES_MAX).decode("utf-8-sig", "replace").strip()
    return next(delimiter for delimiter in DELIMITERS if _split(text, delimiter) == found)


def _split(text: str, delimiter: str) -> list[str]:
    try:
        reader = csv.reader([text], delimiter=delimiter, strict=True)
        return [cell.strip().lower() for cell in next(reader)]
    except (csv.Error, StopIteration):
        return []


def _read_items(source: IO[bytes]) -> Iterator[str]:
    text = _Text(source)
    text.skip("[")
    number = 1
    while text.peek() != "]":
        yield _read_item(text, number)
        if text.peek() == ",":
            text.skip(",")
            if text.peek() == "]":
                raise _refuse(f"No item follows the comma after item {number}.")
        elif text.peek() != "]":
            raise _refuse(f"After item {number} of the list there is no comma and no end.")
        number += 1


def _read_item(text: _Text, number: int) -> str:
    while True:
        try:
            _, end = _DECODER.raw_decode(text.held, text.at)
        except (json.JSONDecodeError, RecursionError):
            end = None
        # What ends with the chunk may go on in the next one, as a number does.
        if end is not None and text.held[end : end + 1] in _AFTER_ITEM:
            return text.take(end)
        if len(text.held) - text.at > _ITEM_CHARS_MAX or not text.read_on():
            if end is None:
                raise _refuse(f"Item {number} of the list is incomplete JSON or too long.")
            return text.take(end)


class _Text:
    """What of a stream is read; before ``at`` it is taken."""

    def __init__(self, source: IO[bytes]) -> None:
        self._source = source
        self._decoder = getincrementaldecoder("utf-8-sig")()
        self.held = ""
        self.at = 0

    def read_on(self) -> bool:
        """Read another chunk; whether there was one."""
        data = self._source.read(_CHUNK_BYTES)
        try:
            decoded = self._decoder.decode(data, final=not data)
        except UnicodeDecodeError:
            raise _refuse("The file is not UTF-8 text. Save it as UTF-8.") from None
        self.held, self.at = self.held[self.at :] + decoded, 0
        return bool(data)

    def peek(self) -> str:
        """The next character that is not blank; empty at the end."""
        while True:
            while self.at < len(self.held) and self.held[self.at] in _BLANK:
                self.at += 1
            if self.at < len(self.held):
                return self.held[self.at]
            if not self.read_on():
                return ""

    def skip(self, character: str) -> None:
        if self.peek() != character:
            raise _refuse("The list breaks off.")
        self.at += 1

    def take(self, end: int) -> str:
        taken, self.at = self.held[self.at : end], end
        return taken


def _refuse(reason: str) -> UserError:
    return UserError("invalid_dataset", reason, param="file", extra={"errors": [], "faulty": 0})
