"""Files of a shape that training does not read, rewritten into one that it does."""

from __future__ import annotations

import json
import tempfile
from codecs import getincrementaldecoder
from collections.abc import Iterator
from typing import IO

from marketplace.common.errors import UserError
from workers.protocol.records import Limits

_CHUNK_BYTES = 1 << 16
_ITEM_CHARS_MAX = Limits().max_line_bytes
_DECODER = json.JSONDecoder()
_BLANK = " \t\r\n"
_AFTER_ITEM = tuple(",]" + _BLANK)


def is_json_list(head: bytes) -> bool:
    """Whether a file that begins so is one JSON list, as many exports are."""
    return head.removeprefix(b"\xef\xbb\xbf").lstrip()[:1] == b"["


def write_json_lines(source: IO[bytes]) -> IO[bytes]:
    """The items of a JSON list, one a line: item 17 becomes line 17. Bounded memory.

    Raises
    ------
    UserError
        ``invalid_dataset``: the list breaks off, or an item is no JSON or too long.
    """
    lines = tempfile.TemporaryFile()  # noqa: SIM115 - the caller reads and closes it
    try:
        for text in _read_items(source):
            # Line breaks stand only between the parts of an item: inside texts they are escaped.
            lines.write(text.replace("\n", " ").replace("\r", " ").encode() + b"\n")
    except BaseException:
        lines.close()
        raise
    lines.seek(0)
    return lines


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
                raise _refuse(f"Item {number} of the list is not whole JSON, or too long.")
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
