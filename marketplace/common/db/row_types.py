"""Rows as named tuples, where objects of the ORM would cost more than the query."""

from __future__ import annotations

from typing import Any, NamedTuple

from django.db.models import Model


def list_columns(
    model: type[Model], row: type[NamedTuple] | type[tuple[Any, ...]], **computed: str
) -> str:
    """The columns of a table that a named tuple's fields are, for a SELECT.

    A field is named as Django names the column's attribute; ``pk`` is the primary key. ``computed``
    gives the SQL of fields that are no columns.

    Raises
    ------
    LookupError
        The model has no such column. Call when the module is loaded.
    """
    meta = model._meta
    assert meta.pk is not None
    columns = {field.attname: field.column for field in meta.concrete_fields}
    columns |= {"pk": meta.pk.column} | computed
    names: tuple[str, ...] = row._fields  # type: ignore[union-attr]
    unknown = [name for name in names if name not in columns]
    if unknown:
        raise LookupError(f"{model.__name__} has no column {', '.join(unknown)}")
    return ", ".join(str(columns[name]) for name in names)
