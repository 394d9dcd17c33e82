"""What a provider types."""

from __future__ import annotations

from dataclasses import asdict
from datetime import UTC, datetime, time
from typing import Any

from django import forms
from django.utils import timezone

from marketplace.fleet.joining import NODES_PER_TOKEN
from marketplace.fleet.models import Node, Tier, Zone
from marketplace.fleet.sale_hours import read_sale_hours

#: As browsers send moments.
_MOMENTS = ["%Y-%m-%dT%H:%M", "%Y-%m-%dT%H:%M:%S"]


class SaleHoursForm(forms.Form):
    """Times where the visitor is, read as they are in UTC; an empty field means no time."""

    opens = forms.TimeField(
        label="Sold from",
        required=False,
        widget=forms.TimeInput(format="%H:%M", attrs={"type": "time", "class": "field num"}),
    )
    closes = forms.TimeField(
        label="until",
        required=False,
        widget=forms.TimeInput(format="%H:%M", attrs={"type": "time", "class": "field num"}),
    )
    maintenance_from_at = forms.DateTimeField(
        label="Maintenance from",
        required=False,
        input_formats=_MOMENTS,
        widget=forms.DateTimeInput(
            format=_MOMENTS[0], attrs={"type": "datetime-local", "class": "field num"}
        ),
    )
    maintenance_until_at = forms.DateTimeField(
        label="until",
        required=False,
        input_formats=_MOMENTS,
        widget=forms.DateTimeInput(
            format=_MOMENTS[0], attrs={"type": "datetime-local", "class": "field num"}
        ),
    )

    def __init__(self, *args: Any, now: datetime, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self.now = now

    def clean_opens(self) -> time | None:
        return _read_utc(self.cleaned_data["opens"], now=self.now)

    def clean_closes(self) -> time | None:
        return _read_utc(self.cleaned_data["closes"], now=self.now)


def build_hours_form(node: Node, *, now: datetime) -> SaleHoursForm:
    """Fill in a node's hours as its provider's clock shows them today."""
    hours = asdict(read_sale_hours(node, now=now))
    for name in ("opens", "closes"):
        if (at := hours[name]) is not None:
            today = datetime.combine(now.astimezone(UTC).date(), at, UTC)
            hours[name] = timezone.localtime(today).time()
    return SaleHoursForm(initial=hours, now=now)


def _read_utc(at: time | None, *, now: datetime) -> time | None:
    """A time of the visitor's day as it is in UTC today."""
    if at is None:
        return None
    here = timezone.get_current_timezone()
    return datetime.combine(timezone.localtime(now).date(), at, here).astimezone(UTC).time()


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
    nodes = forms.IntegerField(
        label="GPUs of the machine",
        min_value=1,
        max_value=NODES_PER_TOKEN,
        initial=1,
        required=False,
        widget=forms.NumberInput(attrs={"class": "field num"}),
        help_text="Each is a node of its own, for the same ask.",
    )
    is_shared = forms.BooleanField(
        label="These GPUs serve another model at other hours",
        required=False,
        help_text="They take turns, each in its hours of sale.",
    )
    opens = forms.TimeField(
        label="Sold each day from",
        required=False,
        widget=forms.TimeInput(format="%H:%M", attrs={"type": "time", "class": "field num"}),
        help_text="UTC. Leave both empty to sell it all day.",
    )
    closes = forms.TimeField(
        label="Sold each day until",
        required=False,
        widget=forms.TimeInput(format="%H:%M", attrs={"type": "time", "class": "field num"}),
        help_text="Before another node of the GPU begins, its base model must be loaded.",
    )
    until = forms.DateTimeField(
        label="Offered until",
        required=False,
        input_formats=_MOMENTS,
        widget=forms.DateTimeInput(
            format="%Y-%m-%dT%H:%M", attrs={"type": "datetime-local", "class": "field num"}
        ),
        help_text="Leave empty to offer it until you drain it.",
    )

    def __init__(self, *args: Any, zones: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self.fields["zone"].queryset = zones  # type: ignore[attr-defined]
