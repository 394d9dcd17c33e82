"""A job's files."""

from __future__ import annotations

from django.http.response import HttpResponseBase
from django.views.decorators.http import require_GET

from marketplace.common import clock
from marketplace.jobs.downloads import get_artifact, get_checkpoint, open_adapter, open_checkpoint
from marketplace.jobs.models import Job
from marketplace.vendors.downloads import download_changes, download_origins
from marketplace.web.views.jobs import find_own_job
from marketplace.web.views.requests import PageRequest, page


@page
@require_GET
def download_adapter(request: PageRequest, job_id: str) -> HttpResponseBase:
    job = find_own_job(request.organisation, job_id)
    return open_adapter(
        get_artifact(job),
        name=_file_name(job),
        range_header=request.headers.get("Range"),
        now=clock.now(),
    )


@page
@require_GET
def download_vendor_changes(request: PageRequest, job_id: str) -> HttpResponseBase:
    """What a vendor changed or left out, row by row."""
    job = find_own_job(request.organisation, job_id)
    return download_changes(
        job=job, name=_file_name(job), range_header=request.headers.get("Range")
    )


@page
@require_GET
def download_vendor_origins(request: PageRequest, job_id: str) -> HttpResponseBase:
    """The place in the owner's file of each prepared row."""
    job = find_own_job(request.organisation, job_id)
    return download_origins(
        job=job, name=_file_name(job), range_header=request.headers.get("Range")
    )


@page
@require_GET
def download_checkpoint(request: PageRequest, job_id: str, checkpoint_id: str) -> HttpResponseBase:
    job = find_own_job(request.organisation, job_id)
    checkpoint = get_checkpoint(job, checkpoint_id)
    return open_checkpoint(
        checkpoint,
        name=_file_name(job),
        range_header=request.headers.get("Range"),
        now=clock.now(),
    )


def _file_name(job: Job) -> str:
    return "".join(c if c.isascii() and (c.isalnum() or c in "-_.") else "-" for c in job.name)
