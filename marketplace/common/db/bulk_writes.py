"""Writing many rows in one statement."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from datetime import date
from functools import cache, partial
from operator import attrgetter
from typing import TYPE_CHECKING, Any

from django.db import connection, connections
from django.db.models import JSONField, Model, fields
from django.db.models.expressions import DatabaseDefault  # type: ignore[attr-defined]
from django.db.models.fields import related

from marketplace.common.db.pipeline import Statement, send
from marketplace.common.models import IdField

if TYPE_CHECKING:
    _Field = fields.Field[Any, Any]


class JsonText(str):
    """JSON as text, which goes into a column as it is."""


def insert_rows(rows: Iterable[Model]) -> int:
    """Add new rows of one model; how many.

    One INSERT from one JSON text; Django's ``bulk_create`` compiles each value of each row in
    Python, which costs more than the rows cost the database. Columns that the database fills by
    itself are left to it: running numbers of keys, which the rows here do not learn, and the
    table's own defaults. Constraints and triggers hold as for any insert.
    """
    added = list(rows)
    if not added:
        return 0
    model = type(added[0])
    # Defaults of the table: rows of one call leave the same columns to it.
    first = vars(added[0])
    given = {name for name, value in first.items() if not isinstance(value, DatabaseDefault)}
    left_out = {field.attname for field in model._meta.concrete_fields} - given
    values = [
        (field, value) for field, value in _find_value_getters(model) if field.attname in given
    ]
    text, columns = _build_insert(model, tuple(field.attname for field, _ in values))
    _send_rows(text, columns, ([value(row) for _, value in values] for row in added))
    for row in added:
        row._state.adding, row._state.db = False, connections["default"].alias
        for name in left_out:
            # Read from the database when it is needed.
            vars(row).pop(name, None)
    return len(added)


def insert_values(model: type[Model], names: Sequence[str], rows: Iterable[Sequence[Any]]) -> int:
    """Add rows given as the values of the fields ``names``; how many.

    The same INSERT with no object of the ORM for each row, for rows that are not used after they
    are written. The other fields get the model's defaults, or are left to the database where it has
    one. ``names`` are those of columns (``zone_id``); a text for a JSON field is ``JsonText``.

    Raises
    ------
    TypeError
        A field that is not named has no default.
    """
    into = _lay_out_insert(model, tuple(names))
    return _send_rows(into.text, into.columns, map(into.values, rows))


def _send_rows(text: str, columns: Sequence[str], rows: Iterable[Sequence[Any]]) -> int:
    """Run a statement over its rows, if there are any; the number of rows."""
    found = list(rows)
    if found:
        send(Statement(text, [_encode_rows(columns, found)]))
    return len(found)


@cache
def _build_insert(model: type[Model], names: tuple[str, ...]) -> tuple[str, list[str]]:
    """The statement, and the columns whose values its rows give."""
    by_name = {field.attname: field for field in model._meta.concrete_fields}
    into = [by_name[name] for name in names]
    quote = connections["default"].ops.quote_name
    columns = [quote(field.column) for field in into]  # type: ignore[arg-type]
    # JSON comes as text, some of it already serialised.
    kinds = ["text" if isinstance(f, JSONField) else f.db_type(connection) for f in into]
    taken = [
        f"{column}::jsonb" if isinstance(field, JSONField) else column
        for column, field in zip(columns, into, strict=True)
    ]
    typed = [f"{column} {kind}" for column, kind in zip(columns, kinds, strict=True)]
    table = quote(model._meta.db_table)
    return (
        f"INSERT INTO {table} ({', '.join(columns)}) SELECT {', '.join(taken)} "  # noqa: S608 - names of our models
        f"FROM json_to_recordset(%s::json) AS new ({', '.join(typed)})",
        [field.column for field in into],  # type: ignore[misc]
    )


@dataclass(frozen=True, slots=True)
class _InsertLayout:
    """How rows of values become rows of a table."""

    text: str
    columns: Sequence[str]
    #: By place, how values are put that are not put as they are.
    puts: tuple[tuple[int, Callable[[Any], Any]], ...]
    #: Of fields that were not named: values that each row has, and what makes those of a row.
    same: tuple[Any, ...]
    made: tuple[Callable[[], Any], ...]

    def values(self, row: Sequence[Any]) -> list[Any]:
        values = [*row, *self.same, *[make() for make in self.made]]
        for place, put in self.puts:
            values[place] = put(values[place])
        return values


@cache
def _lay_out_insert(model: type[Model], names: tuple[str, ...]) -> _InsertLayout:
    by_name = {field.attname: field for field in model._meta.concrete_fields}
    named = [by_name.pop(name) for name in names]
    rest = [
        field
        for field in by_name.values()
        if not isinstance(field, fields.AutoFieldMixin)
        and not field.has_db_default()  # type: ignore[attr-defined]
        and not (field.null and not field.has_default())
    ]
    for field in rest:
        if not field.has_default() and field.get_default() is None:
            raise TypeError(f"{model.__name__}.{field.attname} has no default; name it")
    same = [field for field in rest if not callable(field.default)]
    made = [field for field in rest if callable(field.default)]
    into = [*named, *same, *made]
    text, columns = _build_insert(model, tuple(field.attname for field in into))
    return _InsertLayout(
        text=text,
        columns=columns,
        puts=tuple(
            (n, put) for n, field in enumerate(into) if (put := _find_converter(field)) is not None
        ),
        same=tuple(field.get_default() for field in same),
        made=tuple(field.get_default for field in made),
    )


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
    related.OneToOneField,
)


def _find_converter(field: _Field) -> Callable[[Any], Any] | None:
    """How a value is put into a field's column; ``None``: as it is."""
    if type(field) in _AS_IT_IS or isinstance(field, IdField):
        return None
    if type(field) is fields.DateTimeField and not (field.auto_now or field.auto_now_add):
        return None
    if isinstance(field, JSONField):
        return partial(_encode_json, field=field)
    return lambda value: field.get_db_prep_save(value, connections["default"])


