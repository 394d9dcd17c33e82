"""``/api/datasets``: upload training data and see what was found in it."""

from __future__ import annotations

from drf_spectacular.utils import extend_schema
from rest_framework.parsers import FormParser, MultiPartParser
from rest_framework.request import Request
from rest_framework.response import Response

from marketplace.api.callers import Caller, caller
from marketplace.api.idempotency import once
from marketplace.api.market import schemas
from marketplace.api.market.owned import get_dataset, list_datasets
from marketplace.api.market.requests import DatasetUploadRequest, checked
from marketplace.api.market.serialize import serialize_dataset
from marketplace.api.pagination import each, page
from marketplace.api.views import MarketView
from marketplace.common import clock
from marketplace.fleet.selectors import get_open_zone
from marketplace.jobs.services import create_dataset


class DatasetsView(MarketView):
    parser_classes = [MultiPartParser, FormParser]
    scopes = {"GET": "datasets:read", "POST": "datasets:write"}
    throttle_kind = "uploads"

    @extend_schema(
        operation_id="datasets_list", parameters=schemas.PAGE, responses={200: schemas.DATASET_PAGE}
    )
    def get(self, request: Request) -> Response:
        return Response(
            page(request, list_datasets(caller(request).organisation), each(serialize_dataset))
        )

    @extend_schema(
        request={"multipart/form-data": DatasetUploadRequest},
        responses={201: schemas.DATASET, 400: schemas.PROBLEM},
    )
    def post(self, request: Request) -> Response:
        who = caller(request)
        return once(request, who.organisation, lambda: self._upload(request, who), now=clock.now())

    def _upload(self, request: Request, who: Caller) -> Response:
        asked = checked(DatasetUploadRequest, request.data)
        dataset = create_dataset(
            organisation=who.organisation,
            name=asked["name"] or asked["file"].name,
            content=asked["file"],
            uploaded_by=who.user,
            zone=get_open_zone(asked["zone"]) if "zone" in asked else None,
            now=clock.now(),
        )
        return Response(
            serialize_dataset(dataset),
            status=201,
            headers={"Location": f"/api/datasets/{dataset.pk}"},
        )


class DatasetView(MarketView):
    scopes = {"GET": "datasets:read"}

    @extend_schema(operation_id="datasets_read", responses={200: schemas.DATASET})
    def get(self, request: Request, dataset_id: str) -> Response:
        return Response(serialize_dataset(get_dataset(caller(request).organisation, dataset_id)))
