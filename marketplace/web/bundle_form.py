"""A sweep as people ask for it, before the services judge it."""

from __future__ import annotations

import uuid
from datetime import datetime
from typing import Any

from django import forms
from django.utils import timezone

from marketplace.accounts.models import Organisation
from marketplace.common.errors import UserError
from marketplace.fleet.models import Zone
from marketplace.fleet.selectors import slot_at, slot_starts_at
from marketplace.jobs.models import Dataset
from marketplace.jobs.selectors import list_datasets
from marketplace.web.forms import AUTO, HyperField
from marketplace.web.latest_choice import LatestChoiceField, offer_rows

#: Fields that take several values, by the setting they are of.
SWEPT = {
    "training.learning_rate": "learning_rates",
    "adapter.rank": "ranks",
    "training.seed": "seeds",
}
#: The field that a service's refusal is about, by the name it gives.
PARAMS = {
    "price": "price",
    "deadline": "deadline",
    "name": "name",
    "dataset_id": "dataset",
    "dataset": "dataset",
    "validation_dataset_id": "validation",
    "zone": "zone",
    "epochs": "epochs",
    "batch_size": "batch_size",
    "learning_rate": "learning_rates",
    "rank": "ranks",
    "seed": "seeds",
}
_INPUT_FORMAT = "%Y-%m-%dT%H:%M:%S"


class ValuesField(forms.CharField):
    """Numbers with commas between them; none leaves the setting to the market."""

    def __init__(self, *, label: str, help_text: str) -> None:
        widget = forms.TextInput(attrs={"class": "field num", "autocomplete": "off"})
        super().__init__(
            label=label, help_text=help_text, required=False, max_length=200, widget=widget
        )

    def clean(self, value: Any) -> Any:
        values: list[int | float] = []
        for text in filter(None, map(str.strip, super().clean(value).split(","))):
            try:
                number = float(text)
            except ValueError:
                raise forms.ValidationError("Give numbers with commas between them.") from None
            values.append(int(number) if number.is_integer() else number)
        return values


class BundleForm(forms.Form):
    name = forms.CharField(
        max_length=48, widget=forms.TextInput(attrs={"class": "field", "autocomplete": "off"})
    )
    zone = forms.ModelChoiceField(
        label="Model",
        queryset=Zone.objects.none(),
        to_field_name="name",
        empty_label=None,
        widget=forms.Select(attrs={"class": "field"}),
    )
    dataset = LatestChoiceField(
        label="Data set",
        queryset=Dataset.objects.none(),
        empty_label=None,
        widget=forms.Select(attrs={"class": "field"}),
    )
    validation = LatestChoiceField(
        label="Validation data",
        queryset=Dataset.objects.none(),
        required=False,
        empty_label="A share of these rows",
        widget=forms.Select(attrs={"class": "field"}),
    )
    learning_rates = ValuesField(label="Learning rates", help_text="Such as 0.0001, 0.0003")
    ranks = ValuesField(label="LoRA ranks", help_text="Such as 8, 16")
    seeds = ValuesField(label="Seeds", help_text="Such as 1, 2, 3")
    epochs = HyperField(label="Epochs")
    batch_size = HyperField(label="Batch size")
    deadline = forms.DateTimeField(
        input_formats=[_INPUT_FORMAT, "%Y-%m-%dT%H:%M"],
        widget=forms.DateTimeInput(
            format=_INPUT_FORMAT, attrs={"type": "datetime-local", "class": "field num", "step": 1}
        ),
    )
    mode = forms.ChoiceField(
        label="If not all can be had",
        choices=[("all", "All or none"), ("each", "As many as win, each for itself")],
        widget=forms.Select(attrs={"class": "field"}),
    )
    price = forms.CharField(
        label="Most it is worth to you",
        required=False,
        max_length=24,
        help_text="For all jobs together, or for each where each stands for itself.",
        widget=forms.TextInput(attrs={"inputmode": "decimal", "autocomplete": "off"}),
    )
    verified_only = forms.BooleanField(label="Verified providers only", required=False)
    #: Names this submission, so that a double click is one bundle.
    key = forms.CharField(max_length=64, widget=forms.HiddenInput)

    def __init__(self, data: Any, *, organisation: Organisation, zones: Any) -> None:
        super().__init__(data)
        self.fields["zone"].queryset = zones  # type: ignore[attr-defined]
        for name in ("dataset", "validation"):
            offer_rows(self, name, list_datasets(organisation))

    @property
    def training(self) -> dict[str, Any]:
        data = self.cleaned_data
        names = ("epochs", "batch_size")
        return {name: data[name] for name in names if data.get(name, AUTO) != AUTO}

    @property
    def sweep(self) -> dict[str, list[Any]]:
        """Values by setting, where any were given."""
        return {
            setting: values
            for setting, name in SWEPT.items()
            if (values := self.cleaned_data.get(name))
        }

    @property
    def all_or_none(self) -> bool:
        return self.cleaned_data.get("mode") == "all"

    def refuse(self, error: UserError) -> None:
        """Put a service's refusal beside the field that it is about."""
        param = (error.param or "").rpartition(".")[2]
        self.add_error(PARAMS.get(param), error.message)


def get_bundle_defaults(*, zone: Zone, now: datetime) -> dict[str, Any]:
    """A form to start from: three seeds by the middle of what is on sale."""
    deadline = slot_starts_at(zone, slot_at(zone, now) + max(2, zone.horizon_slots // 2))
    return {
        "name": f"sweep-{timezone.localtime(now):%m%d-%H%M}",
        "zone": zone.name,
        "seeds": "1, 2, 3",
        "epochs": AUTO,
        "batch_size": AUTO,
        "mode": "all",
        "deadline": timezone.localtime(deadline).strftime(_INPUT_FORMAT),
        "key": uuid.uuid4().hex,
    }
