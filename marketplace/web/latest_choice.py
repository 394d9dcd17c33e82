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


class _Shown(BaseChoiceIterator):
    def __init__(self, field: LatestChoiceField) -> None:
        self.field = field

    def __iter__(self) -> Iterator[tuple[Any, str]]:
        field, rows = self.field, self.field.queryset
        if field.empty_label is not None:
            yield "", field.empty_label
        shown = [] if rows is None else list(rows[:OFFERED])
        if rows is not None and field.chosen and all(row.pk != field.chosen for row in shown):
            shown += rows.filter(pk=field.chosen)
        for row in shown:
            yield field.prepare_value(row), field.label_from_instance(row)


LatestChoiceField.iterator = _Shown


def offer_rows(form: forms.BaseForm, name: str, rows: QuerySet[Any]) -> None:
    """Let a form's field choose among rows, the newest first."""
    field = form.fields[name]
    assert isinstance(field, LatestChoiceField)
    field.chosen = str(form.data.get(name) or "").replace("\0", "")
    field.queryset = rows
