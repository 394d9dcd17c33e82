"""Rows one by one for people."""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass

from workers.preparation.personal_data import BuildMasker, Masker
from workers.preparation.reading import RawRow, read_raw_rows
from workers.preparation.repair import RowDroppedError, repair_row
from workers.preparation.texts import find_prompt, iter_texts
from workers.preparation.tracing import read_object
from workers.protocol.record_types import ByteStream


@dataclass(frozen=True, slots=True)
class ListedRow:
    """A row as it was found, and as the program would repair it."""

    #: Line of the file on which it begins, from 1.
    line: int
    raw: str
    #: A JSON object; empty where the row is beyond repair.
    proposal: str
    #: What was repaired, or why the row cannot be.
    notes: tuple[str, ...]


def list_rows(
    stream: ByteStream,
    *,
    build_masker: BuildMasker = lambda: None,
    roles: Mapping[str, str] | None = None,
) -> Iterator[ListedRow]:
    """Every row of a file with a proposal, in its order.

    Parameters
    ----------
    build_masker
        Gives what masks a row that is given out, if anything does.
    roles
        ``PreparationSettings.roles``.

    Raises
    ------
    UnreadableFileError
        When the file is no text or is empty.
    """
    for raw in read_raw_rows(stream):
        masker = build_masker()
        try:
            row = repair_row(raw, to_chat=True, roles=roles)
        except RowDroppedError as dropped:
            yield ListedRow(raw.line, _write_raw(raw, masker), "", _mask([str(dropped)], masker))
            continue
        value = row.value if masker is None else masker.mask_row(row.value)
        notes = row.reasons
        if not any(text.strip() for text in iter_texts(value)) or not find_prompt(value).strip():
            notes = (*notes, "The row asks nothing.")
        text = json.dumps(value, ensure_ascii=False)
        yield ListedRow(raw.line, _write_raw(raw, masker), text, _mask(notes, masker))


def _mask(notes: Iterable[str], masker: Masker | None) -> tuple[str, ...]:
    """Notes may quote the row."""
    return tuple(notes if masker is None else map(masker.mask_text, notes))


def _write_raw(raw: RawRow, masker: Masker | None) -> str:
    row = read_object(raw)
    if raw.text is not None and (masker is None or row is None):
        return raw.text if masker is None else masker.mask_text(raw.text)
    if not row:
        return raw.text or ""
    return json.dumps(row if masker is None else masker.mask_row(row), ensure_ascii=False)
