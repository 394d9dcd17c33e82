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
from marketplace.tracking.models import TrackedRun
from marketplace.tracking.services import (
    find_tracking_key,
    is_installed,
    list_tracked_runs,
    remove_tracking_key,
    set_tracking_key,
)
from marketplace.web.views.requests import PageRequest, page

RUNS_LISTED = 20


@sensitive_post_parameters("key")
@sensitive_variables("key")
@page
@require_http_methods(["GET", "POST"])
def show_tracking(request: PageRequest) -> HttpResponse:
    error: UserError | None = None
    if request.method == "POST":
        key = request.POST.get("key", "")
        try:
            set_tracking_key(
                organisation=request.organisation, key=key, set_by=request.user, now=clock.now()
            )
        except UserError as refusal:
            error = refusal
        else:
            messages.success(request, "The key is stored.")
            return redirect("tracking")
    runs = list_tracked_runs(request.organisation, limit=RUNS_LISTED)
    context = {
        "error": error,
        "is_available": is_installed(),
        "key": find_tracking_key(request.organisation),
        "runs": _describe(request, runs),
    }
    return render(request, "web/tracking.html", context, status=error.status if error else 200)


@page
@require_POST
def forget_tracking_key(request: PageRequest) -> HttpResponse:
    remove_tracking_key(organisation=request.organisation)
    messages.success(request, "The key is deleted. Nothing more is sent.")
    return redirect("tracking")


def _describe(request: PageRequest, runs: list[TrackedRun]) -> list[dict[str, Any]]:
    jobs = Job.objects.filter(
        organisation=request.organisation, bid_id__in=[run.bid_id for run in runs]
    )
    by_bid = {job.bid_id: job for job in jobs}
    return [{"run": run, "job": by_bid[run.bid_id]} for run in runs if run.bid_id in by_bid]
