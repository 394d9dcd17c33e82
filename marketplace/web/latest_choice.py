"""A choice among rows of which there may be very many."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from django import forms
from django.db.models import QuerySet
from django.utils.choices import BaseChoiceIterator  # pyright: ignore[reportMissingImports]

#: Rows that a list shows, beside the one that is chosen.
OFFERED = 100


class LatestChoiceField(forms.ModelChoiceField):
    """Takes any row, and shows the first ones (``offer_rows``)."""

    #: The key that the form has now.
    chosen = ""
    #: What it shows of which rows, as a page asks for it several times.
    shown: tuple[QuerySet[Any], str, list[Any]] | None = None

    def list_shown(self) -> list[Any]:
        """The first rows, and the one that is chosen; read once."""
        rows = self.queryset
        if rows is None:
            return []
        if self.shown is None or self.shown[0] is not rows or self.shown[1] != self.chosen:
            found = list(rows[:OFFERED])
            if self.chosen and all(row.pk != self.chosen for row in found):
                found += rows.filter(pk=self.chosen)
            self.shown = rows, self.chosen, found
        return self.shown[2]


class _Shown(BaseChoiceIterator):
    def __init__(self, field: LatestChoiceField) -> None:
        self.field = field

    def __iter__(self) -> Iterator[tuple[Any, str]]:
        field = self.field
        if field.empty_label is not None:
            yield "", field.empty_label
        for row in field.list_shown():
            yield field.prepare_value(row), field.label_from_instance(row)


LatestChoiceField.iterator = _Shown


def offer_rows(form: forms.BaseForm, name: str, rows: QuerySet[Any]) -> None:
    """Let a form's field choose among rows, the newest first."""
    field = form.fields[name]
    assert isinstance(field, LatestChoiceField)
    field.chosen = str(form.data.get(name) or "").replace("\0", "")
    field.queryset = rows
