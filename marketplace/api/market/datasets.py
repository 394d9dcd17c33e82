"""``/api/datasets``: upload training data and see what was found in it."""

from __future__ import annotations

from drf_spectacular.utils import extend_schema
from rest_framework.parsers import FormParser, MultiPartParser
from rest_framework.request import Request
from rest_framework.response import Response

from marketplace.api.callers import Caller, caller
from marketplace.api.idempotency import once
from marketplace.api.market import schemas
from marketplace.api.market.owned import dataset_of, datasets_of
from marketplace.api.market.requests import DatasetUploadRequest, checked
from marketplace.api.market.shapes import dataset_shape
from marketplace.api.pagination import each, page
from marketplace.api.views import MarketView
from marketplace.common import clock
from marketplace.fleet.selectors import zone_by_name
from marketplace.jobs.services import dataset_create


class DatasetsView(MarketView):
    parser_classes = [MultiPartParser, FormParser]
    scopes = {"GET": "datasets:read", "POST": "datasets:write"}
    throttle_kind = "uploads"

    @extend_schema(
        operation_id="datasets_list", parameters=schemas.PAGE, responses={200: schemas.DATASET_PAGE}
    )
    def get(self, request: Request) -> Response:
        return Response(
            page(request, datasets_of(caller(request).organisation), each(dataset_shape))
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
        dataset = dataset_create(
            organisation=who.organisation,
            name=asked["name"] or asked["file"].name,
            content=asked["file"],
            uploaded_by=who.user,
            zone=zone_by_name(asked["zone"]) if "zone" in asked else None,
            now=clock.now(),
        )
        return Response(
            dataset_shape(dataset), status=201, headers={"Location": f"/api/datasets/{dataset.pk}"}
        )


class DatasetView(MarketView):
    scopes = {"GET": "datasets:read"}

    @extend_schema(operation_id="datasets_read", responses={200: schemas.DATASET})
    def get(self, request: Request, dataset_id: str) -> Response:
        return Response(dataset_shape(dataset_of(caller(request).organisation, dataset_id)))
