"""Repaired rows on disk between the two passes of a preparation."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from dataclasses import astuple, dataclass, replace
from typing import Any, BinaryIO

from workers.preparation.forms import FileForm, OpenPair
from workers.preparation.repair import RepairedRow
from workers.preparation.texts import RowSides, read_sides
from workers.protocol.job_spec import DataFormat


@dataclass(frozen=True, slots=True)
class SpooledRow:
    """Where a row is, and what is known of it without reading it."""

    line: int
    number: int
    format: DataFormat
    start: int
    size: int
    tokens: int
    #: What is held is not the row, but what ``FileForm`` settles its form by.
    is_open: bool


@dataclass(frozen=True, slots=True)
class SettledRow:
    """A row whose form was open."""

    line: int
    value: dict[str, Any]
    #: What was mended of it; empty where it stays as it was.
    reasons: Sequence[str]
    #: An excerpt of the row as it was found.
    before: str
    #: More than there were before it got its form.
    tokens_added: int


class RowSpool:
    """Repaired rows by position, one at a time in memory."""

    def __init__(self, file: BinaryIO) -> None:
        self._file = file
        #: Counts the rows that are held.
        self.form = FileForm()
        self.rows: list[SpooledRow] = []

    def add(self, row: RepairedRow, *, tokens: int, before: str) -> None:
        """Hold a row; ``before`` is an excerpt of it as it was found."""
        self.form.note(row.value, row.format, row.pair)
        is_open = row.pair is not None
        held = (row.value, astuple(row.pair), row.reasons, before) if row.pair else row.value
        start, size = self._write(held)
        self.rows.append(SpooledRow(row.line, row.number, row.format, start, size, tokens, is_open))

    def settle_forms(self, count_tokens: Callable[[Any], int]) -> Iterator[SettledRow]:
        """Give rows whose form is open that of the file, now that all of it is held."""
        for position, row in enumerate(self.rows):
            if not row.is_open:
                continue
            mended, pair, noted, before = self.read(position)
            value, reasons = self.form.settle(mended, OpenPair(*pair), noted)
            kind = DataFormat.COMPLETION if value is mended else DataFormat.CHAT
            tokens = row.tokens if value is mended else count_tokens(value)
            start, size = self._write(value)
            self.rows[position] = replace(
                row, format=kind, start=start, size=size, tokens=tokens, is_open=False
            )
            yield SettledRow(row.line, value, reasons, before, tokens - row.tokens)

    def read(self, position: int) -> Any:
        """The row at a position, as JSON."""
        row = self.rows[position]
        self._file.seek(row.start)
        return json.loads(self._file.read(row.size))

    def read_sides(self, position: int) -> RowSides:
        """What is asked and what is learnt in the row at a position."""
        return read_sides(self.read(position))

    def find_main_format(self) -> DataFormat | None:
        """The format of most rows; of equally frequent ones, the first in the file."""
        counts = Counter(row.format for row in self.rows)
        return counts.most_common(1)[0][0] if counts else None

    def _write(self, held: Any) -> tuple[int, int]:
        data = json.dumps(held, ensure_ascii=False).encode("utf-8")
        start = self._file.seek(0, 2)
        self._file.write(data)
        return start, len(data)
