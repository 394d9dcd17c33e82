"""``/api/datasets``: upload training data and see what was found in it."""

from __future__ import annotations

from typing import Any

from drf_spectacular.utils import extend_schema
from rest_framework.parsers import FormParser, MultiPartParser
from rest_framework.request import Request
from rest_framework.response import Response

from marketplace.api.answers import page_of
from marketplace.api.callers import Caller, get_caller
from marketplace.api.idempotency import answer_once, read_idempotency_key
from marketplace.api.market import owned, schemas
from marketplace.api.market.data_requests import DatasetUploadRequest
from marketplace.api.market.job_serializers import DatasetSerializer, UploadSerializer
from marketplace.api.market.owned import get_dataset, get_upload, list_datasets
from marketplace.api.market.requests import check_body
from marketplace.api.pagination import build_page
from marketplace.api.views import MarketView
from marketplace.common import clock
from marketplace.common.errors import UserError
from marketplace.fleet.selectors import get_open_zone
from marketplace.jobs.models import Upload, UploadStatus
from marketplace.jobs.selectors import build_upload_error
from marketplace.jobs.services import delete_dataset, receive_upload, wait_for_upload
from marketplace.jobs.upload_choices import UploadChoices


class DatasetsView(MarketView):
    parser_classes = [MultiPartParser, FormParser]
    takes_idempotency_key = True
    scopes = {"GET": "datasets:read", "POST": "datasets:write"}
    queries = {"GET": schemas.NAMED_PAGE}
    throttle_kind = "uploads"

    @extend_schema(
        operation_id="datasets_list",
        responses={200: page_of(DatasetSerializer)},
    )
    def get(self, request: Request) -> Response:
        found = list_datasets(get_caller(request).organisation)
        return Response(build_page(request, found, DatasetSerializer.show_each))

    @extend_schema(
        request={"multipart/form-data": DatasetUploadRequest},
        responses={201: DatasetSerializer, 202: UploadSerializer, 400: schemas.PROBLEM},
    )
    def post(self, request: Request) -> Response:
        who = get_caller(request)
        return answer_once(
            request, who.organisation, lambda: self._upload(request, who), now=clock.now()
        )

    def _upload(self, request: Request, who: Caller) -> Response:
        asked = check_body(DatasetUploadRequest, request.data)
        upload = receive_upload(
            organisation=who.organisation,
            name=asked["name"] or asked["file"].name,
            content=asked["file"],
            uploaded_by=who.user,
            zone=get_open_zone(asked["zone"]) if "zone" in asked else None,
            choices=UploadChoices(
                faulty_lines=asked["faulty_lines"],
                long_rows=asked["long_rows"],
                columns={name: each.lower() for name, each in _read(asked, "columns").items()},
                roles={key.strip().casefold(): role for key, role in _read(asked, "roles").items()},
            ),
            key=_key(request),
            now=clock.now(),
        )
        return _answer(wait_for_upload(upload, within_s=owned.READ_WITHIN_S))


def _read(asked: dict[str, Any], name: str) -> dict[str, str]:
    if not all(isinstance(value, str) for value in asked[name].values()):
        raise UserError(f"invalid_{name}", f"Each name of {name} has one text.", param=name)
    return {key: value.strip() for key, value in asked[name].items()}


def _key(request: Request) -> str | None:
    key = read_idempotency_key(request)
    return None if key is None else f"datasets:{key}"


def _answer(upload: Upload) -> Response:
    """201 with the data set; 202 while the file is read, with the address that says how far."""
    if upload.status == UploadStatus.REFUSED:
        raise build_upload_error(upload)
    if upload.dataset is None:
        headers = {"Location": f"/api/uploads/{upload.pk}", "Retry-After": "1"}
        return Response(UploadSerializer.show(upload), status=202, headers=headers)
    return Response(
        DatasetSerializer.show(upload.dataset),
        status=201,
        headers={"Location": f"/api/datasets/{upload.dataset.pk}"},
    )


class UploadView(MarketView):
    """A file that is being read: how far, and what became of it. Kept for a day."""

    scopes = {"GET": "datasets:read"}

    @extend_schema(operation_id="uploads_read", responses={200: UploadSerializer})
    def get(self, request: Request, upload_id: str) -> Response:
        upload = get_upload(get_caller(request).organisation, upload_id)
        return Response(UploadSerializer.show(upload))


class DatasetView(MarketView):
    scopes = {"GET": "datasets:read", "DELETE": "datasets:write"}

    @extend_schema(operation_id="datasets_read", responses={200: DatasetSerializer})
    def get(self, request: Request, dataset_id: str) -> Response:
        dataset = get_dataset(get_caller(request).organisation, dataset_id)
        return Response(DatasetSerializer.show(dataset))

    @extend_schema(operation_id="datasets_delete", responses={204: None, 404: schemas.PROBLEM})
    def delete(self, request: Request, dataset_id: str) -> Response:
        who = get_caller(request)
        dataset = get_dataset(who.organisation, dataset_id)
        delete_dataset(dataset=dataset, asked_by=who.user, now=clock.now())
        return Response(status=204)
