"""Reading an upload line by line: its format, its rows, its faults and its tokens.

Imports nothing of Django: ``reading_child`` runs it in a process of its own.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from itertools import islice
from typing import Any

from marketplace.jobs.token_runs import TokenRuns, TokenRunsBuilder
from workers.protocol.job_spec import DataFormat
from workers.protocol.records import ByteStream, IgnoredKeys, LineError, Row, read_rows
from workers.protocol.token_layout import TemplateError, TextEncoder, TokenRun, lay_out_rows
from workers.protocol.wire import to_json

#: With more faulty lines than this, the file is the wrong one.
FAULTY_LINES_MAX = 1_000
#: Rows that are longer than the model takes, named one by one.
LONG_LINES_MAX = 1_000
_BATCH_ROWS = 256
#: Messages given to the chat template over a whole file: a conversation of n messages is rendered
#: from its beginning up to each of them.
RENDERED_MESSAGES_MAX = 10_000_000


@dataclass(slots=True)
class Reading:
    """What a file holds."""

    format: DataFormat | None = None
    #: Usable rows; a conversation that the model's chat template writes in several examples counts
    #: for each of them.
    rows: int = 0
    tokens: int = 0
    #: Of its longest sequence.
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
    #: Keys of JSON rows none of which can be used, to say what they hold.
    keys: list[str] = field(default_factory=list)


def read_dataset(
    stream: ByteStream,
    *,
    name: str,
    encoder: TextEncoder | None,
    skip_lines: frozenset[int] = frozenset(),
    max_tokens: int | None = None,
    on_rows: Callable[[int], None] = lambda _: None,
) -> tuple[Reading, TokenRuns]:
    """Read a file to its end, or to the fault that makes it useless, and count its tokens.

    Holds one batch of rows at a time, and a few numbers of each row. Without an encoder no tokens
    are counted.

    Parameters
    ----------
    max_tokens
        Rows with more of them are long: training cuts them.
    on_rows
        Called with the rows read so far, after each batch.
    """
    reading, runs = Reading(), TokenRunsBuilder()
    rows = _read_usable_rows(read_rows(stream, name=name, skip_lines=skip_lines), reading)
    rendered = 0
    while batch := list(islice(rows, _BATCH_ROWS)):
        on_rows(reading.rows)
        if encoder is None:
            continue
        rendered += sum(len(row.segments) ** 2 + len(row.rejected) ** 2 for row in batch)
        if rendered > RENDERED_MESSAGES_MAX:
            reading.fatal = "The conversations are too long to be laid out. Split them."
            break
        for row, laid_out in _lay_out_usable_rows(batch, encoder, reading):
            reading.rows += len(laid_out) - 1
            longest = max(runs.add_row(example) for example in laid_out)
            if max_tokens is not None and longest > max_tokens:
                reading.long_rows += 1
                if len(reading.long_lines) < LONG_LINES_MAX:
                    reading.long_lines.append(row.line)
        if reading.fatal is not None:
            break
    # What no template can write is found after a batch is read.
    reading.faulty_lines.sort()
    reading.errors.sort(key=lambda error: error["line"])
    reading.tokens, reading.longest_row_tokens = runs.token_count, runs.longest
    return reading, runs.build()


def _lay_out_usable_rows(
    batch: Sequence[Row], encoder: TextEncoder, reading: Reading
) -> Iterator[tuple[Row, list[list[list[TokenRun]]]]]:
    """Rows that the model's chat template can write, with their examples; others are faulty."""
    try:
        yield from list(zip(batch, lay_out_rows(batch, encoder), strict=True))
        return
    except TemplateError:
        pass
    for row in batch:
        try:
            [laid_out] = lay_out_rows([row], encoder)
        except TemplateError as error:
            reading.rows -= 1
            _note_fault(LineError(row.line, None, str(error)), reading)
            if not reading.rows and row is batch[-1]:
                # Not one row so far: the template takes no such conversations.
                reading.fatal = f"Line {row.line:,}: {error}"
            if reading.fatal is not None:
                return
        else:
            yield row, laid_out


def _read_usable_rows(values: Iterator[Row | LineError], reading: Reading) -> Iterator[Row]:
    ignored = IgnoredKeys()
    for value in values:
        if isinstance(value, Row):
            reading.format = reading.format or value.format
            reading.rows += 1
            ignored.note(value)
            yield value
            continue
        _note_fault(value, reading)
        if reading.fatal is not None:
            return
    reading.ignored_keys = [to_json(key) for key in ignored.found()]


def _note_fault(fault: LineError, reading: Reading) -> None:
    reading.faulty += 1
    reading.errors.append(to_json(fault))
    if fault.fatal:
        reading.fatal = fault.message
        return
    reading.faulty_lines.append(fault.line)
    if reading.faulty > FAULTY_LINES_MAX:
        reading.fatal = f"More than {FAULTY_LINES_MAX:,} lines are faulty. Correct the file first."
