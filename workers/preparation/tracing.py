"""Row ids: they leave the market with a vendor's rows, and come back with what became of these.

A row's id is its place among the rows of the owner's file, from 1.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator
from dataclasses import replace
from typing import Any, cast

from workers.preparation.personal_data import BuildMasker
from workers.preparation.reading import RawRow, read_raw_rows
from workers.protocol.record_json import read_pairs
from workers.protocol.record_types import ByteStream

#: The key that holds it.
ROW_ID = "row_id"
#: The key of a row that is no JSON object, as it was found.
RAW = "raw"


def iter_traced_lines(
    stream: ByteStream,
    *,
    build_masker: BuildMasker = lambda: None,
) -> Iterator[str]:
    """Every row of a file as a JSON object with its id, a line each; nothing is repaired.

    Parameters
    ----------
    build_masker
        Gives what masks a row, if anything does.

    Raises
    ------
    UnreadableFileError
        When the file is no text or is empty.
    """
    for raw in read_raw_rows(stream):
        row = read_object(raw)
        value = {RAW: raw.text or ""} if row is None else row
        masker = build_masker()
        value = value if masker is None else masker.mask_row(value)
        yield json.dumps(value | {ROW_ID: raw.number}, ensure_ascii=False)


def read_object(raw: RawRow) -> dict[str, Any] | None:
    """The row as an object; ``None`` where it is no JSON object, or has a key twice."""
    if raw.text is None:
        return dict(raw.cells or {})
    try:
        value = json.loads(raw.text, object_pairs_hook=read_pairs)
    except (ValueError, RecursionError):
        return None
    return cast(dict[str, Any], value) if isinstance(value, dict) else None


def take_row_ids(rows: Iterable[RawRow]) -> Iterator[RawRow]:
    """Rows that came back without their ids, which become their numbers; 0 where there is none."""
    for raw in rows:
        row = read_object(raw)
        found = None if row is None else row.pop(ROW_ID, None)
        is_id = isinstance(found, int) and not isinstance(found, bool)
        text = raw.text if row is None else json.dumps(row, ensure_ascii=False)
        yield replace(raw, text=text, cells=None, number=found if is_id else 0)
