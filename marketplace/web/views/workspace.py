"""Data sets, API keys, and whom one acts for."""

from __future__ import annotations

from datetime import timedelta
from typing import Any

from django.conf import settings
from django.contrib import messages
from django.db.models import Q
from django.http import HttpResponse
from django.shortcuts import redirect, render
from django.views.decorators.debug import sensitive_variables
from django.views.decorators.http import require_http_methods, require_POST

from marketplace.accounts.api_keys import create_api_key, revoke_api_key, rotate_api_key
from marketplace.accounts.models import ApiKey, Role
from marketplace.accounts.selectors import get_current_organisation
from marketplace.accounts.services import set_verified_only
from marketplace.common import clock
from marketplace.common.downloads import LinesDownload
from marketplace.common.errors import NotFound, UserError
from marketplace.jobs.models import Dataset, Upload, UploadStatus
from marketplace.jobs.selectors import list_datasets
from marketplace.jobs.services import delete_dataset
from marketplace.warm.selectors import get_consent, get_dataset_consent
from marketplace.web.current_organisation import CHOSEN
from marketplace.web.forms import DEFAULT_SCOPES, ApiKeyForm, UploadForm
from marketplace.web.views.requests import PageRequest, asks_again, owner_page, page, person_page
from marketplace.web.views.uploads import (
    ShownUpload,
    find_upload,
    follow_page_upload,
    receive_page_upload,
)

DATASETS_LISTED = 100
#: How long a key that is replaced may still be used.
KEYS_OVERLAP = timedelta(days=1)


@page
@require_http_methods(["GET", "POST"])
def show_datasets(request: PageRequest) -> HttpResponse:
    form = UploadForm(request.POST or None, request.FILES or None)
    error: UserError | None = None
    if request.method == "POST" and form.is_valid():
        try:
            upload = receive_page_upload(request)
        except UserError as refusal:
            error = refusal
        else:
            assert upload is not None
            return _go_to(upload)
    datasets = list_datasets(request.organisation)
    seen = datasets.filter(pk=request.GET.get("before", "").replace("\0", "")).first()
    if seen is not None:
        same = Q(created_at=seen.created_at, pk__lt=seen.pk)
        datasets = datasets.filter(same | Q(created_at__lt=seen.created_at))
    shown = list(datasets[: DATASETS_LISTED + 1])
    open_uploads = Upload.objects.filter(organisation=request.organisation).exclude(
        status__in=[UploadStatus.STORED, UploadStatus.REFUSED]
    )
    context = {
        "form": form,
        "error": error,
        "datasets": shown[:DATASETS_LISTED],
        "older": shown[DATASETS_LISTED - 1].pk if len(shown) > DATASETS_LISTED else None,
        "uploads": open_uploads.order_by("-created_at")[:DATASETS_LISTED],
        "limit_bytes": settings.UPLOAD_BYTES_MAX,
        "consent": get_consent(request.organisation),
        "is_owner": request.organisation.memberships.filter(
            user=request.user, role=Role.OWNER
        ).exists(),
    }
    return render(request, "web/datasets.html", context, status=error.status if error else 200)


@owner_page
@require_POST
def set_providers(request: PageRequest) -> HttpResponse:
    """Whose machines get the organisation's data, where a bid says nothing of it."""
    set_verified_only(
        organisation=request.organisation,
        verified_only="verified_only" in request.POST,
        set_by=request.user,
    )
    messages.success(request, "Whose machines get your data is stored. Bids placed before stay.")
    return redirect("dataset_list")


def _go_to(upload: Upload) -> HttpResponse:
    if upload.dataset_id is not None:
        return redirect("dataset_detail", dataset_id=upload.dataset_id)
    return redirect("upload_detail", upload_id=upload.pk)


@page
@require_http_methods(["GET", "POST"])
def show_upload(request: PageRequest, upload_id: str) -> HttpResponse:
    """How far the reading of a file is, and what is to be chosen about it."""
    upload = find_upload(request, upload_id)
    error: UserError | None = None
    if request.method == "POST":
        try:
            upload = follow_page_upload(request, upload)
        except UserError as refusal:
            error = refusal
    if upload.dataset_id is not None:
        return _go_to(upload)
    context = {"shown": ShownUpload(upload), "error": error}
    return render(request, "web/upload.html", context, status=error.status if error else 200)


@page
@require_http_methods(["GET"])
def list_upload_faults(request: PageRequest, upload_id: str) -> LinesDownload:
    upload = find_upload(request, upload_id)
    found = upload.reading or (upload.error or {}).get("extra", {})
    return _list_faults(found.get("errors", []), name=upload.pk)


