"""What is kept of an organisation and of a person, for how long, and how it is deleted."""

from __future__ import annotations

from typing import Any

from django.contrib import messages
from django.contrib.auth import logout
from django.http import HttpResponse
from django.shortcuts import redirect, render
from django.views.decorators.http import require_GET, require_POST

from marketplace.accounts.departures import end_organisation, end_person
from marketplace.accounts.erasure import RETAIN_DAYS_MIN, list_deletions, list_needs
from marketplace.accounts.models import Role, Subject
from marketplace.accounts.own_data import build_archive
from marketplace.accounts.services import set_retention
from marketplace.common import clock
from marketplace.common.downloads import PartsDownload
from marketplace.common.errors import UserError
from marketplace.fleet.selectors import list_open_zones
from marketplace.jobs.services import delete_adapter, delete_job
from marketplace.payments.selectors import get_wallet
from marketplace.payments.services import give_up_wallet
from marketplace.web.views.jobs import find_own_job
from marketplace.web.views.requests import (
    PageRequest,
    asks_again,
    asks_again_to_read,
    owner_page,
    page,
    person_page,
    show_refusal,
)


@page
@require_GET
def show_own_data(request: PageRequest) -> HttpResponse:
    organisation = request.organisation
    owners = organisation.memberships.filter(user=request.user, role=Role.OWNER)
    context: dict[str, Any] = {
        "deletions": list_deletions(organisation),
        "least_days": RETAIN_DAYS_MIN,
        "zones": list_open_zones().filter(retain_days__isnull=False),
        "needs": list_needs(Subject.ORGANISATION, organisation.pk),
        "left_micros": get_wallet(organisation=organisation).available_micros,
        "is_owner": owners.exists(),
    }
    return render(request, "web/own_data.html", context)


@owner_page
@asks_again
@require_POST
def change_retention(request: PageRequest) -> HttpResponse:
    days = request.POST.get("retain_days", "").strip()
    with show_refusal(request):
        set_retention(
            organisation=request.organisation,
            retain_days=None if not days else int(days) if days.isascii() and days.isdigit() else 0,
            set_by=request.user,
        )
        messages.success(request, "Stored. It holds for what is here now as well.")
    return redirect("own_data")


@owner_page
@asks_again_to_read
@require_GET
def download_archive(request: PageRequest) -> PartsDownload:
    """All of the organisation's data."""
    return _send(Subject.ORGANISATION, request.organisation.pk)


@person_page
@asks_again_to_read
@require_GET
def download_own_archive(request: PageRequest) -> PartsDownload:
    """What is known of the person who asks."""
    return _send(Subject.PERSON, request.user.pk)


def _send(subject: Subject, subject_id: str) -> PartsDownload:
    parts = build_archive(subject=subject, subject_id=subject_id)
    return PartsDownload(parts, content_type="application/zip", name=f"{subject_id}.zip")


@owner_page
@asks_again
@require_POST
def give_up_money(request: PageRequest) -> HttpResponse:
    give_up_wallet(organisation=request.organisation, given_up_by=request.user, now=clock.now())
    messages.success(request, "The wallet is empty.")
    return redirect("own_data")


@owner_page
@asks_again
@require_POST
def remove_organisation(request: PageRequest) -> HttpResponse:
    try:
        end_organisation(organisation=request.organisation, asked_by=request.user, now=clock.now())
    except UserError as error:
        messages.error(request, error.message)
        return redirect("own_data")
    messages.success(request, f"{request.organisation.name} is deleted.")
    return redirect("market")


@person_page
@asks_again
@require_POST
def remove_person(request: PageRequest) -> HttpResponse:
    try:
        end_person(person=request.user, now=clock.now())
    except UserError as error:
        messages.error(request, error.message)
        return redirect("own_data")
    logout(request)
    messages.success(request, "Your account is deleted.")
    return redirect("market")


@page
@require_POST
def remove_job(request: PageRequest, job_id: str) -> HttpResponse:
    """``do=adapter`` deletes the adapter alone."""
    job = find_own_job(request.organisation, job_id)
    is_adapter = request.POST.get("do") == "adapter"
    with show_refusal(request):
        (delete_adapter if is_adapter else delete_job)(
            job=job, asked_by=request.user, now=clock.now()
        )
        what = "The adapter is" if is_adapter else "The job's data are"
        messages.success(request, f"{what} deleted. The content is gone within a day.")
    return redirect("job_detail", job_id=job.pk)
