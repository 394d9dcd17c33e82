"""The values that reading a data set gives: rows, and lines that cannot be rows."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Protocol

from workers.protocol.job_spec import DataFormat

#: Roles a chat message may have.
CHAT_ROLES = ("system", "user", "assistant", "tool")


class ByteStream(Protocol):
    """Anything that hands out bytes: an open file, an upload, ``io.BytesIO``."""

    def read(self, size: int, /) -> bytes: ...


@dataclass(frozen=True, slots=True)
class Limits:
    """What a file may hold; beyond it a line, or the file, is refused."""

    max_line_bytes: int = 4 * 1024 * 1024
    max_rows: int = 1_000_000
    max_messages: int = 1_000
    #: Brackets inside brackets.
    max_depth: int = 32
    #: Plain text is cut into rows of at most this many characters.
    text_row_chars: int = 2_000


@dataclass(frozen=True, slots=True)
class Segment:
    """A stretch of one row, said by one role."""

    #: One of ``CHAT_ROLES``; or ``prompt``, ``completion``, ``text`` or ``label``,
    #: which no chat template surrounds.
    role: str
    text: str
    #: Whether the loss counts this stretch.
    train: bool
    #: Of an assistant's message: the functions it calls, as JSON.
    calls: str = ""
    #: What the assistant thought before it answered.
    reasoning: str = ""
    #: Of a tool's message: the call that it answers, and the tool.
    call_id: str = ""
    name: str = ""


@dataclass(frozen=True, slots=True)
class Row:
    """One training example."""

    #: Line of the file it starts on, from 1.
    line: int
    format: DataFormat
    segments: tuple[Segment, ...]
    #: Preferences only: the same conversation with the answer to avoid.
    rejected: tuple[Segment, ...] = ()
    #: Keys of the row that nothing reads.
    ignored_keys: tuple[str, ...] = ()
    #: Functions that the model may call, as JSON.
    tools: str = ""


@dataclass(frozen=True, slots=True)
class LineError:
    """Why a line is not a row, and where to look."""

    #: Line of the file, from 1.
    line: int
    #: Character of the line, from 1; ``None`` when the whole line is meant.
    column: int | None
    message: str
    #: A short piece of the line, safe to show; the fault is
    #: ``excerpt[excerpt_mark_start:excerpt_mark_end]``.
    excerpt: str = ""
    excerpt_mark_start: int = 0
    excerpt_mark_end: int = 0
    #: The file cannot be used and nothing after this line was read.
    fatal: bool = False
    #: An answer of the row is empty: nothing is lost without it.
    is_empty: bool = False


class RowRefusal(Exception):
    """A line is not a row; becomes a ``LineError`` where the line is known."""

    def __init__(
        self,
        message: str,
        *,
        start: int | None = None,
        end: int | None = None,
        is_empty: bool = False,
    ) -> None:
        super().__init__(message)
        self.message = message
        self.is_empty = is_empty
        #: Characters of the line that are wrong, from 0; ``None`` for the whole line.
        self.start = start
        self.end = end


class ValueRefusal(Exception):
    """A value inside a parsed row is wrong; ``path`` leads to it."""

    def __init__(self, message: str, *path: str | int, is_empty: bool = False) -> None:
        super().__init__(message)
        self.message = message
        self.path = path
        #: An answer is empty.
        self.is_empty = is_empty
