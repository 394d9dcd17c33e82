"""``/v1/uploads``: files that are sent in parts."""

from __future__ import annotations

from typing import Any

from drf_spectacular.utils import extend_schema
from rest_framework.parsers import FormParser, MultiPartParser
from rest_framework.request import Request
from rest_framework.response import Response

from marketplace.api.callers import get_caller
from marketplace.api.idempotency import answer_once
from marketplace.api.market.requests import check_body
from marketplace.api.openai import schemas
from marketplace.api.openai.files import CHOICES, WAIT_S, show_file
from marketplace.api.openai.requests import (
    FINE_TUNE,
    PartedUploadRequest,
    PartRequest,
    UploadCompletion,
)
from marketplace.api.openai.views import OpenAiView
from marketplace.common import clock
from marketplace.common.errors import NotFound, UserError
from marketplace.jobs.models import PartedStatus, PartedUpload, UploadStatus
from marketplace.jobs.selectors import build_upload_error
from marketplace.jobs.services import (
    add_part,
    cancel_parted_upload,
    complete_parted_upload,
    open_parted_upload,
    wait_for_upload,
)


class UploadsView(OpenAiView):
    scopes = {"POST": "datasets:write"}
    throttle_kind = "uploads"

    @extend_schema(
        operation_id="create_upload",
        request=PartedUploadRequest,
        responses={200: schemas.UPLOAD, **schemas.ERRORS, 413: schemas.ERROR},
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
    return Response(_show(upload))


class UploadPartsView(OpenAiView):
    parser_classes = [MultiPartParser, FormParser]
    scopes = {"POST": "datasets:write"}
    throttle_kind = "uploads"

    @extend_schema(
        operation_id="add_upload_part",
        request={"multipart/form-data": PartRequest},
        responses={200: schemas.UPLOAD_PART, **schemas.ERRORS, 413: schemas.ERROR},
    )
    def post(self, request: Request, upload_id: str) -> Response:
        upload = _find(request, upload_id)
        content = check_body(PartRequest, request.data)["data"]
        part = add_part(upload=upload, content=content, now=clock.now())
        return Response(
            {
                "id": part.pk,
                "object": "upload.part",
                "created_at": int(part.created_at.timestamp()),
                "upload_id": upload.pk,
            }
        )


class UploadCompleteView(OpenAiView):
    """Asked again, it is the same file."""

    scopes = {"POST": "datasets:write"}

    @extend_schema(
        operation_id="complete_upload",
        request=UploadCompletion,
        responses={200: schemas.UPLOAD, **schemas.ERRORS, 413: schemas.ERROR},
    )
    def post(self, request: Request, upload_id: str) -> Response:
        upload = _find(request, upload_id)
        asked = check_body(UploadCompletion, request.data)
        whole = complete_parted_upload(
            upload=upload,
            part_ids=asked["part_ids"],
            md5=asked.get("md5"),
            choices=CHOICES,
            clock=clock.now,
        )
        whole = wait_for_upload(whole, within_s=WAIT_S)
        if whole.status == UploadStatus.REFUSED:
            raise build_upload_error(whole)
        return Response(_show(_find(request, upload_id)))


class UploadCancelView(OpenAiView):
    scopes = {"POST": "datasets:write"}

    @extend_schema(
        operation_id="cancel_upload",
        request=None,
        responses={200: schemas.UPLOAD, **schemas.ERRORS},
    )
    def post(self, request: Request, upload_id: str) -> Response:
        upload = cancel_parted_upload(upload=_find(request, upload_id), now=clock.now())
        return Response(_show(upload))


def _find(request: Request, upload_id: str) -> PartedUpload:
    found = PartedUpload.objects.filter(
        organisation=get_caller(request).organisation, pk=upload_id.replace("\0", "")
    )
    upload = found.select_related("whole__dataset").first()
    if upload is None:
        raise NotFound("unknown_upload", f"You have no upload {upload_id[:60]!r}.")
    return upload


def _show(upload: PartedUpload) -> dict[str, Any]:
    shown: dict[str, Any] = {
        "id": upload.pk,
        "object": "upload",
        "bytes": upload.bytes,
        "created_at": int(upload.created_at.timestamp()),
        "expires_at": int(upload.expires_at.timestamp()),
        "filename": upload.name,
        "purpose": FINE_TUNE,
        # Putting the parts together is a state of ours alone.
        "status": (
            PartedStatus.PENDING if upload.status == PartedStatus.JOINING else upload.status
        ),
    }
    if upload.status == PartedStatus.COMPLETED and upload.whole is not None:
        shown["file"] = show_file(upload.whole.dataset or upload.whole)
    return shown
