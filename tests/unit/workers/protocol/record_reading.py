"""Reads a file of rows, or one of them, as the tests of records do."""

import io
import json

from workers.protocol.records import (
    LineError,
    Row,
    read_rows,
)


def rows_of(data: bytes | str, **settings) -> list[Row | LineError]:
    if isinstance(data, str):
        data = data.encode()
    return list(read_rows(io.BytesIO(data), **settings))


def row_of(value: object, **settings) -> Row:
    (row,) = rows_of(json.dumps(value), **settings)
    assert isinstance(row, Row), row
    return row


def error_of(data: bytes | str | dict, **settings) -> LineError:
    if isinstance(data, dict):
        data = json.dumps(data)
    (error,) = rows_of(data, **settings)
    assert isinstance(error, LineError), error
    return error


def marked(error: LineError) -> str:
    return error.excerpt[error.excerpt_mark_start : error.excerpt_mark_end]


def chat(*messages: tuple[str, str], **extra: object) -> dict:
    return {"messages": [{"role": r, "content": c} for r, c in messages], **extra}
