"""What a vendor types of itself."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from django import forms

from marketplace.common.errors import UserError
from marketplace.common.money import to_micros
from marketplace.fleet.models import Zone
from marketplace.vendors.availability import DAYS_A_WEEK, HOURS_A_DAY, Availability
from marketplace.vendors.listing import (
    ENDPOINT_CHARS_MAX,
    NAME_CHARS_MAX,
    ROWS_PER_SLOT_MAX,
    SECONDS_MAX,
    VendorTerms,
)
from marketplace.vendors.models import Listing, Vendor, VendorKind
from marketplace.vendors.quoting import QuoteFunction
from marketplace.vendors.skills import Skill
from marketplace.web.templatetags.finetender import usd_input

DAYS = ("Monday", "Tuesday", "Wednesday", "Thursday", "Friday", "Saturday", "Sunday")
KINDS = (
    (VendorKind.HUMAN.value, "People who work in this market's console; the data stay here"),
    (VendorKind.OUTSIDE.value, "Your own systems; they fetch the data by a signed link"),
)


def _number(label: str, *, most: int, initial: int, help_text: str = "") -> forms.IntegerField:
    return forms.IntegerField(
        label=label,
        min_value=0,
        max_value=most,
        initial=initial,
        help_text=help_text,
        widget=forms.NumberInput(attrs={"class": "field num"}),
    )


def _amount(label: str, *, initial: str) -> forms.CharField:
    return forms.CharField(
        label=label,
        max_length=24,
        initial=initial,
        widget=forms.TextInput(attrs={"inputmode": "decimal", "autocomplete": "off"}),
    )


class VendorForm(forms.Form):
    name = forms.CharField(
        max_length=NAME_CHARS_MAX,
        widget=forms.TextInput(attrs={"class": "field", "autocomplete": "off"}),
    )
    kind = forms.ChoiceField(label="Who does the work", choices=KINDS, widget=forms.RadioSelect)
    skills = forms.MultipleChoiceField(choices=Skill.choices, widget=forms.CheckboxSelectMultiple)
    minimum = _amount("Least for any data set", initial="1.00")
    per_1000_rows = _amount("For each thousand rows", initial="0")
    per_1000_tokens = _amount("For each thousand tokens", initial="0")
    base_s = _number("Seconds for any data set", most=SECONDS_MAX, initial=3600)
    s_per_1000_rows = _number("Seconds more for each thousand rows", most=SECONDS_MAX, initial=3600)
    valid_until = forms.DateTimeField(
        label="Quotes hold until",
        required=False,
        input_formats=["%Y-%m-%dT%H:%M", "%Y-%m-%dT%H:%M:%S"],
        widget=forms.DateTimeInput(
            format="%Y-%m-%dT%H:%M", attrs={"type": "datetime-local", "class": "field num"}
        ),
        help_text="Leave empty to quote until you change it.",
    )
    days = forms.TypedMultipleChoiceField(
        label="Days of work",
        coerce=int,
        choices=list(enumerate(DAYS)),
        initial=list(range(DAYS_A_WEEK)),
        widget=forms.CheckboxSelectMultiple,
    )
    from_hour = _number("From hour (UTC)", most=HOURS_A_DAY - 1, initial=0)
    to_hour = _number("To hour (UTC)", most=HOURS_A_DAY, initial=HOURS_A_DAY)
    late_percent = _number(
        "What a late delivery costs you, in percent",
        most=100,
        initial=20,
        help_text="Late work is planned again once; then you get so much less.",
    )
    endpoint = forms.CharField(
        label="Address of your own system",
        required=False,
        max_length=ENDPOINT_CHARS_MAX,
        widget=forms.URLInput(attrs={"class": "field", "autocomplete": "off"}),
        help_text="It is asked for quotes and has 0.3 seconds to answer. Leave empty to quote by "
        "the prices above.",
    )

    def __init__(self, *args: Any, zones: Sequence[Zone], **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self._zones = {_name_rows(zone): zone for zone in zones}
        for name, zone in self._zones.items():
            self.fields[name] = _number(
                f"Rows a slot, {zone.base_model_name}",
                most=ROWS_PER_SLOT_MAX,
                initial=0,
                help_text=f"A slot has {zone.slot_s:,} seconds. 0: no work of this model.",
            )

    @property
    def zone_fields(self) -> list[forms.BoundField]:
        return [self[name] for name in self._zones]

    def read_terms(self) -> VendorTerms:
        """The terms as the service takes them.

        Raises
        ------
        UserError
            ``invalid_amount``.
        """
        data = self.cleaned_data
        return VendorTerms(
            name=data["name"].strip(),
            kind=VendorKind(data["kind"]),
            skills=data["skills"],
            quotes=QuoteFunction(
                minimum_micros=_read_amount(data, "minimum"),
                micros_per_1000_rows=_read_amount(data, "per_1000_rows"),
                micros_per_1000_tokens=_read_amount(data, "per_1000_tokens"),
                base_s=data["base_s"],
                s_per_1000_rows=data["s_per_1000_rows"],
                valid_until=data["valid_until"],
            ),
            rows_per_slot={zone: data[name] for name, zone in self._zones.items()},
            availability=Availability(tuple(data["days"]), data["from_hour"], data["to_hour"]),
            late_percent=data["late_percent"],
            endpoint=data["endpoint"].strip(),
        )

    def refuse(self, error: UserError) -> None:
        """Put a service's refusal beside the field that it is about."""
        self.add_error(error.param if error.param in self.fields else None, error.message)


def _name_rows(zone: Zone) -> str:
    return f"rows_{zone.pk}"


def _read_amount(data: dict[str, Any], name: str) -> int:
    return to_micros(data[name].strip().removeprefix("$"), param=name)


def describe_terms(vendor: Vendor) -> dict[str, Any]:
    """A vendor's terms as its form shows them."""
    listed = Listing.objects.filter(vendor=vendor).values_list("zone_id", "rows_per_slot")
    rows = {f"rows_{zone_id}": rows for zone_id, rows in listed}
    return {
        "name": vendor.name,
        "kind": vendor.kind,
        "skills": vendor.skills,
        "minimum": usd_input(vendor.minimum_micros),
        "per_1000_rows": usd_input(vendor.micros_per_1000_rows),
        "per_1000_tokens": usd_input(vendor.micros_per_1000_tokens),
        "base_s": vendor.base_s,
        "s_per_1000_rows": vendor.s_per_1000_rows,
        "valid_until": vendor.valid_until,
        "days": vendor.days or list(range(DAYS_A_WEEK)),
        "from_hour": vendor.from_hour,
        "to_hour": vendor.to_hour,
        "late_percent": vendor.late_percent,
        "endpoint": vendor.endpoint,
        **rows,
    }
