"""Reading an upload line by line: its format, its rows, its faults and its tokens.

Imports nothing of Django: ``reading_child`` runs it in a process of its own.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from itertools import islice
from typing import Any

from tokenizers import Tokenizer

from workers.protocol.messages import DataFormat
from workers.protocol.records import (
    CHAT_ROLES,
    ByteStream,
    IgnoredKeys,
    LineError,
    Row,
    read_rows,
)
from workers.protocol.wire import to_json

#: With more faulty lines than this, the file is the wrong one.
FAULTY_LINES_MAX = 1_000
#: Rows that are longer than the model takes, named one by one.
LONG_LINES_MAX = 1_000
_BATCH_ROWS = 256


@dataclass(slots=True)
class Reading:
    """What a file holds."""

    format: DataFormat | None = None
    #: Usable rows.
    rows: int = 0
    tokens: int = 0
    longest_row_tokens: int = 0
    faulty: int = 0
    faulty_lines: list[int] = field(default_factory=list)
    #: The faults, ``LineError`` as JSON.
    errors: list[dict[str, Any]] = field(default_factory=list)
    #: Keys of usable rows that training does not read, ``IgnoredKey`` as JSON.
    ignored_keys: list[dict[str, Any]] = field(default_factory=list)
    #: Usable rows with more tokens than the model takes, and the lines of the first of them.
    long_rows: int = 0
    long_lines: list[int] = field(default_factory=list)
    #: Lines left out because their rows are too long, as the uploader chose.
    left_out_lines: list[int] = field(default_factory=list)
    #: Why the whole file cannot be used.
    fatal: str | None = None
    #: Columns of a table that are not named as any format names them, to choose among.
    columns: list[str] = field(default_factory=list)


def read_dataset(
    stream: ByteStream,
    *,
    name: str,
    tokenizer: Tokenizer | None,
    skip_lines: frozenset[int] = frozenset(),
    max_tokens: int | None = None,
    on_rows: Callable[[int], None] = lambda _: None,
) -> Reading:
    """Read a file to its end, or to the fault that makes it useless.

    Holds one batch of rows at a time. Without a tokenizer no tokens are counted.

    Parameters
    ----------
    max_tokens
        Rows with more of them are long: training cuts them.
    on_rows
        Called with the rows read so far, after each batch.
    """
    reading = Reading()
    rows = _read_usable_rows(read_rows(stream, name=name, skip_lines=skip_lines), reading)
    while batch := list(islice(rows, _BATCH_ROWS)):
        on_rows(reading.rows)
        if tokenizer is None:
            continue
        for row, tokens in zip(batch, _count_row_tokens(batch, tokenizer), strict=True):
            reading.tokens += tokens
            reading.longest_row_tokens = max(reading.longest_row_tokens, tokens)
            if max_tokens is not None and tokens > max_tokens:
                reading.long_rows += 1
                if len(reading.long_lines) < LONG_LINES_MAX:
                    reading.long_lines.append(row.line)
    return reading


def _read_usable_rows(values: Iterator[Row | LineError], reading: Reading) -> Iterator[Row]:
    ignored = IgnoredKeys()
    for value in values:
        if isinstance(value, Row):
            reading.format = reading.format or value.format
            reading.rows += 1
            ignored.note(value)
            yield value
            continue
        reading.faulty += 1
        reading.errors.append(to_json(value))
        if value.fatal:
            reading.fatal = value.message
            return
        reading.faulty_lines.append(value.line)
        if reading.faulty > FAULTY_LINES_MAX:
            reading.fatal = (
                f"More than {FAULTY_LINES_MAX:,} lines are faulty. Correct the file first."
            )
            return
    reading.ignored_keys = [to_json(key) for key in ignored.found()]


def _count_row_tokens(rows: list[Row], tokenizer: Tokenizer) -> Iterator[int]:
    """Tokens of each row's longest sequence, as the node will lay it out.

    A chat message stands in the plain template's frame; models with a template of their own differ
    by a few tokens a message.
    """
    texts: list[str] = []
    sequences: list[list[int]] = []
    for row in rows:
        counts = []
        for segments in (row.segments, row.rejected):
            if not segments:
                continue
            for segment in segments:
                chat = segment.role in CHAT_ROLES
                frame = f"### {segment.role.capitalize()}:\n{segment.text}\n"
                texts.append(frame if chat else segment.text)
            counts.append(len(segments))
        sequences.append(counts)
    lengths = iter(
        len(encoding.ids) for encoding in tokenizer.encode_batch(texts, add_special_tokens=False)
    )
    for counts in sequences:
        # Two more: what begins a sequence and what ends it.
        yield max(sum(islice(lengths, count)) + 2 for count in counts)
