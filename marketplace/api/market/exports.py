"""``/api/jobs/{job}/exports`` and ``/pushes``: an adapter in other forms, and on a hub."""

from __future__ import annotations

from datetime import timedelta
from typing import Any

from drf_spectacular.types import OpenApiTypes
from drf_spectacular.utils import OpenApiResponse, extend_schema
from rest_framework.request import Request
from rest_framework.response import Response

from marketplace.api.callers import get_caller
from marketplace.api.market import export_schemas as shapes
from marketplace.api.market import schemas
from marketplace.api.market.fields import moment, usd
from marketplace.api.market.owned import get_job
from marketplace.api.market.requests import (
    ExportRequest,
    LinkRequest,
    PushRequest,
    check_body,
)
from marketplace.api.pagination import build_page, show_each
from marketplace.api.views import MarketView
from marketplace.common import clock
from marketplace.common.downloads import FileDownload
from marketplace.common.errors import NotFound
from marketplace.exports.asking import ask_export
from marketplace.exports.errands import KEPT_FOR
from marketplace.exports.hub import ask_push
from marketplace.exports.links import make_link
from marketplace.exports.models import Export, ExportForm, ExportStatus, HubPush
from marketplace.exports.prices import compute_price
from marketplace.exports.selectors import get_export, name_export_file, open_export


class JobExportsView(MarketView):
    """The adapter merged into its base model, and as GGUF, made by a node at the posted price."""

    scopes = {"GET": "jobs:read", "POST": "bids:write"}

    @extend_schema(
        operation_id="exports_list", parameters=schemas.PAGE[:2], responses={200: shapes.EXPORTS}
    )
    def get(self, request: Request, job_id: str) -> Response:
        job = get_job(get_caller(request).organisation, job_id)
        prices = {form: usd(compute_price(job.zone, form)) for form in ExportForm}
        page = build_page(request, Export.objects.filter(job=job), show_each(serialize_export))
        return Response(page | {"prices": prices})

    @extend_schema(
        operation_id="exports_create",
        request=ExportRequest,
        responses={
            201: shapes.EXPORT,
            400: schemas.PROBLEM,
            402: schemas.PROBLEM,
            409: schemas.PROBLEM,
            503: schemas.PROBLEM,
        },
    )
    def post(self, request: Request, job_id: str) -> Response:
        """Asked for again while it is there, it is the same export and costs nothing."""
        who = get_caller(request)
        job = get_job(who.organisation, job_id)
        asked = check_body(ExportRequest, request.data)
        export = ask_export(
            organisation=who.organisation,
            asked_by=who.user,
            api_key_id=who.key_id,
            job=job,
            form=ExportForm(asked["form"]),
            now=clock.now(),
        )
        where = f"/api/jobs/{export.job_id}/exports/{export.pk}"
        return Response(serialize_export(export), status=201, headers={"Location": where})


class JobExportView(MarketView):
    scopes = {"GET": "jobs:read"}

    @extend_schema(operation_id="exports_read", responses={200: shapes.EXPORT})
    def get(self, request: Request, job_id: str, export_id: str) -> Response:
        job = get_job(get_caller(request).organisation, job_id)
        return Response(serialize_export(get_export(job, export_id)))


class JobExportContentView(MarketView):
    """The file, whole or in part."""

    scopes = {"GET": "jobs:read"}

    @extend_schema(
        operation_id="exports_content",
        responses={
            (200, "application/octet-stream"): OpenApiResponse(OpenApiTypes.BINARY),
            409: schemas.PROBLEM,
        },
    )
    def get(self, request: Request, job_id: str, export_id: str) -> FileDownload:
        job = get_job(get_caller(request).organisation, job_id)
        return open_export(get_export(job, export_id), range_header=request.headers.get("Range"))


