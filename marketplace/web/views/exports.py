"""Taking an adapter away: merged weights, GGUF files, and a push to a model hub."""

from __future__ import annotations

from datetime import timedelta

from django.contrib import messages
from django.http import HttpResponse
from django.http.response import HttpResponseBase
from django.shortcuts import redirect
from django.views.decorators.http import require_GET, require_POST

from marketplace.common import clock
from marketplace.common.errors import NotFound
from marketplace.exports.asking import ask_export
from marketplace.exports.hub import ask_push
from marketplace.exports.links import ADAPTER, make_link
from marketplace.exports.models import ExportForm
from marketplace.exports.selectors import get_export, open_export
from marketplace.web.views.jobs import find_own_job
from marketplace.web.views.requests import PageRequest, page, show_refusal

LINK_LIFETIME = timedelta(hours=1)


@page
@require_POST
def make_export(request: PageRequest, job_id: str) -> HttpResponse:
    job, form = find_own_job(request.organisation, job_id), request.POST.get("form", "")
    if form not in ExportForm.values:
        raise NotFound("unknown_form", "An adapter has no such form.")
    with show_refusal(request):
        ask_export(
            organisation=request.organisation,
            asked_by=request.user,
            job=job,
            form=ExportForm(form),
            now=clock.now(),
        )
        messages.success(request, "A node makes the file. It stands here when it is ready.")
    return redirect("adapter_detail", job_id=job.pk)


@page
@require_GET
def download_export(request: PageRequest, job_id: str, export_id: str) -> HttpResponseBase:
    export = get_export(find_own_job(request.organisation, job_id), export_id)
    return open_export(export, range_header=request.headers.get("Range"), now=clock.now())


@page
@require_POST
def make_file_link(request: PageRequest, job_id: str) -> HttpResponse:
    job = find_own_job(request.organisation, job_id)
    with show_refusal(request):
        link = make_link(
            job=job,
            file=request.POST.get("file", ADAPTER),
            made_by=request.user,
            api_key=None,
            lifetime=LINK_LIFETIME,
            now=clock.now(),
        )
        messages.success(request, f"For an hour, this works without a sign-in: {link.url}")
    return redirect("adapter_detail", job_id=job.pk)


@page
@require_POST
def push_to_hub(request: PageRequest, job_id: str) -> HttpResponse:
    job, asked = find_own_job(request.organisation, job_id), request.POST
    with show_refusal(request):
        ask_push(
            organisation=request.organisation,
            asked_by=request.user,
            job=job,
            export=get_export(job, asked["export"]) if asked.get("export") else None,
            repository=asked.get("repository", "").strip(),
            token=asked.get("token", "").strip(),
            is_private="public" not in asked,
            now=clock.now(),
        )
        messages.success(
            request, "The adapter is on its way. The token is deleted once it is used."
        )
    return redirect("adapter_detail", job_id=job.pk)
