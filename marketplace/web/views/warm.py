"""Consents to warm starts: of an organisation, a data set and an adapter."""

from __future__ import annotations

from django.contrib import messages
from django.http import HttpResponse
from django.shortcuts import redirect
from django.views.decorators.http import require_POST

from marketplace.common import clock
from marketplace.warm.consents import set_adapter_consent, set_consent, set_dataset_consent
from marketplace.web.views.requests import PageRequest, page, show_refusal
from marketplace.web.views.workspace import find_own_dataset

#: What a data set's form sends.
_CHOICES = {"yes": True, "no": False}


@page
@require_POST
def set_organisation(request: PageRequest) -> HttpResponse:
    set_consent(
        organisation=request.organisation,
        uses_donors="uses_donors" in request.POST,
        gives_adapters="gives_adapters" in request.POST,
        now=clock.now(),
    )
    messages.success(request, "What you allow of warm starts is stored.")
    return redirect("dataset_list")


@page
@require_POST
def set_dataset(request: PageRequest, dataset_id: str) -> HttpResponse:
    dataset = find_own_dataset(request, dataset_id)
    set_dataset_consent(
        dataset=dataset,
        uses_donors=_CHOICES.get(request.POST.get("uses_donors", "")),
        gives_adapters=_CHOICES.get(request.POST.get("gives_adapters", "")),
        now=clock.now(),
    )
    messages.success(request, "What this data set allows of warm starts is stored.")
    return redirect("dataset_detail", dataset_id=dataset.pk)


@page
@require_POST
def give_adapter(request: PageRequest, job_id: str) -> HttpResponse:
    is_given = request.POST.get("give") == "yes"
    with show_refusal(request):
        set_adapter_consent(
            organisation=request.organisation,
            job_id=job_id.replace("\0", ""),
            is_given=is_given,
            now=clock.now(),
        )
        words = (
            "Jobs of others may begin with this adapter now."
            if is_given
            else "The adapter is withdrawn: no further job of others begins with it."
        )
        messages.success(request, words)
    return redirect("job_detail", job_id=job_id)
