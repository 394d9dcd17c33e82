"""Where measurements of jobs are sent on to."""

from __future__ import annotations

from typing import Any

from django.contrib import messages
from django.http import HttpResponse
from django.shortcuts import redirect, render
from django.views.decorators.debug import sensitive_post_parameters, sensitive_variables
from django.views.decorators.http import require_http_methods, require_POST

from marketplace.common import clock
from marketplace.common.errors import UserError
from marketplace.jobs.models import Job
from marketplace.tracking.models import TrackedRun, TrackingService
from marketplace.tracking.services import (
    find_tracking_key,
    list_tracked_runs,
    remove_tracking_key,
    set_tracking_key,
)
from marketplace.tracking.trackers import TRACKERS
from marketplace.web.views.requests import PageRequest, page

RUNS_LISTED = 20


@sensitive_post_parameters("key")
@sensitive_variables("key")
@page
@require_http_methods(["GET", "POST"])
def show_tracking(request: PageRequest) -> HttpResponse:
    error: UserError | None = None
    asked = request.POST.get("service", "")
    if request.method == "POST" and asked in TrackingService.values:
        key = request.POST.get("key", "")
        try:
            set_tracking_key(
                organisation=request.organisation,
                service=TrackingService(asked),
                key=key,
                address=request.POST.get("address", ""),
                set_by=request.user,
                now=clock.now(),
            )
        except UserError as refusal:
            error = refusal
        else:
            messages.success(request, "The key is stored.")
            return redirect("tracking")
    runs = list_tracked_runs(request.organisation, limit=RUNS_LISTED)
    services = [
        {
            "name": service,
            "tracker": tracker,
            "key": find_tracking_key(request.organisation, service),
            "error": error if service == asked else None,
        }
        for service, tracker in TRACKERS.items()
    ]
    context = {"services": services, "runs": _describe(request, runs)}
    return render(request, "web/tracking.html", context, status=error.status if error else 200)


@page
@require_POST
def forget_tracking_key(request: PageRequest, service: str) -> HttpResponse:
    if service in TrackingService.values:
        remove_tracking_key(organisation=request.organisation, service=TrackingService(service))
        messages.success(request, "The key is deleted. Nothing more is sent.")
    return redirect("tracking")


def _describe(request: PageRequest, runs: list[TrackedRun]) -> list[dict[str, Any]]:
    jobs = Job.objects.filter(
        organisation=request.organisation, bid_id__in=[run.bid_id for run in runs]
    )
    by_bid = {job.bid_id: job for job in jobs}
    return [{"run": run, "job": by_bid[run.bid_id]} for run in runs if run.bid_id in by_bid]
