"""Jobs of an organisation beside each other."""

from __future__ import annotations

from django.http import HttpResponse
from django.shortcuts import render
from django.views.decorators.http import require_GET

from marketplace.auction.models import Bid
from marketplace.common import clock
from marketplace.web.presenters.comparison import COMPARED_MAX, compare
from marketplace.web.views.jobs import find_own_job
from marketplace.web.views.requests import PageRequest, page


@page
@require_GET
def compare_jobs(request: PageRequest) -> HttpResponse:
    """Show the chosen jobs; each must be the organisation's own."""
    chosen = list(dict.fromkeys(request.GET.getlist("job")))
    jobs = [find_own_job(request.organisation, job_id) for job_id in chosen[:COMPARED_MAX]]
    bids = Bid.objects.select_related("zone").in_bulk([job.bid_id for job in jobs])
    context = {
        "most": COMPARED_MAX,
        "left_out": max(0, len(chosen) - COMPARED_MAX),
        "now": clock.now(),
        **compare(jobs, bids),
    }
    return render(request, "web/job_compare.html", context)
