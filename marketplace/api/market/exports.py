"""``/api/jobs/{job}/exports`` and ``/pushes``: an adapter in other forms, and on a hub."""

from __future__ import annotations

from datetime import datetime, timedelta

from drf_spectacular.types import OpenApiTypes
from drf_spectacular.utils import OpenApiResponse, extend_schema
from rest_framework import serializers as s
from rest_framework.request import Request
from rest_framework.response import Response

from marketplace.api.answers import GIVEN, Answer, ConstantText, Moment, NullText, Usd, page_of, usd
from marketplace.api.callers import get_caller
from marketplace.api.market import schemas
from marketplace.api.market.fields import FormedText, StrictSerializer
from marketplace.api.market.owned import get_job
from marketplace.api.market.requests import check_body
from marketplace.api.pagination import build_page
from marketplace.api.text_patterns import VISIBLE_ASCII
from marketplace.api.views import MarketView
from marketplace.common import clock
from marketplace.common.downloads import FileDownload
from marketplace.common.errors import NotFound
from marketplace.exports.asking import ask_export
from marketplace.exports.errands import KEPT_FOR
from marketplace.exports.hub import (
    REPOSITORY_CHARS_MAX,
    REPOSITORY_PATTERN,
    TOKEN_CHARS_MAX,
    ask_push,
)
from marketplace.exports.links import ADAPTER, LIFETIME_MAX, make_link
from marketplace.exports.models import Export, ExportForm, ExportStatus, HubPush, PushStatus
from marketplace.exports.prices import compute_price
from marketplace.exports.selectors import (
    get_export,
    list_exports,
    name_export_file,
    open_export,
)
from marketplace.jobs.downloads import get_checkpoint
from workers.protocol.exports import FORMS


class ExportRequest(StrictSerializer):
    form = s.ChoiceField(
        FORMS, help_text="merged: a tar with weights, configuration and tokenizer for transformers."
    )
    checkpoint_id = s.CharField(
        max_length=40,
        required=False,
        allow_null=True,
        default=None,
        help_text="The checkpoint whose adapter to export; without it, the finished adapter.",
    )


class LinkRequest(StrictSerializer):
    file = s.CharField(
        max_length=60,
        default=ADAPTER,
        help_text="adapter, or the id of a checkpoint or of an export of the job.",
    )
    expires_in_s = s.IntegerField(
        min_value=1,
        max_value=int(LIFETIME_MAX.total_seconds()),
        default=3600,
        help_text="Seconds for which the link works.",
    )


class PushRequest(StrictSerializer):
    repository = FormedText(
        REPOSITORY_PATTERN,
        max_length=REPOSITORY_CHARS_MAX,
        help_text="Such as name/model; it is made where it is not there.",
    )
    token = FormedText(
        VISIBLE_ASCII,
        max_length=TOKEN_CHARS_MAX,
        help_text="Of the hub, with the right to write to the repository.",
    )
    private = s.BooleanField(
        required=False, default=True, help_text="Whether a repository that is made is private."
    )
    export_id = s.CharField(
        max_length=40,
        required=False,
        allow_null=True,
        default=None,
        help_text="An export that is ready; without it, the adapter is pushed.",
    )


class ExportSerializer(Answer):
    id = s.CharField()
    object = ConstantText("export")
    job_id = s.CharField()
    checkpoint_id = s.CharField(
        source="artifact.checkpoint_id",
        allow_null=True,
        help_text="The checkpoint whose adapter it is; null: the finished one.",
    )
    form = s.ChoiceField(ExportForm.values, help_text="What the file holds.")
    status = s.ChoiceField(ExportStatus.values, help_text="ready: the file can be fetched.")
    price = Usd(source="price_micros", help_text="Held, and paid when the file is there.")
    bytes = s.IntegerField(allow_null=True, help_text="Size of the file; null until it is ready.")
    sha256 = s.CharField(allow_null=True, help_text="SHA-256 of the file; null until it is ready.")
    filename = s.CharField(help_text="What to call the file.")
    failure_reason = NullText(source="reason")
    created_at = Moment()
    finished_at = Moment(source="ended_at", allow_null=True)
    kept_until = Moment(allow_null=True, help_text="The file is deleted then.")

    def get_bytes(self, export: Export) -> int | None:
        return export.bytes if export.status == ExportStatus.READY else None

    def get_sha256(self, export: Export) -> str | None:
        return export.sha256 if export.status == ExportStatus.READY else None

    def get_filename(self, export: Export) -> str:
        return name_export_file(export)

    def get_kept_until(self, export: Export) -> datetime | None:
        is_ready = export.status == ExportStatus.READY
        return export.ended_at + KEPT_FOR if is_ready and export.ended_at else None


