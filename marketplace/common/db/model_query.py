"""Objects of a model by a text of our own, prepared once; the ORM would write it each time."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any, Generic, TypeVar

from django.db import connection
from django.db.models import Model

from marketplace.common.db.pipeline import Statement

M = TypeVar("M", bound=Model)


class ModelQuery(Generic[M]):
    """``SELECT`` of every column of a model.

    Parameters
    ----------
    condition
        What follows the table's name, such as ``WHERE id = ANY(%s)``.
    """

    def __init__(self, model: type[M], condition: str) -> None:
        fields = model._meta.concrete_fields
        self._model = model
        self._names = [field.attname for field in fields]
        #: By place of the column, what makes the field's value of the database's.
        self._converters: dict[int, Any] = {
            place: field.from_db_value  # type: ignore[attr-defined]
            for place, field in enumerate(fields)
            if hasattr(field, "from_db_value")
        }
        columns = ", ".join(str(field.column) for field in fields)
        self._text = f"SELECT {columns} FROM {model._meta.db_table} {condition}"  # noqa: S608

    def build_statement(self, *values: Any) -> Statement:
        return Statement(self._text, values)

    def read(self, rows: Iterable[tuple[Any, ...]]) -> list[M]:
        """The objects that the statement's rows are, as a query of the ORM gives them."""
        return [self._model.from_db("default", self._names, self._convert(row)) for row in rows]

    def _convert(self, row: tuple[Any, ...]) -> list[Any]:
        values = list(row)
        for place, convert in self._converters.items():
            values[place] = convert(values[place], None, connection)
        return values
