"""The plan of a preparation: shown, changed and confirmed by the owner before anything is sold."""

from __future__ import annotations

from typing import Any

from django.contrib import messages
from django.http import HttpResponse
from django.shortcuts import redirect, render
from django.urls import reverse
from django.views.decorators.http import require_http_methods, require_POST

from marketplace.common import clock
from marketplace.common.errors import NotFound, UserError
from marketplace.fleet.selectors import list_open_zones
from marketplace.jobs.models import Dataset
from marketplace.vendors.models import DataPlan
from marketplace.vendors.plans import confirm_plan, find_latest_plan, find_plan, request_plan
from marketplace.vendors.wishes import parse_wish
from marketplace.web.presenters.data_plan import list_roles, present_plan
from marketplace.web.views.requests import PageRequest, page
from marketplace.web.views.workspace import find_own_dataset


@page
@require_http_methods(["GET", "POST"])
def show_plans(request: PageRequest, dataset_id: str) -> HttpResponse:
    """The last plan of a data set, or the form that has one made."""
    dataset = find_own_dataset(request, dataset_id)
    latest = find_latest_plan(dataset)
    if request.method == "GET":
        if latest is not None:
            return redirect("data_plan", dataset_id=dataset.pk, plan_id=latest.pk)
        return render(request, "web/data_plan.html", {"dataset": dataset})
    zone = dataset.zone or list_open_zones().first()
    try:
        if zone is None:
            raise NotFound("no_zone", "No model is sold now that a plan could be counted for.")
        asked = _read(request, dataset)
        plan = request_plan(dataset=dataset, zone=zone, wish=parse_wish(asked), now=clock.now())
    except UserError as error:
        messages.error(request, error.message)
        return redirect("data_plans", dataset_id=dataset.pk)
    return redirect("data_plan", dataset_id=dataset.pk, plan_id=plan.pk)


@page
@require_http_methods(["GET"])
def show_plan(request: PageRequest, dataset_id: str, plan_id: str) -> HttpResponse:
    dataset = find_own_dataset(request, dataset_id)
    plan = find_plan(dataset=dataset, plan_id=plan_id)
    context = {
        "dataset": dataset,
        "plan": plan,
        "shown": None if plan.plan is None else present_plan(plan),
        "roles": list_roles(),
    }
    return render(request, "web/data_plan.html", context)


@page
@require_POST
def confirm(request: PageRequest, dataset_id: str, plan_id: str) -> HttpResponse:
    dataset = find_own_dataset(request, dataset_id)
    plan = find_plan(dataset=dataset, plan_id=plan_id)
    try:
        confirm_plan(plan=plan, confirmed_by=request.user, now=clock.now())
    except UserError as error:
        messages.error(request, error.message)
        return redirect("data_plan", dataset_id=dataset.pk, plan_id=plan.pk)
    address = f"{reverse('bid_new')}?dataset={dataset.pk}&zone={plan.zone.name}"
    return redirect(f"{address}&prepare=on&plan={plan.pk}")


def _read(request: PageRequest, dataset: Dataset) -> dict[str, Any]:
    """The settings that the form asks for: roles only where they are not what the plan found."""
    asked: dict[str, Any] = {
        "drop_duplicates": "keep_duplicates" not in request.POST,
        "mask_personal_data": "mask" in request.POST,
        "phone_regions": request.POST.get("phone_regions", "").upper().replace(",", " ").split(),
    }
    earlier = request.POST.get("plan", "")
    if not earlier:
        return asked
    plan: DataPlan = find_plan(dataset=dataset, plan_id=earlier)
    known: dict[str, str] = dict(plan.asked["roles"])
    for number, column in enumerate(plan.plan["columns"] if plan.plan else ()):
        chosen = request.POST.get(f"role_{number}", "")
        if chosen and chosen != column["role"]:
            known[column["name"]] = chosen
    return asked | {"roles": known, "languages": plan.asked["languages"]}
