"""The adapters of an organisation: a list, and a page for each."""

from __future__ import annotations

from django.conf import settings
from django.db.models import QuerySet
from django.http import HttpResponse
from django.shortcuts import render
from django.views.decorators.http import require_GET

from marketplace.auction.models import Bid
from marketplace.common.errors import NotFound
from marketplace.jobs.models import Artifact, Job
from marketplace.jobs.selectors import list_continuable_jobs
from marketplace.web.presenters.adapters import describe_use, list_ways_to_serve
from marketplace.web.presenters.warm import present_lineage
from marketplace.web.views.jobs import find_own_job
from marketplace.web.views.requests import PageRequest, page

ROWS_PER_PAGE = 20


@page
@require_GET
def show_adapters(request: PageRequest) -> HttpResponse:
    find, before = (
        request.GET.get(name, "").replace("\0", "").strip()[:80] for name in ("find", "before")
    )
    jobs = list_continuable_jobs(request.organisation).select_related("zone")
    if find:
        jobs = jobs.filter(name__icontains=find)
    if before:
        jobs = jobs.filter(pk__lt=before)
    shown, older = _cut_page(jobs)
    artifacts = {made.job_id: made for made in Artifact.objects.filter(job__in=shown)}
    context = {
        # One that was deleted since the jobs were read is left out.
        "rows": [(job, artifacts[job.pk]) for job in shown if job.pk in artifacts],
        "find": find,
        "is_later": bool(before),
        "older": older,
    }
    return render(request, "web/adapters.html", context)


def _cut_page(jobs: QuerySet[Job]) -> tuple[list[Job], str | None]:
    """The jobs of a page, and the last of them where there are more."""
    found = list(jobs[: ROWS_PER_PAGE + 1])
    return found[:ROWS_PER_PAGE], found[ROWS_PER_PAGE - 1].pk if len(
        found
    ) > ROWS_PER_PAGE else None


@page
@require_GET
def show_adapter(request: PageRequest, job_id: str) -> HttpResponse:
    job = find_own_job(request.organisation, job_id)
    artifact = Artifact.objects.filter(job=job).first()
    if artifact is None:
        raise NotFound("unknown_adapter", f"The job {job.name} has no adapter.")
    use = describe_use(job)
    context = {
        "job": job,
        "artifact": artifact,
        "use": use,
        "export_choices": use.export_choices,
        "pushes": use.pushes,
        "lines": list_ways_to_serve(job, use, market_url=settings.PUBLIC_URL),
        "lineage": present_lineage(job, Bid.objects.get(pk=job.bid_id)),
    }
    return render(request, "web/adapter.html", context)
