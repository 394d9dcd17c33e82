"""The operator's page of express lanes: floor, answers, lateness, money, and the bank."""

from __future__ import annotations

from typing import Any

from django import forms
from django.contrib import messages
from django.http import HttpResponse
from django.shortcuts import redirect, render
from django.views.decorators.http import require_http_methods

from marketplace.common import clock
from marketplace.common.errors import UserError
from marketplace.common.money import from_micros, to_micros
from marketplace.express.lanes import LaneTerms, set_lane
from marketplace.express.models import ExpressLane
from marketplace.express.selectors import summarize_bank, summarize_lanes
from marketplace.fleet.models import Zone
from marketplace.web.views.requests import PageRequest, operator_page


class LaneForm(forms.Form):
    zone = forms.ModelChoiceField(
        label="Zone",
        queryset=Zone.objects.order_by("name"),
        to_field_name="name",
        empty_label=None,
        widget=forms.Select(attrs={"class": "field"}),
    )
    least_seats = forms.IntegerField(
        label="Floor at least", min_value=0, widget=forms.NumberInput(attrs={"class": "field num"})
    )
    most_seats = forms.IntegerField(
        label="Seats at most", min_value=0, widget=forms.NumberInput(attrs={"class": "field num"})
    )
    seat_limit = forms.CharField(
        label="Most a seat may cost a slot, $",
        max_length=24,
        widget=forms.TextInput(attrs={"class": "field num"}),
    )
    budget = forms.CharField(
        label="Budget an hour, $",
        max_length=24,
        widget=forms.TextInput(attrs={"class": "field num"}),
    )
    slo_max_s = forms.FloatField(
        label="Longest SLO, s", widget=forms.NumberInput(attrs={"class": "field num"})
    )
    verified_only = forms.BooleanField(label="Nodes of verified providers only", required=False)
    is_open = forms.BooleanField(label="Open", required=False)


#: Of a lane that is not there yet.
DEFAULTS: dict[str, Any] = {
    "least_seats": 1,
    "most_seats": 4,
    "seat_limit": "1.00",
    "budget": "50.00",
    "slo_max_s": 180,
    "is_open": True,
}


def _describe(lane: ExpressLane) -> dict[str, Any]:
    """A lane's terms as they are, so that saving changes only what was changed."""
    return {
        "zone": lane.zone.name,
        "least_seats": lane.least_seats,
        "most_seats": lane.most_seats,
        "seat_limit": f"{from_micros(lane.seat_limit_micros).normalize():f}",
        "budget": f"{from_micros(lane.budget_micros_per_h).normalize():f}",
        "slo_max_s": lane.slo_max_s,
        "verified_only": lane.verified_only,
        "is_open": lane.is_open,
    }


@operator_page
@require_http_methods(["GET", "POST"])
def show_lanes(request: PageRequest) -> HttpResponse:
    now = clock.now()
    lanes = summarize_lanes(now=now)
    asked = request.GET.get("zone")
    chosen = [one.lane for one in lanes if asked in (None, one.lane.zone.name)]
    initial = _describe(chosen[0]) if chosen else DEFAULTS | {"zone": asked}
    form = LaneForm(request.POST if request.method == "POST" else None, initial=initial)
    status = 200
    if request.method == "POST":
        try:
            if form.is_valid():
                _set(request, form)
                messages.success(request, "Saved.")
                return redirect("operator_express")
        except UserError as error:
            form.add_error(None, error.message)
        status = 400
    context = {"now": now, "lanes": lanes, "bank": summarize_bank()}
    return render(request, "console/express.html", context | {"form": form}, status=status)


def _set(request: PageRequest, form: LaneForm) -> None:
    data = form.cleaned_data
    terms = LaneTerms(
        is_open=data["is_open"],
        least_seats=data["least_seats"],
        most_seats=data["most_seats"],
        seat_limit_micros=to_micros(data["seat_limit"], param="seat_limit"),
        budget_micros_per_h=to_micros(data["budget"], param="budget"),
        slo_max_s=data["slo_max_s"],
        verified_only=data["verified_only"],
    )
    set_lane(zone=data["zone"], organisation=request.organisation, terms=terms)
