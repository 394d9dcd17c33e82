"""What people ask of the express lane, before the services judge it."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from django import forms

from marketplace.web.prompt_form import AUTO, HyperField, PromptTuningForm


class ExpressForm(PromptTuningForm):
    zone = forms.ModelChoiceField(
        label="Model", queryset=None, to_field_name="zone__name", empty_label=None
    )
    dataset = forms.ModelChoiceField(
        label="Rows",
        queryset=None,
        empty_label=None,
        widget=forms.Select(attrs={"class": "field"}),
    )
    name = forms.CharField(
        max_length=64, widget=forms.TextInput(attrs={"class": "field", "autocomplete": "off"})
    )
    epochs = HyperField(label="Epochs")
    slo_s = forms.FloatField(label="Done within", required=False)
    #: Names this submission, so that a double click is one request.
    key = forms.CharField(max_length=64, widget=forms.HiddenInput)

    def __init__(self, data: dict[str, Any], *, lanes: Any, datasets: Any) -> None:
        super().__init__(data)
        self.fields["zone"].queryset = lanes  # type: ignore[attr-defined]
        self.fields["dataset"].queryset = datasets  # type: ignore[attr-defined]
        self.fields["initial_prompt"].required = True

    @property
    def training(self) -> dict[str, Any]:
        data = self.cleaned_data
        names = ("epochs", "target_loss")
        return {name: data[name] for name in names if data[name] != AUTO}

    def choose_slo(self, offered: Sequence[int]) -> int | None:
        """The SLO that is marked: the one given, or the second shortest."""
        given = self.data.get("slo_s")
        for slo_s in offered:
            if str(slo_s) == str(given):
                return slo_s
        return offered[min(1, len(offered) - 1)] if offered else None