class PushSerializer(Answer):
    id = s.CharField()
    object = ConstantText("push")
    job_id = s.CharField()
    export_id = s.CharField(
        allow_null=True, help_text="The export that is pushed; null: the adapter is."
    )
    repository = s.CharField(help_text="Where it is pushed to.")
    private = s.BooleanField(
        source="is_private", help_text="Whether a repository that is made is private."
    )
    status = s.ChoiceField(PushStatus.values, help_text="How far it is.")
    url = NullText(help_text="Where it can be seen; null until it is there.")
    failure_reason = NullText(source="reason")
    created_at = Moment()
    finished_at = Moment(allow_null=True)


class FileLinkSerializer(Answer):
    object = ConstantText("link")
    job_id = s.CharField(source=GIVEN)
    file = s.CharField(source=GIVEN, help_text="What it leads to, as it was asked.")
    url = s.CharField(help_text="Works without a key; fetch it with GET, in parts too.")
    expires_at = Moment(help_text="Until then the link works.")


class JobExportsView(MarketView):
    """The adapter merged into its base model, and as GGUF, made by a node at the posted price."""

    scopes = {"GET": "jobs:read", "POST": "bids:write"}
    queries = {"GET": schemas.PAGE}

    @extend_schema(
        operation_id="exports_list",
        responses={
            200: page_of(
                ExportSerializer,
                prices=s.DictField(
                    child=s.CharField(allow_null=True),
                    help_text="What each form costs now, in dollars; null: no node is online.",
                ),
            )
        },
    )
    def get(self, request: Request, job_id: str) -> Response:
        job = get_job(get_caller(request).organisation, job_id)
        prices = {form: usd(compute_price(job.zone, form)) for form in ExportForm}
        page = build_page(request, list_exports(job), ExportSerializer.show_each)
        return Response(page | {"prices": prices})

    @extend_schema(
        operation_id="exports_create",
        request=ExportRequest,
        responses={
            201: ExportSerializer,
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
        checkpoint_id = asked["checkpoint_id"]
        export = ask_export(
            organisation=who.organisation,
            asked_by=who.user,
            api_key_id=who.key_id,
            job=job,
            form=ExportForm(asked["form"]),
            checkpoint=None if checkpoint_id is None else get_checkpoint(job, checkpoint_id),
            now=clock.now(),
        )
        where = f"/api/jobs/{export.job_id}/exports/{export.pk}"
        return Response(ExportSerializer.show(export), status=201, headers={"Location": where})


class JobExportView(MarketView):
    scopes = {"GET": "jobs:read"}

    @extend_schema(operation_id="exports_read", responses={200: ExportSerializer})
    def get(self, request: Request, job_id: str, export_id: str) -> Response:
        job = get_job(get_caller(request).organisation, job_id)
        return Response(ExportSerializer.show(get_export(job, export_id)))


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
        found = get_export(job, export_id)
        return open_export(found, range_header=request.headers.get("Range"), now=clock.now())


class JobLinksView(MarketView):
    """A link to a file of the job that needs no key, for some time.

    It ends before that when the key that made it is revoked.
    """

    scopes = {"POST": "jobs:read"}

    @extend_schema(
        operation_id="links_create",
        request=LinkRequest,
        responses={201: FileLinkSerializer, 400: schemas.PROBLEM},
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
        body = FileLinkSerializer.show(link, job_id=job.pk, file=asked["file"])
        return Response(body, status=201)


class JobPushesView(MarketView):
    """Pushes of the adapter, or of one of its exports, to a repository of a model hub."""

    scopes = {"GET": "jobs:read", "POST": "jobs:write"}
    queries = {"GET": schemas.PAGE}

    @extend_schema(
        operation_id="pushes_list",
        responses={200: page_of(PushSerializer)},
    )
    def get(self, request: Request, job_id: str) -> Response:
        job = get_job(get_caller(request).organisation, job_id)
        pushes = HubPush.objects.filter(job=job)
        return Response(build_page(request, pushes, PushSerializer.show_each))

    @extend_schema(
        operation_id="pushes_create",
        request=PushRequest,
        responses={201: PushSerializer, 400: schemas.PROBLEM, 409: schemas.PROBLEM},
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
        return Response(PushSerializer.show(push), status=201, headers={"Location": where})


class JobPushView(MarketView):
    scopes = {"GET": "jobs:read"}

    @extend_schema(operation_id="pushes_read", responses={200: PushSerializer})
    def get(self, request: Request, job_id: str, push_id: str) -> Response:
        job = get_job(get_caller(request).organisation, job_id)
        push = HubPush.objects.filter(job=job, pk=push_id.replace("\0", "")).first()
        if push is None:
            raise NotFound("unknown_push", f"The job has no push {push_id[:60]!r}.")
        return Response(PushSerializer.show(push))