class JobLinksView(MarketView):
    """A link to a file of the job that needs no key, for some time.

    It ends before that when the key that made it is revoked.
    """

    scopes = {"POST": "jobs:read"}

    @extend_schema(
        operation_id="links_create",
        request=LinkRequest,
        responses={201: shapes.LINK, 400: schemas.PROBLEM},
    )
    def post(self, request: Request, job_id: str) -> Response:
        who = get_caller(request)
        job = get_job(who.organisation, job_id)
        asked = check_body(LinkRequest, request.data)
        link = make_link(
            job=job,
            file=asked["file"],
            made_by=who.user,
            api_key=who.key,
            lifetime=timedelta(seconds=asked["expires_in_s"]),
            now=clock.now(),
        )
        body = {
            "object": "link",
            "job_id": job.pk,
            "file": asked["file"],
            "url": link.url,
            "expires_at": moment(link.expires_at),
        }
        return Response(body, status=201)


class JobPushesView(MarketView):
    """Pushes of the adapter, or of one of its exports, to a repository of a model hub."""

    scopes = {"GET": "jobs:read", "POST": "jobs:write"}

    @extend_schema(
        operation_id="pushes_list", parameters=schemas.PAGE[:2], responses={200: shapes.PUSH_PAGE}
    )
    def get(self, request: Request, job_id: str) -> Response:
        job = get_job(get_caller(request).organisation, job_id)
        pushes = HubPush.objects.filter(job=job)
        return Response(build_page(request, pushes, show_each(serialize_push)))

    @extend_schema(
        operation_id="pushes_create",
        request=PushRequest,
        responses={201: shapes.PUSH, 400: schemas.PROBLEM, 409: schemas.PROBLEM},
    )
    def post(self, request: Request, job_id: str) -> Response:
        """The token is stored encrypted, and deleted once it has been used."""
        who = get_caller(request)
        job = get_job(who.organisation, job_id)
        asked = check_body(PushRequest, request.data)
        export_id = asked["export_id"]
        push = ask_push(
            organisation=who.organisation,
            asked_by=who.user,
            job=job,
            export=None if export_id is None else get_export(job, export_id),
            repository=asked["repository"],
            token=asked["token"],
            is_private=asked["private"],
            now=clock.now(),
        )
        where = f"/api/jobs/{push.job_id}/pushes/{push.pk}"
        return Response(serialize_push(push), status=201, headers={"Location": where})


class JobPushView(MarketView):
    scopes = {"GET": "jobs:read"}

    @extend_schema(operation_id="pushes_read", responses={200: shapes.PUSH})
    def get(self, request: Request, job_id: str, push_id: str) -> Response:
        job = get_job(get_caller(request).organisation, job_id)
        push = HubPush.objects.filter(job=job, pk=push_id.replace("\0", "")).first()
        if push is None:
            raise NotFound("unknown_push", f"The job has no push {push_id[:60]!r}.")
        return Response(serialize_push(push))


def serialize_export(export: Export) -> dict[str, Any]:
    is_ready = export.status == ExportStatus.READY
    until = export.ended_at + KEPT_FOR if is_ready and export.ended_at else None
    return {
        "id": export.pk,
        "object": "export",
        "job_id": export.job_id,
        "form": export.form,
        "status": export.status,
        "price": usd(export.price_micros),
        "bytes": export.bytes if is_ready else None,
        "sha256": export.sha256 if is_ready else None,
        "filename": name_export_file(export),
        "failure_reason": export.reason or None,
        "created_at": moment(export.created_at),
        "finished_at": moment(export.ended_at),
        "kept_until": moment(until),
    }


def serialize_push(push: HubPush) -> dict[str, Any]:
    return {
        "id": push.pk,
        "object": "push",
        "job_id": push.job_id,
        "export_id": push.export_id,
        "repository": push.repository,
        "private": push.is_private,
        "status": push.status,
        "url": push.url or None,
        "failure_reason": push.reason or None,
        "created_at": moment(push.created_at),
        "finished_at": moment(push.finished_at),
    }
