"""What an owner does with a delivery: accepts it, or refuses it."""

from __future__ import annotations

from django.contrib import messages
from django.http import HttpResponse
from django.shortcuts import redirect
from django.views.decorators.http import require_POST

from marketplace.common import clock
from marketplace.common.errors import NotFound
from marketplace.jobs.models import Job
from marketplace.vendors import acceptance
from marketplace.vendors.models import Preparation
from marketplace.web.views.requests import PageRequest, page, show_refusal


@page
@require_POST
def accept_delivery(request: PageRequest, job_id: str) -> HttpResponse:
    preparation = _find_preparation(request, job_id)
    with show_refusal(request):
        acceptance.accept(preparation=preparation, now=clock.now())
        messages.success(request, "Accepted. The job trains on the prepared data.")
    return redirect("job_tab", job_id=preparation.job_id, tab="data")


@page
@require_POST
def refuse_delivery(request: PageRequest, job_id: str) -> HttpResponse:
    preparation = _find_preparation(request, job_id)
    with show_refusal(request):
        dispute = acceptance.refuse_delivery(
            preparation=preparation,
            reason=request.POST.get("reason", ""),
            refused_by=request.user,
            now=clock.now(),
        )
        said = "Refused. The next vendor gets the work, or everything is refunded."
        said = said if dispute is None else "Your dispute is open. The operator decides."
        messages.success(request, said)
    return redirect("job_tab", job_id=preparation.job_id, tab="data")


def _find_preparation(request: PageRequest, job_id: str) -> Preparation:
    jobs = Job.objects.filter(pk=job_id.replace("\0", ""), organisation=request.organisation)
    found = Preparation.objects.filter(job__in=jobs).first()
    if found is None:
        raise NotFound("no_preparation", "The job's data were trained on as they are.")
    return found
