"""What a provider types."""

from __future__ import annotations

from typing import Any

from django import forms

from marketplace.fleet.models import Tier, Zone


class NodeForm(forms.Form):
    zone = forms.ModelChoiceField(
        label="Model to serve",
        queryset=Zone.objects.none(),
        to_field_name="name",
        empty_label=None,
        widget=forms.Select(attrs={"class": "field"}),
    )
    tier = forms.ChoiceField(
        label="Kind",
        choices=Tier.choices,
        initial=Tier.MARKETPLACE,
        widget=forms.Select(attrs={"class": "field"}),
    )
    ask = forms.CharField(
        label="Ask for one whole slot",
        max_length=16,
        widget=forms.TextInput(attrs={"inputmode": "decimal", "autocomplete": "off"}),
    )
    until = forms.DateTimeField(
        label="Offered until",
        required=False,
        input_formats=["%Y-%m-%dT%H:%M", "%Y-%m-%dT%H:%M:%S"],
        widget=forms.DateTimeInput(
            format="%Y-%m-%dT%H:%M", attrs={"type": "datetime-local", "class": "field num"}
        ),
        help_text="Leave empty to offer it until you drain it.",
    )

    def __init__(self, *args: Any, zones: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self.fields["zone"].queryset = zones  # type: ignore[attr-defined]
