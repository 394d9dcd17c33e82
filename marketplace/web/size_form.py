"""A job by its size, from who has not uploaded anything."""

from __future__ import annotations

from typing import Any, cast

from django import forms
from django.db.models import QuerySet

from marketplace.auction.bidding.typical import SizedJob
from marketplace.fleet.models import Zone
from workers.protocol.job_settings import TRAINING_RANGES

#: Rows that are quoted without a file at most.
ROWS_MAX = 1_000_000
_, EPOCHS_MAX = map(int, TRAINING_RANGES["epochs"].get_ends(on_sale=True))


def _number(most: int, **options: Any) -> forms.IntegerField:
    widget = forms.NumberInput(attrs={"class": "field", "inputmode": "numeric"})
    return forms.IntegerField(max_value=most, widget=widget, **options)


class BaseModelField(forms.ModelChoiceField):
    """A choice of zones by their base models."""

    def label_from_instance(self, obj: Any) -> str:
        return obj.base_model_name


class SizeForm(forms.Form):
    zone = BaseModelField(
        label="Model",
        queryset=Zone.objects.none(),
        to_field_name="name",
        empty_label=None,
        widget=forms.Select(attrs={"class": "field"}),
    )
    rows = _number(ROWS_MAX, min_value=1)
    epochs = _number(
        EPOCHS_MAX, min_value=1, required=False, help_text="Left empty, the market chooses."
    )

    def __init__(self, data: Any, *, zones: QuerySet[Zone], zone: Zone) -> None:
        super().__init__(data, initial={"zone": zone.name})
        cast(BaseModelField, self.fields["zone"]).queryset = zones
        most = zone.max_sequence_length
        self.fields["row_tokens"] = _number(
            most,
            label="Tokens of a row",
            min_value=2,
            help_text=f"A token is about four letters. This model reads {most:,} at most.",
        )

    def read_job(self) -> SizedJob | None:
        """The job that is described; ``None``: what is typed describes none."""
        if not self.is_valid():
            return None
        data = self.cleaned_data
        return SizedJob(data["rows"], data["row_tokens"], data["epochs"])

    def propose(self, job: SizedJob) -> None:
        """Show a job where nobody has typed anything yet."""
        self.initial |= {"rows": job.rows, "row_tokens": job.row_tokens, "epochs": job.epochs}
