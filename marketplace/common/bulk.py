"""Writing many rows in one statement."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from functools import cache
from operator import attrgetter
from typing import Any

from django.db import connection, connections, transaction
from django.db.models import JSONField, Model, fields
from django.db.models.expressions import DatabaseDefault  # type: ignore[attr-defined]
from django.db.models.fields import related

from marketplace.common.models import IdField


def rows_insert(rows: Iterable[Model]) -> int:
    """Add new rows of one model; how many.

    One COPY; Django's ``bulk_create`` compiles each value of each row in Python, which costs more
    than the rows cost the database. Columns that the database fills by itself are left to it:
    running numbers of keys, which the rows here do not learn, and the table's own defaults.
    Constraints and triggers hold as for any insert.
    """
    added = list(rows)
    if not added:
        return 0
    model = type(added[0])
    own = connections["default"]
    # Defaults of the table: rows of one call leave the same columns to it.
    first = vars(added[0])
    given = {name for name, value in first.items() if not isinstance(value, DatabaseDefault)}
    left_out = {field.attname for field in model._meta.concrete_fields} - given
    values = [(field, value) for field, value in _values_of(model) if field.attname in given]
    quote = own.ops.quote_name
    columns = ", ".join(quote(field.column) for field, _ in values)  # type: ignore[arg-type]
    statement = f"COPY {quote(model._meta.db_table)} ({columns}) FROM STDIN"
    with (
        transaction.atomic(savepoint=False),
        own.cursor() as cursor,
        own.wrap_database_errors,  # type: ignore[attr-defined]
        cursor.copy(statement) as copy,  # type: ignore[attr-defined]
    ):
        for row in added:
            copy.write_row([value(row) for _, value in values])
    for row in added:
        row._state.adding, row._state.db = False, own.alias
        for name in left_out:
            # Read from the database by whoever asks for it.
            vars(row).pop(name, None)
    return len(added)


#: Columns of these kinds take a value as the row has it; the database checks it.
_AS_IT_IS = (
    fields.BigIntegerField,
    fields.BooleanField,
    fields.CharField,
    fields.FloatField,
    fields.PositiveBigIntegerField,
    fields.PositiveIntegerField,
    fields.TextField,
    related.ForeignKey,
)


@cache
def _values_of(
    model: type[Model],
) -> tuple[tuple[fields.Field[Any, Any], Callable[[Model], Any]], ...]:
    """The columns that the database does not number, and how a row gives their values."""
    return tuple(
        (field, _value_of(field))
        for field in model._meta.concrete_fields
        if not isinstance(field, fields.AutoFieldMixin)
    )


def _value_of(field: fields.Field[Any, Any]) -> Callable[[Model], Any]:
    plain = attrgetter(field.attname)
    if type(field) in _AS_IT_IS or isinstance(field, IdField):
        return plain
    if type(field) is fields.DateTimeField and not (field.auto_now or field.auto_now_add):
        return plain
    if type(field) is JSONField:
        return lambda row: (
            None
            if (value := plain(row)) is None
            else connections["default"].ops.adapt_json_value(value, field.encoder)
        )
    return lambda row: field.get_db_prep_save(field.pre_save(row, True), connections["default"])


def rows_update(rows: Sequence[Model], names: Iterable[str]) -> int:
    """Write the fields ``names`` of rows of one model by their keys; how many were found.

    One UPDATE from arrays; Django's ``bulk_update`` writes a CASE per field and row, which costs
    more in Python than the rows cost the database.
    """
    if not rows:
        return 0
    meta = rows[0]._meta
    assert meta.pk is not None
    changed = [meta.get_field(name) for name in names]
    columns = [meta.pk, *changed]
    arrays = [
        [field.get_db_prep_save(getattr(row, field.attname), connection) for row in rows]  # type: ignore[union-attr]
        for field in columns
    ]
    quote = connection.ops.quote_name
    casts = ", ".join(f"%s::{field.db_type(connection)}[]" for field in columns)  # type: ignore[union-attr]
    listed = ", ".join(quote(field.column) for field in columns)  # type: ignore[union-attr]
    sets = ", ".join(f"{quote(f.column)} = new.{quote(f.column)}" for f in changed)  # type: ignore[union-attr]
    pk = quote(meta.pk.column)
    with connection.cursor() as cursor:
        cursor.execute(
            f"UPDATE {quote(meta.db_table)} AS old SET {sets} "  # noqa: S608 - names of our models
            f"FROM unnest({casts}) AS new ({listed}) WHERE old.{pk} = new.{pk}",
            arrays,
        )
        return cursor.rowcount
