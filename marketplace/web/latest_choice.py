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
    """Takes any row, and shows the first ones."""

    chosen = ""

    def offer(self, rows: QuerySet[Any], *, chosen: object) -> None:
        """Choose among rows, the newest first; ``chosen`` is the key that the form has now."""
        self.chosen = str(chosen or "").replace("\0", "")
        self.queryset = rows


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