@page
@require_POST
def remove_dataset(request: PageRequest, dataset_id: str) -> HttpResponse:
    dataset = find_own_dataset(request, dataset_id)
    delete_dataset(dataset=dataset, asked_by=request.user, now=clock.now())
    messages.success(
        request,
        f"{dataset.name} is deleted. Its content is gone within a day after no job needs it.",
    )
    return redirect("dataset_list")


@page
@require_http_methods(["GET"])
def show_dataset(request: PageRequest, dataset_id: str) -> HttpResponse:
    dataset = find_own_dataset(request, dataset_id)
    context = {
        "dataset": dataset,
        "consent": get_dataset_consent(dataset),
        "of_owner": get_consent(request.organisation),
    }
    return render(request, "web/dataset.html", context)


@page
@require_http_methods(["GET"])
def list_dataset_faults(request: PageRequest, dataset_id: str) -> LinesDownload:
    """Every line that is left out with what is wrong, as a file to work through."""
    dataset = find_own_dataset(request, dataset_id)
    return _list_faults(dataset.errors, name=dataset.pk)


def _list_faults(faults: list[dict[str, Any]], *, name: str) -> LinesDownload:
    return LinesDownload(
        (f"line {fault['line']}: {fault['message']}" for fault in faults),
        content_type="text/plain; charset=utf-8",
        name=f"{name}-faults.txt",
    )


def find_own_dataset(request: PageRequest, dataset_id: str) -> Dataset:
    dataset = (
        Dataset.objects.select_related("zone", "uploaded_by")
        .filter(pk=dataset_id.replace("\0", ""), organisation=request.organisation)
        .first()
    )
    if dataset is None:
        raise NotFound("unknown_dataset", f"{request.organisation.name} has no such data set.")
    return dataset


@sensitive_variables("secret")
@page
@asks_again
@require_http_methods(["GET", "POST"])
def show_api_keys(request: PageRequest) -> HttpResponse:
    now = clock.now()
    form = ApiKeyForm(request.POST or None, initial={"scopes": DEFAULT_SCOPES, "days": 90})
    made: ApiKey | None = None
    secret = ""
    if request.method == "POST" and form.is_valid():
        try:
            made, secret = create_api_key(
                organisation=request.organisation,
                created_by=request.user,
                name=form.cleaned_data["name"],
                scopes=form.cleaned_data["scopes"],
                expires_at=form.expires_at(now),
                bid_price_micros=form.bid_price_micros,
                bid_deadline_s=form.bid_deadline_s,
                now=now,
            )
        except UserError as error:
            form.add_error("name" if error.param == "name" else None, error.message)
    shown = form if made is None else None
    return _show_keys(request, shown, made=made, secret=secret)


@sensitive_variables("secret")
@page
@asks_again
@require_POST
def replace_api_key(request: PageRequest, key_id: str) -> HttpResponse:
    """Replace a key's secret; programs have a day to change over."""
    made, secret = rotate_api_key(
        organisation=request.organisation,
        key_id=key_id,
        rotated_by=request.user,
        overlap=KEYS_OVERLAP,
        now=clock.now(),
    )
    return _show_keys(request, None, made=made, secret=secret)


@sensitive_variables("secret")
def _show_keys(
    request: PageRequest, form: ApiKeyForm | None, *, made: ApiKey | None, secret: str
) -> HttpResponse:
    keys = ApiKey.objects.filter(organisation=request.organisation).select_related("created_by")
    # Shown in the answer to the POST itself: the secret is in no address and no session.
    context = {
        "form": form or ApiKeyForm(initial={"scopes": DEFAULT_SCOPES, "days": 90}),
        "made": made,
        "secret": secret,
        "keys": keys.order_by("revoked_at", "-created_at"),
        "now": clock.now(),
    }
    return render(request, "web/api_keys.html", context)


@page
@require_POST
def end_api_key(request: PageRequest, key_id: str) -> HttpResponse:
    revoke_api_key(
        organisation=request.organisation,
        key_id=key_id,
        revoked_by=request.user,
        now=clock.now(),
    )
    messages.success(request, "The key is revoked; programs that use it are refused from now on.")
    return redirect("api_key_list")


@person_page
@require_POST
def choose_organisation(request: PageRequest) -> HttpResponse:
    chosen = get_current_organisation(
        user=request.user, organisation_id=request.POST.get("organisation", "")
    )
    request.session[CHOSEN] = chosen.pk
    return redirect("job_list")
