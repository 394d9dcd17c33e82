"""A file that is put together of pieces of others, without a copy of them on disk."""

from __future__ import annotations

import io
from bisect import bisect_right
from collections.abc import Iterable
from typing import IO

#: A piece of the file: bytes, or a number of bytes of another file from an offset in it.
Piece = bytes | tuple[IO[bytes], int, int]


class SplicedFile(io.RawIOBase):
    """Reads one piece after the other, from any place."""

    def __init__(self, pieces: Iterable[Piece]) -> None:
        self._pieces = [piece for piece in pieces if _count(piece)]
        self._starts = [0]
        for piece in self._pieces:
            self._starts.append(self._starts[-1] + _count(piece))
        self._at = 0

    @property
    def size(self) -> int:
        return self._starts[-1]

    def readable(self) -> bool:
        return True

    def seekable(self) -> bool:
        return True

    def seek(self, offset: int, whence: int = io.SEEK_SET, /) -> int:
        begin = {io.SEEK_SET: 0, io.SEEK_CUR: self._at, io.SEEK_END: self.size}[whence]
        self._at = max(0, begin + offset)
        return self._at

    def tell(self) -> int:
        return self._at

    def readinto(self, buffer: memoryview, /) -> int:  # type: ignore[override]
        if self._at >= self.size:
            return 0
        place = bisect_right(self._starts, self._at) - 1
        piece, inside = self._pieces[place], self._at - self._starts[place]
        count = min(len(buffer), self._starts[place + 1] - self._at)
        if isinstance(piece, bytes):
            content = piece[inside : inside + count]
        else:
            file, begin, _ = piece
            file.seek(begin + inside)
            content = file.read(count)
        buffer[: len(content)] = content
        self._at += len(content)
        return len(content)


def _count(piece: Piece) -> int:
    return len(piece) if isinstance(piece, bytes) else piece[2]
