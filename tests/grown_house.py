"""A house whose rows were copied many times, and how much the database reads for an act in it.

A copy of a row has ids of its own, which replace those of the row wherever they stand in the copies
of other rows: a job's slices, events, entries and messages are copied with it, as one life. Each
copy happened a little earlier than the one before.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Collection, Iterator
from datetime import datetime, timedelta
from typing import Any
from uuid import UUID

from django.db import connection, models, transaction

from tests.outer_blocks import build_outer_block

#: Stands in a row's text where the number of the copy does.
_MARK = "¤"
#: Of a dense id, with the number of the copy.
_COPY_OF_UUID = re.compile(r"([0-9a-f]{8}(?:-[0-9a-f]{4}){3}-[0-9a-f]{12})-(\d+)")
#: How much earlier each copy happened than the one before.
EARLIER = timedelta(minutes=10)
#: Between the numbers of two copies, above all that a test counts.
_APART = 10**6


def copy_rows(copied: Collection[type[models.Model]], *, times: int) -> dict[str, int]:
    """Copy every row of some models; how many rows were added, by label. Call in a transaction."""
    # One row of something that is not copied has at most one of these.
    copied = [model for model in copied if _is_named_by_itself(model, copied)]
    texts = {model: _read_rows(model) for model in copied}
    ids = [
        re.escape(str(row[_get_key(model).column]))
        for model, rows in texts.items()
        for row in rows
        if isinstance(row[_get_key(model).column], str)
    ]
    known = re.compile(rf"(?<![\w-])({'|'.join(ids) or '$^'})(?![\w-])")
    with connection.cursor() as cursor:
        # Neither triggers nor foreign keys are asked: all that a row names is copied with it.
        cursor.execute("SET LOCAL session_replication_role = replica")
        for model, rows in texts.items():
            made = [copy for row in rows for copy in _copy(model, row, known, copied, times)]
            table = connection.ops.quote_name(model._meta.db_table)
            # Of some rows there may be one only.
            statement = (
                f"INSERT INTO {table} SELECT * FROM"
                f" jsonb_populate_recordset(NULL::{table}, %s::jsonb) ON CONFLICT DO NOTHING"
            )
            cursor.execute(statement, [f"[{','.join(made)}]"])
        cursor.execute("SET LOCAL session_replication_role = origin")
        # By name: of the whole database it locks what all databases share, until the test ends.
        names = connection.introspection.django_table_names(only_existing=True)
        cursor.execute(f"ANALYZE {', '.join(map(connection.ops.quote_name, names))}")
    return {model._meta.label: times * len(rows) for model, rows in texts.items() if rows}


def _get_key(model: type[models.Model]) -> Any:
    return model._meta.pk


def _is_named_by_itself(model: type[models.Model], copied: Collection[type[models.Model]]) -> bool:
    of = _get_key(model).remote_field
    return of is None or of.model in copied


def _read_rows(model: type[models.Model]) -> list[dict[str, Any]]:
    table = connection.ops.quote_name(model._meta.db_table)
    with connection.cursor() as cursor:
        cursor.execute(f"SELECT to_jsonb(row)::text FROM {table} AS row")
        return [json.loads(text) for (text,) in cursor.fetchall()]


def _copy(
    model: type[models.Model],
    row: dict[str, Any],
    known: re.Pattern[str],
    copied: Collection[type[models.Model]],
    times: int,
) -> Iterator[str]:
    """The row's copies as JSON."""
    marked = json.loads(known.sub(rf"\1{_MARK}", json.dumps(row, ensure_ascii=False)))
    shifted = _list_shifted(model, copied)
    for columns in _list_unique(model):
        if not any(name in shifted or marked[name] != row[name] for name in columns):
            _make_unique(model, marked, shifted, columns)
    numbers = {name: row[name] for name in shifted if row[name] is not None}
    moments = {
        field.column: datetime.fromisoformat(row[field.column])
        for field in model._meta.concrete_fields
        if isinstance(field, models.DateTimeField) and row[field.column] is not None
    }
    text = json.dumps(marked, ensure_ascii=False)
    for n in range(1, times + 1):
        changed = {name: value + n * _APART for name, value in numbers.items()}
        changed |= {name: (at - n * EARLIER).isoformat() for name, at in moments.items()}
        copied_text = _COPY_OF_UUID.sub(_count_up, text.replace(_MARK, f"-{n}"))
        yield json.dumps(json.loads(copied_text) | changed, ensure_ascii=False)


