"""What people ask of the express lane, before the services judge it."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from django import forms

from marketplace.express.previews import SloPreview
from marketplace.web.latest_choice import LatestChoiceField, offer_rows
from marketplace.web.prompt_form import AUTO, HyperField, PromptTuningForm


class ExpressForm(PromptTuningForm):
    zone = forms.ModelChoiceField(
        label="Model", queryset=None, to_field_name="zone__name", empty_label=None
    )
    dataset = LatestChoiceField(
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
        offer_rows(self, "dataset", datasets)
        self.fields["initial_prompt"].required = True

    @property
    def training(self) -> dict[str, Any]:
        data = self.cleaned_data
        names = ("epochs", "target_loss")
        return {name: data[name] for name in names if data[name] != AUTO}

    def choose_slo(self, slos: Sequence[SloPreview]) -> SloPreview | None:
        """The SLO that is shown first: the one given, or the shortest that is certain now."""
        given = str(self.data.get("slo_s"))
        known = {str(one.slo_s): one for one in slos}
        certain = (one for one in slos if one.is_certain)
        return known.get(given) or next(certain, slos[-1] if slos else None)