def _encode_json(value: Any, *, field: JSONField) -> str | None:
    if value is None or isinstance(value, JsonText):
        return value
    return json.dumps(field.get_prep_value(value), cls=field.encoder)


@cache
def _find_value_getters(model: type[Model]) -> tuple[tuple[_Field, Callable[[Model], Any]], ...]:
    """The columns that the database does not number, and how a row gives their values."""
    return tuple(
        (field, _build_value_getter(field))
        for field in model._meta.concrete_fields
        if not isinstance(field, fields.AutoFieldMixin)
    )


def _build_value_getter(field: _Field) -> Callable[[Model], Any]:
    plain, put = attrgetter(field.attname), _find_converter(field)
    if put is None:
        return plain
    if isinstance(field, JSONField):
        return lambda row: put(plain(row))
    return lambda row: field.get_db_prep_save(field.pre_save(row, True), connections["default"])


def send_updates(model: type[Model], names: Sequence[str], rows: Sequence[Sequence[Any]]) -> None:
    """Write the fields ``names`` of rows given as key and values.

    One UPDATE from one JSON text; Django's ``bulk_update`` writes a CASE per field and row, which
    costs more in Python than the rows cost the database, and so do arrays.
    """
    if rows:
        text, columns = _build_update(model, tuple(names))
        send(Statement(text, [_encode_rows(columns, rows)]))


@cache
def _build_update(model: type[Model], names: tuple[str, ...]) -> tuple[str, list[str]]:
    """The statement, and the columns whose values its rows give."""
    meta = model._meta
    assert meta.pk is not None
    by_name = {field.attname: field for field in meta.concrete_fields}
    changed = [by_name[name] for name in names]
    quote = connection.ops.quote_name
    typed = ", ".join(f"{quote(f.column)} {f.db_type(connection)}" for f in (meta.pk, *changed))
    sets = ", ".join(f"{quote(f.column)} = new.{quote(f.column)}" for f in changed)
    pk = quote(meta.pk.column)
    return (
        f"UPDATE {quote(meta.db_table)} AS old SET {sets} "  # noqa: S608 - names of our models
        f"FROM json_to_recordset(%s::json) AS new ({typed}) WHERE old.{pk} = new.{pk}",
        [field.column for field in (meta.pk, *changed)],
    )


def _encode_rows(columns: Sequence[str], rows: Iterable[Sequence[Any]]) -> str:
    return _encode([dict(zip(columns, row, strict=True)) for row in rows])


def _encode_plain(value: Any) -> str:
    if isinstance(value, date):
        return value.isoformat()
    raise TypeError(f"{type(value).__name__} has no place in a column here")


#: Rows are made for this and hold no cycles, and looking for them takes time.
_encode = json.JSONEncoder(
    separators=(",", ":"), allow_nan=False, check_circular=False, default=_encode_plain
).encode