def _count_up(found: re.Match[str]) -> str:
    # Ids of one moment follow each other.
    return str(UUID(int=UUID(found[1]).int + (int(found[2]) << 40)))


def _list_shifted(model: type[models.Model], copied: Collection[type[models.Model]]) -> set[str]:
    """Columns of numbers that name a copied row."""
    found = set()
    for field in model._meta.concrete_fields:
        of = field.remote_field.model if field.remote_field else model
        is_key = field.primary_key or field.remote_field
        if is_key and of in copied and isinstance(of._meta.pk, models.IntegerField):
            found.add(field.column)
    return found


def _list_unique(model: type[models.Model]) -> Iterator[list[str]]:
    meta = model._meta
    for field in meta.concrete_fields:
        if field.unique:
            yield [field.column]
    for constraint in meta.constraints:
        if isinstance(constraint, models.UniqueConstraint) and constraint.fields:
            yield [meta.get_field(name).column for name in constraint.fields]
    for names in meta.unique_together:
        yield [meta.get_field(name).column for name in names]


def _make_unique(
    model: type[models.Model], marked: dict[str, Any], shifted: set[str], columns: list[str]
) -> None:
    """Let one of the columns tell copies apart."""
    by_column = {field.column: field for field in model._meta.concrete_fields}
    for name in reversed(columns):
        field, value = by_column[name], marked[name]
        if field.remote_field or value is None:
            continue
        if isinstance(value, str) and isinstance(field, models.CharField | models.TextField):
            room = (field.max_length or 255) - 5
            marked[name] = value[:room] + _MARK
            return
        if isinstance(value, int) and not isinstance(value, bool):
            shifted.add(name)
            return


def vacuum_tables(*, full: bool = False) -> None:
    """Take away what other tests left: rows that they took back are read and counted still.

    Call before the test's transaction reads or writes. It runs beside that transaction, on a
    connection of its own; ``full`` writes tables and indexes new.
    """
    tables = connection.introspection.django_table_names(only_existing=True)
    beside = connection.copy()
    try:
        with beside.cursor() as cursor:
            named = ", ".join(map(beside.ops.quote_name, tables))
            cursor.execute(f"VACUUM {'(FULL) ' if full else ''}{named}")
    finally:
        beside.close()


def count_reads(act: Callable[[], object]) -> int:
    """Rows and entries of indexes that the database reads for an act, and its statements.

    They are counted, not timed. Plans that read whole tables are left aside where there is another,
    as they are when tables are large. What the act changes is taken back.
    """
    statements = 0

    def count(execute: Any, *args: Any) -> Any:
        nonlocal statements
        statements += 1
        return execute(*args)

    with build_outer_block():
        with connection.cursor() as cursor:
            cursor.execute("SET LOCAL enable_seqscan = off")
        before = _count_read()
        with connection.execute_wrapper(count):
            act()
        found = _count_read() - before + statements
        transaction.set_rollback(True)
    return found


def _count_read() -> int:
    with connection.cursor() as cursor:
        cursor.execute(
            "SELECT sum(pg_stat_get_xact_tuples_returned(oid)"
            " + pg_stat_get_xact_tuples_fetched(oid)) FROM pg_class"
            " WHERE relkind IN ('r', 'i') AND relnamespace = 'public'::regnamespace"
        )
        [(read,)] = cursor.fetchall()
    return int(read)


def measure_bytes() -> dict[str, int]:
    """Bytes of each table without its indexes and of each index, by name.

    What stands outside of rows (TOAST) counts with its table.
    """
    with connection.cursor() as cursor:
        cursor.execute(
            "SELECT relname, CASE relkind WHEN 'r' THEN pg_table_size(oid)"
            " ELSE pg_relation_size(oid) END FROM pg_class"
            " WHERE relkind IN ('r', 'i') AND relnamespace = 'public'::regnamespace"
        )
        return dict(cursor.fetchall())
