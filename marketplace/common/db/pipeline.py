"""SQL of our own that is sent many times a second: parsed once, and sent together.

Django's cursor writes the values into the text of a statement, so the database parses and plans it
each time, and the caller waits for each result. Here texts are prepared once for each connection.
Statements that do not wait for each other's results share one message. They run in the order in
which they were given, each seeing what those before it did.
"""

from __future__ import annotations

import threading
from collections.abc import Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, LiteralString, cast

import psycopg
from django.db import connections, transaction

if TYPE_CHECKING:
    from django.db.backends.postgresql.base import DatabaseWrapper


@dataclass(frozen=True, slots=True)
class Statement:
    """One text for all times; only its values differ."""

    text: str
    values: Sequence[Any] = ()


class _Buffer(threading.local):
    """What a thread has written and not sent; ``None`` outside ``pipeline``."""

    statements: list[Statement] | None = None


_buffer = _Buffer()


def fetch(*statements: Statement) -> list[list[tuple[Any, ...]]]:
    """The rows of each statement, all of them sent at once, after what waits to be written."""
    waiting = _take_buffered()
    return [
        [] if cursor.description is None else cursor.fetchall()
        for cursor in _run([*waiting, *statements])[len(waiting) :]
    ]


def execute(statement: Statement) -> int:
    """Run a statement now, after what waits to be written; how many rows it changed."""
    return _run([*_take_buffered(), statement])[-1].rowcount


def send(statement: Statement) -> None:
    """Run a statement without reading rows: at once, or at the next flush in ``pipeline``."""
    if _buffer.statements is None:
        _run([statement])
    else:
        _buffer.statements.append(statement)


def ensure_transaction() -> AbstractContextManager[Any]:
    """The transaction under way, or one for the block.

    For a block that refuses before it writes, so that a caller that goes on after a refusal needs
    no savepoint.
    """
    return nullcontext() if connections["default"].in_atomic_block else transaction.atomic()


@contextmanager
def pipeline() -> Iterator[None]:
    """Writes of the block wait for its next question, or for its end; call in a transaction.

    Buffered writes are sent before any query of this connection, through Django or here, so reads
    see them. Only a refusal by the database comes later than the line that caused it: a caller that
    wants to go on after one gives that write a transaction of its own, around this block. An inner
    block is part of the outer one.
    """
    own = connections["default"]
    if not own.in_atomic_block:
        raise transaction.TransactionManagementError("what waits to be written needs a transaction")
    if _buffer.statements is not None:
        yield
        return

    def flush_first(execute: Any, sql: Any, params: Any, many: Any, context: Any) -> Any:
        _flush()
        return execute(sql, params, many, context)

    _buffer.statements = []
    try:
        with own.execute_wrapper(flush_first):  # type: ignore[attr-defined]
            yield
            _flush()
    finally:
        _buffer.statements = None


def _flush() -> None:
    if waiting := _take_buffered():
        _run(waiting)


def _take_buffered() -> list[Statement]:
    waiting = _buffer.statements
    if not waiting:
        return []
    _buffer.statements = []
    return waiting


def _run(statements: Sequence[Statement]) -> list[psycopg.Cursor[Any]]:
    own: DatabaseWrapper = connections["default"]  # type: ignore[assignment]
    own.close_if_health_check_failed()  # type: ignore[attr-defined]
    own.ensure_connection()
    own.validate_no_broken_transaction()
    raw: psycopg.Connection[Any] = own.connection
    if own.queries_logged:
        own.queries_log.extend({"sql": of.text, "time": "0.000"} for of in statements)
    cursors = [psycopg.Cursor(raw) for _ in statements]
    with own.wrap_database_errors:  # type: ignore[attr-defined]
        if len(statements) == 1:
            cursors[0].execute(
                cast(LiteralString, statements[0].text), statements[0].values, prepare=True
            )
        else:
            with raw.pipeline():
                for cursor, of in zip(cursors, statements, strict=True):
                    cursor.execute(cast(LiteralString, of.text), of.values, prepare=True)
    return cursors
