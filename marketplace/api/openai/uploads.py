"""``/v1/uploads``: files that are sent in parts."""

from __future__ import annotations

from typing import Any

from drf_spectacular.utils import extend_schema
from rest_framework import serializers as s
from rest_framework.parsers import FormParser, MultiPartParser
from rest_framework.request import Request
from rest_framework.response import Response

from marketplace.api.answers import LEFT_OUT, Answer, ConstantText, UnixTime
from marketplace.api.callers import get_caller
from marketplace.api.idempotency import answer_once
from marketplace.api.market.requests import check_body
from marketplace.api.openai import schemas
from marketplace.api.openai.files import WAIT_S, OpenAIFileSerializer
from marketplace.api.openai.requests import (
    FINE_TUNE,
    PartedUploadRequest,
    PartRequest,
    UploadCompletion,
)
from marketplace.api.openai.views import OpenAiView
from marketplace.common import clock
from marketplace.common.errors import NotFound, UserError
from marketplace.fleet.selectors import get_open_zone
from marketplace.jobs.models import PartedStatus, PartedUpload, UploadStatus
from marketplace.jobs.selectors import build_upload_error
from marketplace.jobs.services import (
    add_part,
    cancel_parted_upload,
    complete_parted_upload,
    open_parted_upload,
    wait_for_upload,
)
from marketplace.jobs.upload_choices import UploadChoices


class OpenAIUploadSerializer(Answer):
    id = s.CharField()
    object = ConstantText("upload")
    bytes = s.IntegerField(help_text="As announced.")
    created_at = UnixTime()
    expires_at = UnixTime(help_text="Its parts are deleted then.")
    filename = s.CharField(source="name", help_text="Name of the file.")
    purpose = s.CharField(help_text="Always fine-tune.")
    status = s.ChoiceField(
        ["pending", "completed", "cancelled", "expired"],
        help_text="completed: the parts are a file.",
    )
    file = OpenAIFileSerializer(required=False, help_text="The file, once it is completed.")

    def get_purpose(self, upload: PartedUpload) -> str:
        return FINE_TUNE

    def get_status(self, upload: PartedUpload) -> str:
        # Putting the parts together is a state of ours alone.
        is_joining = upload.status == PartedStatus.JOINING
        return PartedStatus.PENDING if is_joining else upload.status

    def get_file(self, upload: PartedUpload) -> Any:
        if upload.status != PartedStatus.COMPLETED or upload.whole is None:
            return LEFT_OUT
        return upload.whole.dataset or upload.whole


class OpenAIUploadPartSerializer(Answer):
    id = s.CharField()
    object = ConstantText("upload.part")
    created_at = UnixTime()
    upload_id = s.CharField()


class UploadsView(OpenAiView):
    takes_idempotency_key = True
    scopes = {"POST": "datasets:write"}
    throttle_kind = "uploads"

    @extend_schema(
        operation_id="create_upload",
        request=PartedUploadRequest,
        responses={200: OpenAIUploadSerializer, **schemas.ERRORS, 413: schemas.ERROR},
    )
    def post(self, request: Request) -> Response:
        who, now = get_caller(request), clock.now()
        return answer_once(request, who.organisation, lambda: _open(request), now=now)


def _open(request: Request) -> Response:
    who = get_caller(request)
    asked = check_body(PartedUploadRequest, request.data)
    if asked["purpose"] != FINE_TUNE:
        raise UserError("unsupported_purpose", f"Files are for {FINE_TUNE} here.", param="purpose")
    upload = open_parted_upload(
        organisation=who.organisation,
        created_by=who.user,
        name=asked["filename"],
        size=asked["bytes"],
        now=clock.now(),
    )
    return Response(OpenAIUploadSerializer.show(upload))


class UploadPartsView(OpenAiView):
    parser_classes = [MultiPartParser, FormParser]
    scopes = {"POST": "datasets:write"}
    throttle_kind = "uploads"

    @extend_schema(
        operation_id="add_upload_part",
        request={"multipart/form-data": PartRequest},
        responses={200: OpenAIUploadPartSerializer, **schemas.ERRORS, 413: schemas.ERROR},
    )
    def post(self, request: Request, upload_id: str) -> Response:
        upload = _find(request, upload_id)
        content = check_body(PartRequest, request.data)["data"]
        part = add_part(upload=upload, content=content, now=clock.now())
        return Response(OpenAIUploadPartSerializer.show(part))


class UploadCompleteView(OpenAiView):
    """Asked again, it is the same file."""

    scopes = {"POST": "datasets:write"}

    @extend_schema(
        operation_id="complete_upload",
        request=UploadCompletion,
        responses={200: OpenAIUploadSerializer, **schemas.ERRORS, 413: schemas.ERROR},
    )
    def post(self, request: Request, upload_id: str) -> Response:
        upload = _find(request, upload_id)
        asked = check_body(UploadCompletion, request.data)
        whole = complete_parted_upload(
            upload=upload,
            part_ids=asked["part_ids"],
            md5=asked.get("md5"),
            choices=UploadChoices(faulty_lines=asked["faulty_lines"], long_rows=asked["long_rows"]),
            zone=get_open_zone(asked["zone"]) if "zone" in asked else None,
            clock=clock.now,
        )
        whole = wait_for_upload(whole, within_s=WAIT_S)
        if whole.status == UploadStatus.REFUSED:
            raise build_upload_error(whole)
        return Response(OpenAIUploadSerializer.show(_find(request, upload_id)))


class UploadCancelView(OpenAiView):
    scopes = {"POST": "datasets:write"}

    @extend_schema(
        operation_id="cancel_upload",
        request=None,
        responses={200: OpenAIUploadSerializer, **schemas.ERRORS},
    )
    def post(self, request: Request, upload_id: str) -> Response:
        upload = cancel_parted_upload(upload=_find(request, upload_id), now=clock.now())
        return Response(OpenAIUploadSerializer.show(upload))


def _find(request: Request, upload_id: str) -> PartedUpload:
    found = PartedUpload.objects.filter(
        organisation=get_caller(request).organisation, pk=upload_id.replace("\0", "")
    )
    upload = found.select_related("whole__dataset").first()
    if upload is None:
        raise NotFound("unknown_upload", f"You have no upload {upload_id[:60]!r}.")
    return upload
