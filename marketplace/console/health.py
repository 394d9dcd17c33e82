"""The operator's page of what works and what does not, and of why jobs are late."""

from __future__ import annotations

from django.http import HttpResponse
from django.shortcuts import render
from django.views.decorators.http import require_GET

from marketplace.auction.lateness import explain_lateness
from marketplace.auction.probes import run_probes
from marketplace.common import clock
from marketplace.common.heartbeats import is_late, is_watched, read_heartbeats
from marketplace.web.views.requests import PageRequest, operator_page


@operator_page
@require_GET
def show_health(request: PageRequest) -> HttpResponse:
    now = clock.now()
    beats = sorted((task, row) for task, row in read_heartbeats().items() if is_watched(task))
    context = {
        "now": now,
        "probes": sorted(run_probes(now=now), key=lambda probe: probe.is_ok),
        "lateness": explain_lateness(now=now),
        "tasks": [(row, is_late(row, task, now=now)) for task, row in beats],
    }
    return render(request, "console/health.html", context)
